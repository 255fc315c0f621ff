"""Delivery: reports to the screen and into files, all of one look at the logs."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stabcli.cli._arguments import choose
from stabcli.cli._output import colour, complain, new_file, plain_ascii, put, width
from stabcli.errors import SettingError

if TYPE_CHECKING:
    from stabcli.report import Outcome

SUMMARY = "GITHUB_STEP_SUMMARY"
"""Variable that names the file whose Markdown GitHub shows on the page of a job."""
SUMMARY_BYTES = 1 << 20
"""Most bytes that a step may put into it; beyond that GitHub shows none of it.

Source: https://docs.github.com/en/actions/reference/limits
"""
BASES = ("GITHUB_WORKSPACE", "CI_PROJECT_DIR")
"""Variables that name the folder which GitHub and GitLab expect files to be relative to."""
FOR_PEOPLE = ("brief", "console", "verdict")
"""Formats that print nothing where no run was read; programs get a document all the same."""
HEAD_BYTES = 4096
"""How much of a file that exists is looked at to see whether it is a report of the same kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A report that was asked for by ``--output``."""

    form: str
    """Its format."""
    path: Path | None
    """The file; None for stdout."""


def targets(asked: Sequence[str], *, force: bool) -> list[Target]:
    """Read ``--output FORMAT:FILE``, before anything else takes time.

    A file that exists is written over where ``force`` says so, where it is empty, or where it is
    a report of the same format that stabcli wrote.

    Raises:
        SettingError: There is no such format, a file cannot be written there, or is in the way.
    """
    from stabcli.report import reports

    found: list[Target] = []
    for text in asked:
        form, colon, name = text.partition(":")
        if not colon or not name.strip():
            raise SettingError(f"--output {text}: no file in it: write FORMAT:FILE")
        choose("--output", form, [r.name for r in reports])
        if name == "-":
            found.append(Target(form=form, path=None))
            continue
        path = Path(name)
        same = path.is_file() and _is_report(path, reports[form].mark)
        new_file(path, force=force or same or (path.exists() and not path.is_file()))
        if any(t.path is not None and _same(t.path, path) for t in found):
            raise SettingError(f"--output {text}: a second report into one file: name another")
        found.append(Target(form=form, path=path))
    return found


def _same(a: Path, b: Path) -> bool:
    return os.path.realpath(a) == os.path.realpath(b)


def _is_report(path: Path, mark: str | None) -> bool:
    """Say whether a file is empty, holds an empty list, or is a report with this mark."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError:
        return False
    return head.strip() in (b"", b"[]") or (mark is not None and mark.encode() in head)


def base() -> str:
    """Return the folder that reports tell files relative to."""
    return next((os.environ[name] for name in BASES if os.environ.get(name)), os.getcwd())


def deliver(outcome: Outcome, shown_as: str, wanted: Sequence[Target]) -> bool:
    """Print one report and write the others; say whether all of them could be written."""
    from stabcli.report import Screen, reports

    done = True
    for target in wanted:
        if target.path is None:
            continue
        try:
            write_file(target.path, reports[target.form].write(outcome, Screen()))
        except OSError as error:
            why = error.strerror or error
            complain(f"{target.path}: cannot be written: {why}: name another file")
            done = False
    screen = Screen(width=width(), colour=colour(), ascii_only=plain_ascii())
    shown = [shown_as, *(t.form for t in wanted if t.path is None)]
    for form in dict.fromkeys(shown):
        if form in FOR_PEOPLE and not outcome.diagnoses:
            continue  # there is nothing to tell, and stderr has said why
        put(reports[form].write(outcome, screen))
    if "github" in (*shown, *(t.form for t in wanted)):
        done &= _summarise(outcome)
    return done


def write_file(path: Path, text: str) -> None:
    """Write a file whole or not at all: what breaks off leaves nothing behind.

    What is no ordinary file, such as a pipe or a device, is written to as it is.

    Raises:
        OSError: It cannot be written.
    """
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        return
    real = Path(os.path.realpath(path))
    handle, name = tempfile.mkstemp(dir=real.parent, prefix=f".{real.name}-")
    unfinished = Path(name)
    try:
        with open(handle, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.write(text)
        mask = os.umask(0)
        os.umask(mask)
        unfinished.chmod(0o666 & ~mask)
        unfinished.replace(real)
    finally:
        with contextlib.suppress(FileNotFoundError):
            unfinished.unlink()


def _summarise(outcome: Outcome) -> bool:
    """Add the Markdown report to the summary of a job on GitHub, as far as there is room."""
    from stabcli.report import Screen, reports
    from stabcli.report.markdown import shortened

    name = os.environ.get(SUMMARY)
    if not name:
        return True
    path = Path(name)
    try:
        there = path.stat().st_size if path.exists() else 0
        text = shortened(reports["markdown"].write(outcome, Screen()), SUMMARY_BYTES - there - 1)
        with path.open("a", encoding="utf-8", newline="\n") as file:
            file.write("\n" * bool(there and text) + text)
    except OSError as error:
        complain(f"{SUMMARY}: {name}: cannot be written: {error.strerror or error}")
        return False
    return True
