"""Gathering: what was found in files and folders, before anything is joined."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from stabcli.errors import LogError
from stabcli.run import Run


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


def listed(left: Iterable[LeftOut]) -> list[str]:
    """Return a line for each folder and reason, with all that was left out of it for that."""
    lines: dict[tuple[Path, str], list[str]] = {}
    for one in dict.fromkeys(left):
        lines.setdefault((one.path.parent, one.why), []).append(one.path.name)
    return [f"{at}: {why}, left out: {', '.join(n)}" for (at, why), n in sorted(lines.items())]
