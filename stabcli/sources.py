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
from pathlib import Path
from typing import Protocol, cast

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


def open_source(shown: str | Path) -> Source:
    """Make a source of a path, or of standard input for ``-``.

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


def _temporary() -> Path:
    handle, name = tempfile.mkstemp(prefix="stabcli-")
    os.close(handle)
    atexit.register(lambda: Path(name).unlink(missing_ok=True))
    return Path(name)


def _standard_input() -> Source:
    path = _temporary()
    with path.open("wb") as out:
        shutil.copyfileobj(sys.stdin.buffer, out, _BLOCK)
    if not path.stat().st_size:
        raise LogError("-: standard input is empty: pipe a log into it")
    inner = open_source(path)
    return Source(shown="-", path=inner.path, head=inner.head, notes=inner.notes)


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
