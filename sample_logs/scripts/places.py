"""Where samples lie, when their clock starts, and how a row is written."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

SAMPLES = Path(__file__).resolve().parent.parent
"""The folder ``sample_logs``."""

EPOCH = 1767254400.0
"""2026-01-01 08:00 UTC: when the clock of every sample starts."""


def out_path(default: str, description: str | None = None) -> Path:
    """Return where to write: after ``--out``, or the sample's own place."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=SAMPLES / default, help="default: %(default)s")
    path: Path = parser.parse_known_args()[0].out
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def dump(row: dict[str, Any]) -> str:
    """Return a row as a line of JSON, as ``json.dumps`` writes it."""
    return json.dumps(row) + "\n"
