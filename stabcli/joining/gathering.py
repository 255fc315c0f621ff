"""Gathering: what was found in files and folders, before anything is joined."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from stabcli.errors import LogError
from stabcli.joining.disk import is_checkpoint
from stabcli.run import Run

NOT_LOGS = "not logs"
"""Why a file is left out that no reader knows and that says nothing of troubles."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file or folder that tells of no run."""

    path: Path
    why: str


@dataclass(slots=True)
class Gathered:
    """What was found."""

    runs: list[Run] = field(default_factory=list)
    configs: list[str] = field(default_factory=list)
    """Configuration files."""
    texts: list[str] = field(default_factory=list)
    """Files of text that are no log."""
    left: list[LeftOut] = field(default_factory=list)
    """What else is no log."""
    failed: list[LogError] = field(default_factory=list)
    """Logs that cannot be read."""
    folders: list[str] = field(default_factory=list)
    """Folders that were given and walked through."""

    def add(self, other: Gathered) -> None:
        """Take in what was found elsewhere."""
        self.runs += other.runs
        self.configs += other.configs
        self.texts += other.texts
        self.left += other.left
        self.failed += other.failed
        self.folders += other.folders


def _whole(left: LeftOut, tops: Collection[Path]) -> LeftOut:
    """Return the checkpoint below the folders given that a file is part of, or the file."""
    above = takewhile(lambda p: p not in tops, left.path.parents)
    folder = next((p for p in above if is_checkpoint(p.name)), None)
    if folder is not None and left.why == NOT_LOGS:
        return LeftOut(folder, "checkpoints")
    if is_checkpoint(left.path.name) and left.why == NOT_LOGS:
        return LeftOut(left.path, "checkpoints")
    return left


def listed(left: Iterable[LeftOut], folders: Iterable[str]) -> list[str]:
    """Return a line for each folder and reason, with all that was left out of it for that.

    Of a checkpoint in one of the folders that were given all that is no log is named as one.
    """
    tops = {Path(folder) for folder in folders}
    lines: dict[tuple[Path, str], list[str]] = {}
    for one in dict.fromkeys(_whole(one, tops) for one in left):
        lines.setdefault((one.path.parent, one.why), []).append(one.path.name)
    return [f"{at}: {why}, left out: {', '.join(n)}" for (at, why), n in sorted(lines.items())]
