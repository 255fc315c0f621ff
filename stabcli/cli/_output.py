"""Output: data to stdout, everything else to stderr, and no log can speak to the terminal."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from time import monotonic

from stabcli.errors import SettingError
from stabcli.units import printable

WIDTH = 80
"""Columns of a report that does not go to a terminal."""


def complain(message: str) -> None:
    """Print one line about what went wrong."""
    with contextlib.suppress(BrokenPipeError):
        print(f"stabcli: {printable(message)}", file=sys.stderr, flush=True)


class Patience:
    """Says on a terminal that a walk through folders goes on, once it takes long."""

    def __init__(self, first: float = 1.0, then: float = 10.0) -> None:
        self.due = monotonic() + first
        self.then = then

    def __call__(self, files: int, path: Path) -> None:
        """Take note that so many files were looked at, and which is next."""
        if monotonic() < self.due or not sys.stderr.isatty():
            return
        self.due = monotonic() + self.then
        complain(
            f"{path.parent}: {files:,} files and folders looked into so far: to be done sooner, stop"
            " with Ctrl-C and give the folders of the runs"
        )


def put(text: str) -> None:
    """Print a report or other data."""
    sys.stdout.write(text if text.endswith("\n") or not text else text + "\n")
    sys.stdout.flush()


def detach() -> None:
    """Point stdout nowhere: its reader has gone, and nobody wants to hear of it."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def width() -> int:
    """Return the columns to fill: those of the terminal, or 80."""
    if not sys.stdout.isatty():
        return WIDTH
    import shutil

    return max(40, shutil.get_terminal_size((WIDTH, 24)).columns)


def colour() -> bool:
    """Say whether to use colours: on a terminal, unless NO_COLOR is set."""
    if os.environ.get("NO_COLOR"):
        return False
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def plain_ascii() -> bool:
    """Say whether stdout cannot show more than ASCII."""
    return (sys.stdout.encoding or "ascii").lower().replace("-", "") not in ("utf8", "utf16")


def new_file(path: Path, *, force: bool) -> Path:
    """Return the path of a file to write, which must not exist yet.

    Raises:
        SettingError: It exists and ``force`` was not given, or its folder does not exist.
    """
    if path.is_dir():
        raise SettingError(f"{path}: is a folder: name a file in it")
    if path.exists() and not force:
        raise SettingError(f"{path}: exists already: --force writes over it")
    if not path.parent.is_dir():
        raise SettingError(f"{path}: there is no folder {path.parent}: make it first")
    return path
