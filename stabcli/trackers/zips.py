"""Archives: files in a zip, read line by line and never beyond a bound."""

from __future__ import annotations

import contextlib
import lzma
import zipfile
import zlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from stabcli.errors import LogError
from stabcli.sources import Source
from stabcli.trackers.values import Faults

MAGIC = b"PK\x03\x04"
LONGEST_LINE = 1 << 24
"""Bytes of a line; a longer one is left out."""
FREE = 1 << 26
"""Bytes that may be unpacked however small the archive is."""
RATIO = 200
"""Unpacked bytes for one of the archive, beyond which it is made to fill a disk, not to be read.

Logs of numbers pack by a factor of ten to thirty; deflate reaches 1,032 on zeros.
"""

_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    NotImplementedError,  # a compression that is not built in
    RuntimeError,  # a password
    ValueError,
)


def is_archive(source: Source) -> bool:
    """Say whether a source is an archive, and not a JSON file.

    Raises:
        LogError: It is a folder.
    """
    if source.is_folder:
        raise LogError(f"{source.shown}: a folder: give the archive or the JSON file in it")
    return source.head.startswith(MAGIC)


def holds(source: Source, member: str, *others: str) -> bool:
    """Say whether a source is an archive with these files; of a torn one its head decides."""
    if source.is_folder or not source.head.startswith(MAGIC):
        return False
    status = source.path.stat()
    names = _names(source.path, status.st_size, status.st_mtime_ns)
    wanted = (member, *others)
    if names is None:
        return all(name.encode() in source.head for name in wanted)
    return set(wanted) <= names


@lru_cache(maxsize=16)
def _names(path: Path, size: int, changed: int) -> frozenset[str] | None:  # noqa: ARG001 - the key
    try:
        with zipfile.ZipFile(path) as archive:
            return frozenset(archive.namelist())
    except _BROKEN:
        return None


def lines(source: Source, member: str, faults: Faults) -> Iterator[tuple[int, bytes]]:
    """Yield number and bytes of each line of a file in an archive, as far as it can be unpacked.

    Raises:
        LogError: The archive is broken from the start, holds no such file, or unpacks to much
            more than any log.
    """
    most = max(FREE, RATIO * source.path.stat().st_size)
    number = unpacked = 0
    try:
        with zipfile.ZipFile(source.path) as archive, archive.open(member) as file:
            while line := file.readline(LONGEST_LINE):
                number += 1
                unpacked += len(line)
                whole = len(line) < LONGEST_LINE or line.endswith(b"\n")
                if whole:
                    yield number, line
                else:
                    faults.add(number, f"{member}: a line of more than {LONGEST_LINE:,} bytes")
                while not whole and unpacked <= most:
                    more = file.readline(LONGEST_LINE)
                    unpacked += len(more)
                    whole = not more or more.endswith(b"\n")
                if unpacked > most:
                    raise LogError(
                        f"{source.shown}: {member} unpacks to more than {RATIO} times the archive:"
                        " no log does; not read on"
                    )
    except LogError:
        raise
    except KeyError:
        raise LogError(f"{source.shown}: no {member} in it: give an offline archive") from None
    except _BROKEN as error:
        if not number:
            raise LogError(
                f"{source.shown}: a broken archive: {error}: copy it again, or write it again"
            ) from None
        faults.add(number + 1, f"{member}: cannot be unpacked further: {error}")


def content(source: Source, member: str, most: int = 1 << 24) -> bytes:
    """Return a small file of an archive; nothing where it is missing, broken or larger."""
    with (
        contextlib.suppress(KeyError, *_BROKEN),
        zipfile.ZipFile(source.path) as archive,
        archive.open(member) as file,
    ):
        data = file.read(most + 1)
        return data if len(data) <= most else b""
    return b""
