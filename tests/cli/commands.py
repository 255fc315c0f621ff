"""The command line as a user meets it, run in this process."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stabcli.cli import run


@dataclass(frozen=True)
class Result:
    """What a command printed, and how it ended."""

    status: int
    out: str
    err: str


class Stabcli:
    """Runs commands; the working directory is a new folder."""

    def __init__(self, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        self._capsys = capsys
        self.folder = folder

    def __call__(self, *arguments: str | Path) -> Result:
        self._capsys.readouterr()
        status = run([str(a) for a in arguments])
        shown = self._capsys.readouterr()
        return Result(status, shown.out, shown.err)

    def log(self, name: str, rows: Iterable[Mapping[str, Any]]) -> Path:
        """Write a log of JSON lines into the folder; return its name."""
        path = self.folder / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return Path(name)

    def healthy(self, name: str = "healthy.jsonl", n: int = 400) -> Path:
        """Write a healthy log."""
        noise = np.random.default_rng(0).normal(0, 0.01, n)
        return self.log(name, ({"step": i, "loss": 2 + noise[i]} for i in range(n)))

    def spiked(self, name: str = "spiked.jsonl", n: int = 400) -> Path:
        """Write a log whose loss leaps at step 300 for three steps."""
        noise = np.random.default_rng(0).normal(0, 0.01, n)
        rows = ({"step": i, "loss": 9.1 if 300 <= i < 303 else 2 + noise[i]} for i in range(n))
        return self.log(name, rows)
