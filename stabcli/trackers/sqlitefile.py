"""Databases: SQLite files of somebody else, read without a trace and without trust.

Nothing is ever written beside the file. One that nobody is writing to is opened as immutable; one
with a log or a journal of its own beside it, which SQLite would have to play back, is copied
first, all of it, and the copy opened. Only plain columns of plain tables are read: views,
triggers, virtual tables and computed columns could run anything.

Source: sqlite.org/uri.html (``mode``, ``immutable``), sqlite.org/wal.html, sqlite.org/security.html.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

from stabcli.errors import LogError
from stabcli.sources import Source
from stabcli.trackers.values import Faults

MAGIC = b"SQLite format 3\0"
"""First bytes of every database."""
LONGEST = 1 << 26
"""Bytes of one value or row, beyond which a database is taken for broken."""
BESIDE = ("-wal", "-journal")
"""Endings of what SQLite keeps beside a database that is being written to."""

_TRIES = 3
_BROKEN = (sqlite3.Error, UnicodeDecodeError, OverflowError, MemoryError)
"""What SQLite raises over a damaged file: names in it are decoded before anybody asks for them."""
Cell = int | float | str | bytes | None


class Database:
    """An open database; made by ``opened`` only."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.tables: Mapping[str, frozenset[str]] = _tables(connection)
        connection.set_authorizer(_only_reading)

    def rows(
        self, table: str, columns: Sequence[str], faults: Faults
    ) -> Iterator[tuple[int, tuple[Cell, ...]]]:
        """Yield the number and the columns of every row of a table, in the order of insertion.

        Where the file is damaged, what lies behind the damage is read from the end, so that
        only the damaged part is lost; it is told in ``faults``.
        """
        listed = ", ".join(f'"{c}"' for c in columns)
        said = f'SELECT rowid, {listed} FROM "{table}" ORDER BY rowid'  # noqa: S608 - names are ours
        last: int | None = None
        try:
            for row in self._connection.execute(said):
                if not isinstance(row[0], int) or (last is not None and row[0] <= last):
                    raise sqlite3.DatabaseError("its rows are in no order")
                last = row[0]
                yield last, row[1:]
        except _BROKEN as error:
            faults.add(
                (last or 0) + 1, f"table {table}: {_why(error)}: rows from here on are damaged"
            )
        else:
            return
        behind: list[tuple[int, tuple[Cell, ...]]] = []
        with contextlib.suppress(*_BROKEN):
            for row in self._connection.execute(f"{said} DESC"):
                too_far = last is not None and row[0] <= last
                if not isinstance(row[0], int) or too_far or (behind and row[0] >= behind[-1][0]):
                    break
                behind.append((row[0], row[1:]))
        yield from reversed(behind)


@contextlib.contextmanager
def opened(path: Path, shown: str, notes: list[str]) -> Iterator[Database]:
    """Open a database for reading.

    Args:
        path: The file.
        shown: What messages call it.
        notes: What had to be decided is added to them.

    Raises:
        LogError: It is no database, broken from its first page, or cannot be read.
    """
    real = Path(os.path.realpath(path))
    with contextlib.ExitStack() as stack:
        try:
            before = _state(real)
            if len(before) > 1:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="stabcli-"))
                place, changing = _copied(real, Path(folder))
                uri = f"file:{quote(str(place))}"
                beside = " and ".join(f"{real.name}{b}" for b in BESIDE if b in before)
                notes.append(
                    f"the database is in use, or was when its writer died: {beside} read too"
                )
                if changing:
                    notes.append("it was written to while it was read: the newest rows may miss")
            else:
                uri = f"file:{quote(str(real))}?mode=ro&immutable=1"
            connection = sqlite3.connect(uri, uri=True, isolation_level=None)
            stack.callback(connection.close)
            _guard(connection)
            database = Database(connection)
        except _BROKEN as error:
            raise LogError(
                f"{shown}: a broken database: {_why(error)}: copy it again from where it was written"
            ) from None
        except OSError as error:
            raise LogError(
                f"{shown}: cannot be read: {error.strerror or error}: check it and the free space"
                " for temporary files"
            ) from None
        yield database
        if len(before) == 1 and _state(real) != before:
            notes.append("it was written to while it was read: read it again for the newest rows")


def holds(source: Source, table: str, columns: set[str], words: Sequence[bytes]) -> bool:
    """Say whether a source is a database with a table of these columns.

    Args:
        source: Any file or folder.
        table: Name of the table.
        columns: Columns that it must have.
        words: What stands in the first page of such a database; they decide where it is too
            broken to be opened, so that its reader can say so.
    """
    if source.is_folder or not source.head.startswith(MAGIC):
        return False
    status = source.path.stat()
    known = _known(source.path, status.st_size, status.st_mtime_ns)
    if known is None:
        return all(word in source.head for word in words)
    return columns <= known.get(table, frozenset())


@lru_cache(maxsize=16)
def _known(path: Path, size: int, changed: int) -> Mapping[str, frozenset[str]] | None:  # noqa: ARG001 - the key
    try:
        with opened(path, str(path), []) as database:
            return database.tables
    except LogError:
        return None


def _state(path: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of a database and of what is being written beside it, by ending."""
    found: dict[str, tuple[int, int]] = {}
    for ending in ("", *BESIDE):
        with contextlib.suppress(FileNotFoundError):
            status = path.with_name(path.name + ending).stat()
            if not ending or status.st_size:
                found[ending] = status.st_size, status.st_mtime_ns
    return found


def _copied(path: Path, folder: Path) -> tuple[Path, bool]:
    """Copy a database and what lies beside it; say whether it changed on every try."""
    target = folder / "copy.db"
    for _ in range(_TRIES):
        before = _state(path)
        for ending in ("", *BESIDE):
            copy = target.with_name(target.name + ending)
            copy.unlink(missing_ok=True)
            if ending in before:
                shutil.copyfile(path.with_name(path.name + ending), copy)
        if _state(path) == before:
            return target, False
    return target, True


def _guard(connection: sqlite3.Connection) -> None:
    """Switch off what a database could make SQLite do besides reading plain rows."""
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    for said in ("trusted_schema=OFF", "query_only=ON", "cell_size_check=ON", "mmap_size=0"):
        connection.execute(f"PRAGMA {said}")


def _tables(connection: sqlite3.Connection) -> dict[str, frozenset[str]]:
    """Return the plain tables and their plain columns; a virtual table or a view is none."""
    found: dict[str, frozenset[str]] = {}
    said = "SELECT name, sql FROM sqlite_master WHERE type = 'table'"
    for name, made in connection.execute(said).fetchall():
        if not isinstance(name, str) or not isinstance(made, str) or '"' in name:
            continue
        if made.lstrip()[:14].upper().startswith("CREATE VIRTUAL"):
            continue
        columns = connection.execute(f'PRAGMA table_xinfo("{name}")').fetchall()
        found[name] = frozenset(c[1] for c in columns if c[6] == 0 and isinstance(c[1], str))
    return found


def _only_reading(action: int, *_: object) -> int:
    """Let through what a plain SELECT needs and nothing else."""
    plain = action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ)
    return sqlite3.SQLITE_OK if plain else sqlite3.SQLITE_DENY


def _why(error: BaseException) -> str:
    """Return what an error says in one short line: it may quote the file."""
    return " ".join(str(error).split())[:160]
