"""Command ``schema``."""

from __future__ import annotations

from pathlib import Path

from stabcli.cli._output import put

SCHEMA = Path(__file__).parents[1] / "schema.json"
"""Describes ``--format json``."""


def schema() -> int:
    """Print the JSON Schema of ``--format json``."""
    put(SCHEMA.read_text(encoding="utf-8"))
    return 0
