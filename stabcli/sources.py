"""Sources: what a reader is given to read, whatever it lies in.

A source is always an ordinary file or folder on disk: standard input and compressed files are
unpacked into a temporary file first, so that every reader may seek, map and read in parallel.
"""

from __future__ import annotations

import atexit
import bz2
import contextlib
import gzip
import lzma
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from stabcli.errors import LogError

HEAD_BYTES = 65536
"""How much of a file a reader's ``matches`` sees; one that needs more is looking too hard."""

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file or folder to read."""

    shown: str
    """As the user gave it: what messages and reports name."""
    path: Path
    """An ordinary file (unpacked) or a folder."""
    head: bytes
    """The first bytes of a file, unpacked; empty for a folder."""
    notes: tuple[str, ...] = ()
    """What unpacking had to decide: a truncated archive."""

    @property
    def is_folder(self) -> bool:
        """Say whether this is a folder."""
        return self.path.is_dir()

    @property
    def name(self) -> str:
        """Short name, without the ending of a compressed file."""
        name = Path(self.shown).name or self.shown
        for ending in (".gz", ".bz2", ".xz", ".zst", ".zstd"):
            name = name.removesuffix(ending)
        return name


class _Stream(Protocol):
    """What all decompressors can do."""

    def read1(self, size: int = -1, /) -> bytes: ...
    def close(self) -> None: ...


def _zstd(path: Path) -> _Stream:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return cast("_Stream", zstd.open(path))


_PACKED: tuple[tuple[bytes, str, Callable[[Path], _Stream]], ...] = (
    (b"\x1f\x8b", "gzip", gzip.GzipFile),
    (b"BZh", "bzip2", bz2.BZ2File),
    (b"\xfd7zXZ\x00", "xz", lzma.LZMAFile),
    (b"\x28\xb5\x2f\xfd", "zstd", _zstd),
)
"""Magic number, name and opener of each kind of compressed file."""

_ARCHIVES: tuple[tuple[int, bytes, str], ...] = (
    (0, b"PK\x03\x04", "a zip archive (or a checkpoint, which is one)"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (0, b"\x04\x22\x4d\x18", "an lz4 file"),
    (0, b"\x1f\x9d", "a file of compress (.Z)"),
    (257, b"ustar", "a tar archive"),
)
"""Place and magic number of what is not unpacked here, and what it is."""


def archive(head: bytes) -> str | None:
    """Return what kind of archive a file is that nothing here unpacks; None for any other."""
    for place, magic, what in _ARCHIVES:
        if head.startswith(magic, place):
            return what
    return None


def open_source(shown: str | Path, *, pipes: bool = True) -> Source:
    """Make a source of a path, or of standard input for ``-``.

    Args:
        shown: The path.
        pipes: Whether a pipe is read to its end. One that nobody named may never come to it.

    Raises:
        LogError: It does not exist, cannot be read, is empty, or is packed and broken from the
            first byte.
    """
    shown = str(shown)
    if shown == "-":
        return _standard_input()
    path = Path(shown)
    try:
        if path.is_dir():
            return Source(shown=shown, path=path, head=b"")
        if pipes and path.is_fifo():
            return _piped(shown, path)
        if path.exists() and not path.is_file():
            raise LogError(f"{shown}: neither a file nor a folder: give a log file or -")
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except FileNotFoundError:
        raise LogError(f"{shown}: no such file: check the path") from None
    except PermissionError:
        raise LogError(f"{shown}: not readable by this user: check its permissions") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise LogError(f"{shown!r}: cannot be read: {why}: check the path") from error
    if not head:
        raise LogError(f"{shown}: the file is empty: give a log with at least one logged step")
    for magic, kind, opener in _PACKED:
        if head.startswith(magic):
            return _unpacked(shown, path, kind, opener)
    return Source(shown=shown, path=path, head=head)


Identity = tuple[int, int]
"""What makes a file or folder the same, by whatever path: device and number on it."""


def identity(path: Path) -> Identity:
    """Return what a path leads to; of one that leads nowhere, a number of its own."""
    try:
        status = path.stat()
    except OSError:
        return -1, hash(path)
    return status.st_dev, status.st_ino


def in_order(folder: Path) -> list[Path]:
    """Return what lies in a folder, hidden things apart: by name, and links after all else.

    Raises:
        OSError: It cannot be listed.
    """
    paths = (p for p in folder.iterdir() if not p.name.startswith("."))
    return sorted(paths, key=lambda p: (p.is_symlink(), p))


def everything(top: Path) -> list[Path]:
    """Return the files and folders below a folder, links followed once, hidden ones apart."""
    found: list[Path] = []
    folders, seen = [top], {identity(top)}
    while folders:
        with contextlib.suppress(OSError):
            for path in in_order(folders.pop()):
                if not path.is_dir():
                    found.append(path)
                elif identity(path) not in seen:
                    seen.add(identity(path))
                    folders.append(path)
                    found.append(path)
    return found


def _temporary() -> Path:
    handle, name = tempfile.mkstemp(prefix="stabcli-")
    os.close(handle)
    atexit.register(lambda: Path(name).unlink(missing_ok=True))
    return Path(name)


def text_of(shown: str) -> Path | None:
    """Return an ordinary file with the text of a file, packed or not; None for what holds no text.

    What came through standard input or a pipe is the file that it was kept in.

    Raises:
        LogError: As of ``open_source``.
    """
    if shown in _STREAMS and not os.path.isfile(shown):
        source = _STREAMS[shown]
        return None if b"\0" in source.head else source.path
    if not os.path.isfile(shown):
        return None
    status = os.stat(shown)
    source = _opened(shown, status.st_mtime_ns, status.st_size)
    return None if b"\0" in source.head else source.path


@lru_cache(maxsize=256)
def _opened(shown: str, changed: int, size: int) -> Source:
    """Open a file once, as long as it does not change."""
    del changed, size
    return open_source(shown)


def _standard_input() -> Source:
    return _kept("-", sys.stdin.buffer, "standard input is empty: pipe a log into it")


def _piped(shown: str, pipe: Path) -> Source:
    """Read a named pipe, ``/dev/stdin`` or what a shell puts for ``<(command)``, to its end."""
    with pipe.open("rb") as stream:
        return _kept(shown, stream, "nothing came through this pipe: write a log into it")


def _kept(shown: str, stream: BinaryIO, empty: str) -> Source:
    path = _temporary()
    with path.open("wb") as out:
        shutil.copyfileobj(stream, out, _BLOCK)
    if not path.stat().st_size:
        raise LogError(f"{shown}: {empty}")
    inner = open_source(path)
    kept = Source(shown=shown, path=inner.path, head=inner.head, notes=inner.notes)
    _STREAMS[shown] = kept
    return kept


_STREAMS: dict[str, Source] = {}
"""What came through standard input and pipes, which can be read but once."""


def _unpacked(shown: str, path: Path, kind: str, opener: Callable[[Path], _Stream]) -> Source:
    target = _temporary()
    notes: tuple[str, ...] = ()
    with target.open("wb") as out:
        try:
            with contextlib.closing(opener(path)) as packed:
                while block := packed.read1(_BLOCK):
                    out.write(block)
        except (EOFError, OSError, zlib.error, lzma.LZMAError, ValueError) as error:
            notes = (f"the {kind} stream breaks off: {error}: what came before was read",)
        except Exception as error:  # zstd has an error class of its own
            if type(error).__name__ != "ZstdError":
                raise
            notes = (f"the {kind} stream breaks off: {error}: what came before was read",)
    with target.open("rb") as file:
        head = file.read(HEAD_BYTES)
    if not head:
        why = "broken" if notes else "empty"
        raise LogError(f"{shown}: the {kind} stream is {why}: nothing could be unpacked from it")
    return Source(shown=shown, path=target, head=head, notes=notes)
