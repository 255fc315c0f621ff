"""Fixtures that many tests share."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("stabcli", deadline=None)  # no test is about time
settings.load_profile("stabcli")

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "sample_logs"
SHARED = Path(os.environ.get("STABCLI_SHARED", ROOT.parent / "shared"))
"""A folder of real logs that cannot be part of the project; tests that use it skip without it."""


@pytest.fixture
def shared_data() -> Path:
    """The folder of real labelled logs, where this machine has one."""
    path = SHARED / "data" / "train"
    if not path.is_dir():
        pytest.skip("no folder of real logs on this machine; set STABCLI_SHARED")
    return path
