"""Spilling: columns of a log too long for memory, in a temporary file that is mapped.

Pages of a mapped file are the system's to drop and to fetch again, so that a log of any length
takes memory of a stated size where the folder of temporary files lies on a disk.
"""

from __future__ import annotations

import mmap
import tempfile
import weakref
from collections.abc import Sequence
from typing import IO

import numpy as np
import polars as pl


class Spill:
    """A file that columns are moved into. It is gone once nothing that was made of it is left."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._end = 0

    def moved(self, runs: Sequence[Sequence[pl.Series]]) -> list[pl.Series]:
        """Lay the pieces of each run on end, all of them Int64, or Float64, and without a null.

        Raises:
            OSError: There is no room for them.
        """
        if not runs:
            return []
        if self._file is None:
            self._file = tempfile.TemporaryFile()
            weakref.finalize(self, self._file.close)
        page = mmap.ALLOCATIONGRANULARITY
        start = -(-self._end // page) * page
        self._file.seek(start)
        for run in runs:
            for piece in run:
                self._file.write(piece.to_numpy().data)
        self._file.flush()
        self._end = self._file.tell()
        length = self._end - start
        block = mmap.mmap(self._file.fileno(), length, access=mmap.ACCESS_READ, offset=start)
        joined: list[pl.Series] = []
        at = 0
        for run in runs:
            count = sum(map(len, run))
            kind = np.int64 if run[0].dtype == pl.Int64 else np.float64
            joined.append(pl.Series(np.frombuffer(block, kind, count, at)))  # makes no copy
            at += 8 * count
        return joined
