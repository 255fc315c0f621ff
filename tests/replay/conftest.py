"""Fixtures that tests of the command share."""

import json

import pytest

from stabcli.cli import run
from tests.replay.command import SAMPLE


@pytest.fixture(scope="session")
def account(tmp_path_factory) -> dict:
    """What the bundled example gives, as JSON."""
    out = tmp_path_factory.mktemp("account") / "x.json"
    assert run([*SAMPLE, "--format", "json", "-o", str(out)]) == 0
    return json.loads(out.read_text(encoding="utf-8"))
