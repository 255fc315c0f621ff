"""Chunks: a file as pieces that end at line ends, however long it or one of its lines is."""

from __future__ import annotations

import codecs
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

CHUNK = 4 << 20
"""Bytes read at once; a chunk is longer only by the rest of its last line."""
LONGEST_LINE = 64 << 20
"""Bytes of a line that is still read. No logged step is longer; what is, is no log."""

_WINDOW = 1 << 18  # numpy passes over so much at a time, so that their results stay in the cache
_KEPT = (
    31 << 20
)  # bytes of the largest block that glibc may be made to keep for the next of its size
_PROBE = 1 << 16  # bytes before the end of a chunk in which a line end is looked for
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Some whole lines of a file, or one line that is too long to be read."""

    data: bytes
    """The lines with their ends; empty for a line that is too long."""
    first: int
    """Number of its first line, from 1."""
    lines: int
    """How many lines it holds."""
    cut: bool = False
    """Whether its last line has no line end: the file ends inside it."""
    ends: np.ndarray | None = None
    """Where its line ends stand, if that was asked for."""


def chunks(
    path: Path, *, size: int = CHUNK, longest: int = LONGEST_LINE, ends: bool = False
) -> Iterator[Chunk]:
    """Read a file piece by piece, UTF-16 as UTF-8 and without byte order mark.

    Args:
        path: The file.
        size: Bytes read at once.
        longest: Bytes of the longest line that is read.
        ends: Whether to tell where the lines end, and not only how many there are.
    """
    bytes(_KEPT)  # for the allocator, which fetches blocks anew that are larger than any freed yet
    with _opened(path) as file:
        line = 1
        stop = os.fstat(file.fileno()).st_size  # a log may still be written to: one state of it
        while data := file.read(min(_length(file, size), max(0, stop - file.tell()))):
            left = max(0, stop - file.tell())
            rest = b"" if data.endswith(b"\n") else file.readline(min(longest, left))
            data = data + rest if rest else data
            too_long = len(rest) == longest and not rest.endswith(b"\n")
            if too_long:
                data = data[: data.rfind(b"\n") + 1]
            cut = not too_long and not data.endswith(b"\n")
            at = positions(data, ord("\n")) if ends else None
            lines = (count(data, ord("\n")) if at is None else len(at)) + cut
            if data:
                yield Chunk(data=data, first=line, lines=lines, cut=cut, ends=at)
            line += lines
            if too_long:
                _skip_line(file, size)
                yield Chunk(data=b"", first=line, lines=1)
                line += 1


def _length(file: IO[bytes], size: int) -> int:
    """Return how many of the next ``size`` bytes end at a line end, without a copy of them."""
    start = file.tell()
    probe = min(size, _PROBE)
    file.seek(start + size - probe)
    end = file.read(probe).rfind(b"\n") + 1
    file.seek(start)
    return size - probe + end if end else size


def count(data: bytes, byte: int) -> int:
    """Count a byte, several times faster than ``bytes.count`` does."""
    array = np.frombuffer(data, np.uint8)
    windows = range(0, len(array), _WINDOW)
    return sum(int(np.count_nonzero(array[i : i + _WINDOW] == byte)) for i in windows)


def positions(data: bytes, byte: int) -> np.ndarray:
    """Return where a byte stands, as int64."""
    array = np.frombuffer(data, np.uint8)
    windows = range(0, len(array), _WINDOW)
    found = [np.flatnonzero(array[i : i + _WINDOW] == byte) + i for i in windows]
    return np.concatenate(found) if found else np.empty(0, np.int64)


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    """Cut a chunk into pieces of about ``size`` bytes that end at line ends."""
    start = 0
    while start < len(data):
        end = data.find(b"\n", min(start + size, len(data)) - 1) + 1 or len(data)
        yield data[start:end]
        start = end


def _opened(path: Path) -> IO[bytes]:
    file = path.open("rb")
    mark = file.read(3)
    if mark.startswith(_UTF16):
        file.seek(0)
        with file:
            return _as_utf8(file)
    file.seek(3 if mark == codecs.BOM_UTF8 else 0)
    return file


def _as_utf8(file: IO[bytes]) -> IO[bytes]:
    decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
    recoded = tempfile.TemporaryFile()
    while data := file.read(CHUNK):
        recoded.write(decoder.decode(data).encode("utf-8", "replace"))
    recoded.write(decoder.decode(b"", final=True).encode("utf-8", "replace"))
    recoded.seek(0)
    return recoded


def _skip_line(file: IO[bytes], size: int) -> None:
    while (part := file.readline(size)) and not part.endswith(b"\n"):
        pass
