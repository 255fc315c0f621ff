"""Batches from files: dumps of token IDs in JSON, torch, numpy, parquet and arrow.

Nothing that a file holds is run: torch files are read with ``weights_only``, numpy files without
pickles. A file that is no dump is refused in one line that names it.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stabcli.errors import ReplayError
from stabcli.replay.pickles import load_torch
from stabcli.replay.pieces import (
    POSITION_NAME,
    SAMPLE_NAMES,
    TOKEN_NAMES,
    Labels,
    Piece,
    Recorded,
    join,
    piece_of,
)

MOST_JSON = 1 << 30
"""Bytes of a JSON file that are read: a thousand sequences of 32,768 tokens need a quarter."""

MOST_ROWS = 1 << 20
"""Rows of a parquet or arrow file that are read: a dump is a batch, not a data set."""


def load_batches(paths: Sequence[Path], labels: Labels = "auto") -> list[Recorded]:
    """Read dumps; sequences of the same step, of whatever file, are one batch.

    Args:
        paths: The files, of the ranks of a step or of several steps.
        labels: How labels lie.

    Returns:
        One batch a step, in the order of the steps.

    Raises:
        ReplayError: A file cannot be read, or holds no batch.
    """
    pieces = [piece for path in paths for piece in read_pieces(path)]
    if not pieces:
        raise ReplayError(f"{', '.join(map(str, paths)) or 'batch'}: no sequences in it")
    return join(pieces, labels)


def dumps_in(folder: Path) -> list[Path]:
    """Return the files of a folder that may be dumps, by their endings, in order of name.

    Raises:
        ReplayError: The folder does not exist or holds none.
    """
    if not folder.is_dir():
        raise ReplayError(f"{folder}: no such folder: give the one with the recorded batches")
    found = sorted(p for p in folder.iterdir() if _kind(p) is not None and p.is_file())
    if not found:
        endings = ", ".join(sorted(_READERS))
        raise ReplayError(f"{folder}: no recorded batches in it: they end in {endings}")
    return found


def read_pieces(path: Path) -> list[Piece]:
    """Read one file.

    Raises:
        ReplayError: It does not exist, is of no known kind, or holds no batch.
    """
    if not path.is_file():
        what = "is a folder: give a file" if path.is_dir() else "no such file: check the path"
        raise ReplayError(f"{path}: {what}")
    read = _kind(path)
    if read is None:
        endings = ", ".join(sorted(_READERS))
        raise ReplayError(f"{path}: not a dump of a kind known by its ending: one of {endings}")
    if not path.stat().st_size:
        raise ReplayError(f"{path}: empty: give at least one sequence of two tokens")
    try:
        return list(read(path))
    except OSError as error:
        why = error.strerror or error
        raise ReplayError(f"{path}: cannot be read: {why}: check the file") from error


def _kind(path: Path) -> Callable[[Path], Iterator[Piece]] | None:
    return _READERS.get(path.suffix.lower())


def _json(path: Path) -> Iterator[Piece]:
    """One object, a list of objects, a list of sequences, or an object a line."""
    if path.stat().st_size > MOST_JSON:
        raise ReplayError(f"{path}: larger than 1 GiB: write so large a batch as .npz or .pt")
    with path.open("rb") as file:
        text = file.read()
    lines = text.split(b"\n")
    if sum(1 for line in lines if line.strip()) > 1 and lines[0].rstrip().endswith((b"}", b"]")):
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield from _objects(_parsed(line, f"{path}:{number}"), f"{path}:{number}")
        return
    yield from _objects(_parsed(text, str(path)), str(path))


def _parsed(text: bytes, where: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ReplayError(f"{where}: nested too deep: give lists of token IDs") from None
    except UnicodeDecodeError:
        raise ReplayError(f"{where}: not text: give JSON in UTF-8") from None
    except json.JSONDecodeError as error:
        raise ReplayError(f"{where}: not JSON: {error.msg} at column {error.colno}") from None
    except ValueError as error:  # a number with thousands of digits
        raise ReplayError(f"{where}: not JSON: {str(error)[:80]}") from None


def _objects(value: Any, where: str) -> Iterator[Piece]:
    if isinstance(value, dict) and isinstance(value.get("batches"), list):
        value = value["batches"]
    if isinstance(value, dict):
        yield piece_of(value, where)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for number, item in enumerate(value):
            if not isinstance(item, dict):
                raise ReplayError(f"{where}: item {number} is no object with input_ids")
            yield piece_of(item, f"{where}: item {number}")
    elif isinstance(value, list):
        yield piece_of({"input_ids": value}, where)
    else:
        raise ReplayError(f"{where}: a {type(value).__name__}: give an object with input_ids")


def _torch(path: Path) -> Iterator[Piece]:
    value = load_torch(path)
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], dict):
        for number, item in enumerate(value):
            if not isinstance(item, dict):
                raise ReplayError(f"{path}: item {number} is no dict with input_ids")
            yield piece_of(item, f"{path}: item {number}")
    elif isinstance(value, (list, tuple)) and len(value) == 2 and hasattr(value[0], "shape"):
        yield piece_of({"x": value[0], "y": value[1]}, str(path))
    elif isinstance(value, dict):
        yield piece_of({str(k): v for k, v in value.items()}, str(path))
    else:
        yield piece_of({"input_ids": value}, str(path))


def _npz(path: Path) -> Iterator[Piece]:
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ReplayError(f"{path}: one array without names: give .npz with input_ids")
            fields = {name: archive[name] for name in archive.files}
    except (ValueError, zipfile.BadZipFile, EOFError, KeyError) as error:
        if "allow_pickle" in str(error) or "pickle" in str(error).lower():
            raise ReplayError(
                f"{path}: holds pickled objects, which can run code: refused: save plain integers"
            ) from None
        why = str(error).partition("\n")[0][:120]
        raise ReplayError(f"{path}: not an .npz archive: {why}") from None
    yield piece_of(fields, str(path))


def _table(path: Path) -> Iterator[Piece]:
    """Parquet or arrow: a row a sequence, or a row a batch where cells hold lists of lists."""
    import polars as pl

    from stabcli.parts import checked_parquet

    try:
        if path.suffix.lower() == ".parquet":
            with checked_parquet(path):
                table = pl.read_parquet(path, n_rows=MOST_ROWS + 1)
        else:
            table = _arrow(path)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        why = str(error).partition("\n")[0][:120]
        raise ReplayError(f"{path}: not a {path.suffix[1:]} file: {why}") from None
    if table.height > MOST_ROWS:
        raise ReplayError(
            f"{path}: more than {MOST_ROWS:,} rows: give the batch, or the data with --data"
        )
    if not any(name in table.columns for name in TOKEN_NAMES):
        held = ", ".join(table.columns[:8])
        raise ReplayError(f"{path}: no column input_ids: it has {held}")
    known = [c for c in table.columns if c in _COLUMNS]
    for number, row in enumerate(table.select(known).iter_rows(named=True)):
        yield piece_of(row, f"{path}: row {number}")


def _arrow(path: Path) -> Any:
    """Arrow files as datasets writes them are streams; polars and pandas write the other kind."""
    import polars as pl

    with path.open("rb") as file:
        head = file.read(6)
        file.seek(-min(6, path.stat().st_size), 2)
        tail = file.read(6)
    if head == b"ARROW1" and tail == b"ARROW1":
        return pl.read_ipc(path, n_rows=MOST_ROWS + 1)
    if head[:4] == b"\xff\xff\xff\xff":
        return pl.read_ipc_stream(path, n_rows=MOST_ROWS + 1)
    raise ReplayError(f"{path}: not a whole arrow file: is it half written?")


_COLUMNS = {
    *TOKEN_NAMES,
    *SAMPLE_NAMES,
    *("labels", "y", "targets", "target_ids", "attention_mask", "loss_mask"),
    POSITION_NAME,
    *("step", "loss", "grad_norm"),
}

_READERS: dict[str, Callable[[Path], Iterator[Piece]]] = {
    ".json": _json,
    ".jsonl": _json,
    ".ndjson": _json,
    ".pt": _torch,
    ".pth": _torch,
    ".npz": _npz,
    ".parquet": _table,
    ".arrow": _table,
    ".feather": _table,
}
"""By ending, because a batch and a log may both be JSON lines."""
