"""The fixture that runs commands."""

import os
from pathlib import Path

import pytest

from tests.cli.commands import Stabcli


@pytest.fixture
def stabcli(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Stabcli:
    """Runs commands in an empty folder, with nothing set in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith("STABCLI_"):
            monkeypatch.delenv(name)
    return Stabcli(capsys, tmp_path)
