"""Command ``demo``."""

from __future__ import annotations

from pathlib import Path

from stabcli.cli._output import put

LOG = Path(__file__).parents[1] / "demo" / "bad_batch.jsonl"
"""The log that comes with the package."""


def demo() -> int:
    """Scan a bundled log of a small run that met a bad batch."""
    from stabcli.cli.scan import show
    from stabcli.diagnosis import diagnose
    from stabcli.readers import read_runs

    runs, _ = read_runs([str(LOG)])
    put(f"$ stabcli scan {LOG.name}\n")
    return show([diagnose(run) for run in runs], "console")
