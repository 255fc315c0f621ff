"""Places: the file and line of a finding, as other programs address them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

from stabcli.rules import Finding
from stabcli.run import Run

HEAD_BYTES = 1 << 16
"""How much of a file is looked at to see whether it has lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A file, and a line in it."""

    path: str
    """Relative to the base where it lies below it, with forward slashes; empty for stdin."""
    line: int | None
    """Line from 1; None where the file has no lines, or the row does not say."""

    @property
    def uri(self) -> str:
        """The path as a relative reference (RFC 3986)."""
        quoted = quote(self.path, errors="surrogateescape")
        head, _, _ = quoted.partition("/")
        return f"./{quoted}" if ":" in head else quoted


def place(run: Run, finding: Finding | None, base: str) -> Place:
    """Return where a finding stands, or the log where there is no finding.

    What a row counts in may be lines or records: only a file that shows itself to be text with
    lines gets a line, so that nobody is sent to a line which is something else.
    """
    if run.source == "-":
        return Place(path="", line=None)
    path = Path(run.source)
    if finding is not None and finding.file:
        path = Path(os.path.normpath(path / finding.file))
    line = finding.line if finding is not None and _is_lines(path) else None
    return Place(path=relative(path, base), line=line)


def relative(path: Path, base: str) -> str:
    """Return a path relative to a folder, with forward slashes; with ``..`` where it is not in it."""
    try:
        return Path(os.path.relpath(path, base)).as_posix()
    except ValueError:  # another drive
        return path.as_posix()


def _is_lines(path: Path) -> bool:
    """Say whether a file is text of more than one line; a packed or binary one has none."""
    try:
        about = path.stat()
    except OSError:
        return False
    return _has_lines(os.path.abspath(path), about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=1024)
def _has_lines(path: str, changed: int, size: int) -> bool:
    """Look at a file once, as long as it does not change."""
    del changed
    try:
        with open(path, "rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError:
        return False
    return b"\0" not in head and (b"\n" in head or size <= HEAD_BYTES)
