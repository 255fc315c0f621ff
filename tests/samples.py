"""The sample logs, for the tests that go through all of them."""

from pathlib import Path

from tests.conftest import SAMPLES

NOT_READERS = {"scripts", "replay"}
"""Folders of sample_logs/ that hold no logs of a reader: ``replay/`` is a checkpoint and a batch."""
NOT_LOGS = {".md", ".py"}
"""Endings of files that lie beside the logs."""


def samples() -> list[Path]:
    """Return the sample logs: files and folders under sample_logs/<reader>/."""
    return sorted(
        path
        for path in SAMPLES.glob("*/*")
        if path.parent.name not in NOT_READERS
        and path.suffix not in NOT_LOGS
        and path.name != "__pycache__"
    )


def name(path: Path) -> str:
    """Return a sample's name: its reader and its file."""
    return str(path.relative_to(SAMPLES))
