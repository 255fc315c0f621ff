"""Readers: each turns one kind of log into readings.

A reader is a file ``readers/<name>.py`` holding ``matches`` (is this source mine?) and one
function of the file's name under ``@reader``. The names a framework gives its metrics
live in that same file and nowhere else.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from stabcli.assembly import Options, Reading, assemble
from stabcli.errors import LogError, NothingThere, UnknownFormat
from stabcli.registry import Documented, Registry
from stabcli.run import Run
from stabcli.sources import Source, open_source

Matches = Callable[[Source], bool]
Read = Callable[[Source], Iterator[Reading]]

BAD_SHOWN = 5
"""Bad lines that a reader keeps with number and reason; the rest are only counted."""


@dataclass(frozen=True, slots=True)
class Reader(Documented):
    """A way to read one kind of log; made by ``@reader`` only."""

    read: Read
    """Source -> the runs in it."""
    matches: Matches
    """Says from the head of a file, or from the names in a folder, whether a source is its own."""
    writes: str
    """What writes such logs, for the table of formats."""

    @property
    def function(self) -> Read:
        """The function it is made of."""
        return self.read


readers: Registry[Reader] = Registry(__name__, "reader")


def reader(matches: Matches, *, writes: str) -> Callable[[Read], Read]:
    """Register the function below as the reader of the sources that ``matches`` claims."""

    def register(read: Read) -> Read:
        readers.add(Reader(read, matches, writes))
        return read

    return register


def read_runs(
    logs: list[str], *, options: Options | None = None, format_name: str | None = None
) -> tuple[list[Run], list[LogError]]:
    """Read every run of every log.

    Args:
        logs: Files, folders, glob patterns, or ``-`` for standard input.
        options: What the user decided about names and facts.
        format_name: The reader to use, where the user chose one.

    Returns:
        The runs in the order given, and an error for whatever was left unread in folders:
        ``UnknownFormat`` for files that are no logs, another ``LogError`` for broken ones.

    Raises:
        LogError: A log cannot be read, more than one reader claims it, or a pattern matches
            nothing.
        UnknownFormat: No reader claims a log.
    """
    options = options or Options()
    runs: list[Run] = []
    unread: list[LogError] = []
    for shown in (path for log in logs for path in expand(log)):
        source = open_source(shown)
        chosen = _choose(source, format_name)
        if chosen is None:
            runs += _read_folder(source, options, unread)
        else:
            runs += _read(source, chosen, options, unread)
    return runs, unread


def expand(log: str) -> list[str]:
    """Return the paths a pattern stands for, or the path itself.

    Raises:
        NothingThere: The pattern matches nothing.
    """
    if log == "-" or os.path.lexists(log) or not glob.has_magic(log):
        return [log]
    paths = sorted(glob.glob(log, recursive=True))
    if not paths:
        raise NothingThere(f"{log}: no file matches this pattern: check it, or quote it less")
    return paths


def _choose(source: Source, format_name: str | None) -> Reader | None:
    """Return the one reader that claims the source; None for a folder nobody claims as a whole."""
    if format_name is not None:
        return readers[format_name]
    claimed = [r for r in readers if r.matches(source)]
    if len(claimed) == 1:
        return claimed[0]
    if claimed:
        names = " and ".join(r.name for r in claimed)
        raise LogError(f"{source.shown}: {names} both claim it: choose one with --reader")
    if source.is_folder:
        return None
    known = ", ".join(r.name for r in readers)
    binary = b"\0" in source.head and not source.head.startswith((b"\xff\xfe", b"\xfe\xff"))
    what = "a binary file that" if binary else "a format that"
    raise UnknownFormat(f"{source.shown}: {what} no reader knows: --reader takes one of {known}")


def _read(source: Source, chosen: Reader, options: Options, unread: list[LogError]) -> list[Run]:
    """Read the runs of one source; of several, one that cannot be assembled spoils no other."""
    runs: list[Run] = []
    failed: list[LogError] = []
    for reading in chosen.read(source):
        try:
            runs.append(assemble(reading, source, chosen.name, options))
        except LogError as error:
            failed.append(error)
    if runs:
        unread += failed
        return runs
    if failed:
        raise failed[0]
    raise LogError(f"{source.shown}: {chosen.name} found no logged step in it: check the file")


def _read_folder(
    source: Source, options: Options, unread: list[LogError], above: frozenset[Path] = frozenset()
) -> list[Run]:
    """Read what lies in a folder, going down to the first level that a reader claims."""
    above |= {source.path.resolve()}
    runs: list[Run] = []
    skipped: list[str] = []
    try:
        paths = sorted(p for p in source.path.iterdir() if not p.name.startswith("."))
    except OSError as error:
        raise LogError(f"{source.shown}: cannot be listed: {error.strerror}") from error
    for path in paths:
        try:
            inner = open_source(path)
            chosen = _choose(inner, None)
            if chosen is not None:
                runs += _read(inner, chosen, options, unread)
            elif path.resolve() not in above:  # else a link back to a folder we are in
                runs += _named(_read_folder(inner, options, unread, above), path.name)
        except UnknownFormat:
            skipped.append(path.name)
        except LogError as error:
            unread.append(error)
    if skipped:
        left_out = f"{source.shown}: not logs, left out: {', '.join(skipped)}"
        unread.append(UnknownFormat(left_out))
    return runs


def _named(runs: list[Run], folder: str) -> list[Run]:
    return [replace(r, name=f"{folder}/{r.name}") for r in runs]


def is_text(head: bytes) -> bool:
    """Say whether bytes can be a text file."""
    return b"\0" not in head


def sibling(source: Source, name: str) -> Path | None:
    """Return the file ``name`` beside a source, where there is one."""
    path = Path(source.shown).parent / name
    return path if source.shown != "-" and path.is_file() else None
