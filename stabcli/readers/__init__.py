"""Readers: each turns one kind of log into readings.

A reader is a file ``readers/<name>.py`` holding ``matches`` (is this source mine?) and one
function of the file's name under ``@reader``. The names a framework gives its metrics
live in that same file and nowhere else.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stabcli.assembly import Options, Reading, assemble
from stabcli.configs import hydra_configs, is_configuration
from stabcli.errors import LogError, NoLog, NothingThere, UnknownFormat
from stabcli.joining import (
    NOT_LOGS,
    Gathered,
    LeftOut,
    bannered,
    configured,
    joined,
    listed,
    saved_on_disk,
    troubled,
)
from stabcli.registry import Documented, Registry
from stabcli.run import Run
from stabcli.sources import (
    Identity,
    Source,
    archive,
    everything,
    identity,
    in_order,
    open_source,
)

Matches = Callable[[Source], bool]
Read = Callable[[Source], Iterator[Reading]]
Takes = Callable[[Path], Iterable[Path]]
Watch = Callable[[int, Path], None]

MOST_FILES = 20_000
"""Files and folders below one folder that are looked into."""
DEEPEST = 32
"""Folders within folders that are looked into."""
_KERNELS = ("/dev", "/proc", "/sys")
"""Folders of no files; what looks like one there may block, or change while it is looked at."""
_CODE = frozenset(
    [".py", ".pyc", ".sh", ".c", ".h", ".cc", ".cpp", ".cu", ".cuh", ".rs", ".go", ".js", ".ts",
     ".css", ".html"]
)  # fmt: skip
"""Endings of files that no trainer logs into; trackers keep whole projects of them beside a run."""
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
    takes: Takes | None = None
    """Files of a folder that ``matches`` claims which are read with it; None is all below it."""

    @property
    def function(self) -> Read:
        """The function it is made of."""
        return self.read


readers: Registry[Reader] = Registry(__name__, "reader")


def reader(matches: Matches, *, writes: str, takes: Takes | None = None) -> Callable[[Read], Read]:
    """Register the function below as the reader of the sources that ``matches`` claims."""

    def register(read: Read) -> Read:
        readers.add(Reader(read, matches, writes, takes))
        return read

    return register


def read_runs(
    logs: Sequence[str],
    *,
    options: Options | None = None,
    format_name: str | None = None,
    join: bool = True,
) -> tuple[list[Run], list[LogError]]:
    """Read every run of every log.

    Args:
        logs: Files, folders, glob patterns, or ``-`` for standard input.
        options: What the user decided about names and facts.
        format_name: The reader to use, where the user chose one.
        join: Whether files that belong to one run become one run (``stabcli.joining``).

    Returns:
        The runs in the order given, and an error for whatever was left unread in folders:
        ``UnknownFormat`` for files that are no logs, another ``LogError`` for broken ones.

    Raises:
        LogError: A log cannot be read, more than one reader claims it, or a pattern matches
            nothing.
        UnknownFormat: No reader claims a log.
    """
    found = Gathered()
    for path in (path for log in logs for path in expand(log)):
        found.add(gather(path, options=options, format_name=format_name))
    return settle(found, options=options, join=join)


def settle(
    found: Gathered, *, options: Options | None = None, join: bool = True
) -> tuple[list[Run], list[LogError]]:
    """Join what belongs to one run, and give runs the configurations beside them.

    Returns:
        The runs, and an error for whatever was left unread, as of ``read_runs``.
    """
    runs = joined(found.runs) if join else list(found.runs)
    given = frozenset(options.facts) if options else frozenset[str]()
    runs = saved_on_disk(bannered(runs), found.folders)
    runs, unused = configured(runs, found.configs, given)
    runs, silent = troubled(runs, found.texts)
    left = [*found.left, *unused, *silent]
    return runs, [*found.failed, *(UnknownFormat(line) for line in listed(left, found.folders))]


def gather(
    path: str,
    *,
    options: Options | None = None,
    format_name: str | None = None,
    watch: Watch | None = None,
) -> Gathered:
    """Read one path as it is, before anything is joined.

    ``watch`` is told, before each file, how many were looked at in a folder, and which is next.

    Raises:
        LogError: The path cannot be read, or more than one reader claims it.
        UnknownFormat: No reader claims it.
    """
    options = options or Options()
    source = open_source(path)
    found = Gathered()
    if source.is_folder and format_name is None:
        found.folders.append(source.shown)
        Walk(options, found, watch).folder(source, "", "")
    elif format_name is None and is_configuration(source):
        found.configs.append(source.shown)
    else:
        found.runs += _read(source, _choose(source, format_name), options, found.failed)
        if source.is_folder and (takes := readers[format_name or ""].takes) is not None:
            known = {identity(p) for p in takes(source.path)}
            others = (
                p for p in everything(source.path) if not p.is_dir() and identity(p) not in known
            )
            found.left += [LeftOut(p, f"not for --reader {format_name}") for p in others]
    return found


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


_OF_LINES = frozenset({"jsonl", "csv", "generic-text"})
"""Readers that may take the lines in an archive that is not compressed for a log."""


def _choose(source: Source, format_name: str | None) -> Reader:
    """Return the one reader that claims the source."""
    if format_name is not None:
        return readers[format_name]
    claimed = [r for r in readers if r.matches(source)]
    packed = archive(source.head)
    if packed is not None and {r.name for r in claimed} <= _OF_LINES:
        raise UnknownFormat(f"{source.shown}: {packed}: unpack it and give the log in it")
    if len(claimed) == 1:
        return claimed[0]
    if claimed:
        names = " and ".join(r.name for r in claimed)
        raise LogError(f"{source.shown}: {names} both claim it: choose one with --reader")
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


class Walk:
    """A walk through a folder and all below it: each file is read once, or named as left out."""

    def __init__(self, options: Options, found: Gathered, watch: Watch | None = None) -> None:
        self.options = options
        self.found = found
        self.watch = watch
        self.seen: set[Identity] = set()
        """Folders that were walked, and files that were read or that a reader took."""
        self.files = 0
        self.full = False
        """Whether it was told that no more are looked into."""

    def folder(self, source: Source, above: str, prefix: str, depth: int = 0) -> None:
        """Read a folder.

        Args:
            source: The folder.
            above: What stands before the name of a run that the folder as a whole is.
            prefix: What stands before the name of a run that one of its files is.
            depth: How many folders lie above it in this walk.

        Raises:
            LogError: It cannot be listed, or the reader that takes all of it finds nothing.
        """
        self.seen.add(identity(source.path))
        try:
            paths = in_order(source.path)
        except OSError as error:
            raise LogError(f"{source.shown}: cannot be listed: {error.strerror}") from error
        if not paths:
            self.found.left.append(LeftOut(source.path, "an empty folder"))
        before = len(self.found.runs)
        barren, whole = self._claimed(source, above)
        self.found.configs += [str(p) for p in hydra_configs(source.path)]
        for path in () if whole else paths:
            try:
                self._entry(path, prefix, depth)
            except LogError as error:
                self.found.failed.append(error)
            except OSError as error:  # it was there a moment ago, or may not be looked at
                why = f"{path}: cannot be read: {error.strerror or error}: check its permissions"
                self.found.failed.append(LogError(why))
        if depth == 0 and whole and barren and len(self.found.runs) == before:
            raise barren[0]
        if len(self.found.runs) > before:
            reasons = (str(error).partition(": ")[2] for error in barren)
            self.found.left += [LeftOut(source.path, why) for why in reasons]
        else:
            self.found.failed += barren

    def _claimed(self, source: Source, above: str) -> tuple[list[LogError], bool]:
        """Let the readers that know the folder read what is theirs.

        Returns:
            Their complaints, and whether one of them takes all that is in it.
        """
        barren: list[LogError] = []
        whole = False
        for one in (r for r in readers if _knows(r, source)):
            paths = one.takes(source.path) if one.takes else everything(source.path)
            theirs = {identity(p) for p in paths if p.exists()}
            if theirs & self.seen:
                continue  # read from a folder above
            self.seen |= theirs
            whole = whole or one.takes is None
            self.files += len(theirs)
            try:
                runs = _read(source, one, self.options, self.found.failed)
            except LogError as error:
                barren.append(error)
            else:
                self.found.runs += named(runs, above)
        return barren, whole

    def _entry(self, path: Path, prefix: str, depth: int) -> None:
        left = self.found.left
        if self.files >= MOST_FILES:
            told, self.full = self.full, True
            if not told:
                raise LogError(
                    f"{path}: after {MOST_FILES:,} files and folders neither this nor what comes"
                    " after it was looked into: give the folders of the runs"
                )
            return
        if self.watch is not None:
            self.watch(self.files, path)
        if path.is_symlink() and not path.exists():
            left.append(LeftOut(path, "a link to nothing"))
            return
        if identity(path) in self.seen:  # taken by a reader, or a link to what was read
            return
        if path.is_dir():
            if str(path.resolve()) in _KERNELS:
                left.append(LeftOut(path, "no files: what the kernel shows of itself"))
                return
            if depth >= DEEPEST:
                raise LogError(f"{path}: {DEEPEST} folders deep: give this folder by itself")
            self.files += 1
            self.folder(open_source(path), prefix, f"{prefix}{path.name}/", depth + 1)
            return
        self.seen.add(identity(path))
        self.files += 1
        if not path.is_file():
            left.append(LeftOut(path, "a pipe or a device"))
            return
        if path.suffix in _CODE:
            left.append(LeftOut(path, "source code"))
            return
        if path.stat().st_size == 0:
            left.append(LeftOut(path, "empty"))
            return
        source = open_source(path, pipes=False)
        if is_configuration(source):
            self.found.configs.append(source.shown)
            return
        try:
            runs = _read(source, _choose(source, None), self.options, self.found.failed)
        except UnknownFormat:
            if is_text(source.head):
                self.found.texts.append(source.shown)
            else:
                left.append(LeftOut(path, NOT_LOGS))
        except LogError as error:
            if not (isinstance(error, NoLog) or source.name.endswith(".json")):
                raise
            left.append(LeftOut(path, f"no log ({_reason(error, source)})"))
        else:
            self.found.runs += named(runs, prefix)


def _knows(one: Reader, folder: Source) -> bool:
    """Say whether a reader claims a folder; not where it may not look into it."""
    try:
        return one.matches(folder)
    except OSError:
        return False


def _reason(error: LogError, source: Source) -> str:
    """Return what is wrong, without where and what to do."""
    return str(error).removeprefix(f"{source.shown}: ").partition(": ")[0]


def named(runs: list[Run], prefix: str) -> list[Run]:
    """Return runs with a prefix before their names."""
    return [replace(run, name=prefix + run.name) for run in runs]


def is_text(head: bytes) -> bool:
    """Say whether bytes can be a text file."""
    return b"\0" not in head


def sibling(source: Source, name: str) -> Path | None:
    """Return the file ``name`` beside a source, where there is one."""
    path = Path(source.shown).parent / name
    return path if source.shown != "-" and path.is_file() else None
