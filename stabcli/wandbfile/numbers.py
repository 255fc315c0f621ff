"""Numbers written as text, many at once.

Polars reads numbers from text exactly and faster than anything at hand, but making its strings
one by one costs more than reading them. Here they are made without a copy, as views of the bytes
they lie in, and handed over by the Arrow PyCapsule interface.

Source: arrow.apache.org/docs/format/CDataInterface.html and …/CDataInterface/PyCapsuleInterface.html
(format ``vu``: a view is 16 bytes: its length, then up to 12 bytes of text, or its first 4 bytes,
the number of the buffer and the place in it).
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from numpy.lib.stride_tricks import sliding_window_view

from stabcli.wandbfile.framing import Bytes, Integers

LONGEST = 64
"""Bytes of the longest number that is read here; W&B writes up to 25."""

_INLINE = 12


class _Schema(ctypes.Structure):
    """``struct ArrowSchema``."""


class _Array(ctypes.Structure):
    """``struct ArrowArray``."""


_ReleaseSchema = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Schema))
_ReleaseArray = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Array))
_Schema._fields_ = [
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_char_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.c_void_p),
    ("dictionary", ctypes.c_void_p),
    ("release", _ReleaseSchema),
    ("private_data", ctypes.c_void_p),
]
_Array._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.c_void_p),
    ("dictionary", ctypes.c_void_p),
    ("release", _ReleaseArray),
    ("private_data", ctypes.c_void_p),
]


def _released(pointer: Any) -> None:
    """Mark a structure as released; what it points to is Python's to free."""
    pointer.contents.release = type(pointer.contents.release)()


_release_schema = _ReleaseSchema(_released)
_release_array = _ReleaseArray(_released)


_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype = ctypes.py_object
_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class _Texts:
    """A column of texts that lie in a buffer; must outlive whatever is made of it."""

    def __init__(self, data: Bytes, views: npt.NDArray[np.uint32]) -> None:
        self._data = data
        self._views = views
        self._sizes = np.array([len(data)], np.int64)
        places = (None, views.ctypes.data, data.ctypes.data, self._sizes.ctypes.data)
        self._buffers = (ctypes.c_void_p * 4)(*places)
        self._schema = _Schema(b"vu", b"", None, 2, 0, None, None, _release_schema, None)
        self._array = _Array(
            len(views), 0, 0, 4, 0, self._buffers, None, None, _release_array, None
        )

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """Hand the column over."""
        return (
            _capsule(ctypes.addressof(self._schema), b"arrow_schema", None),
            _capsule(ctypes.addressof(self._array), b"arrow_array", None),
        )


def read_numbers(
    data: Bytes, starts: Integers, sizes: Integers
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Read numbers as JSON spells them, ``NaN`` and ``Infinity`` included.

    Args:
        data: Bytes they stand in, with at least 12 more behind the last of them.
        starts: Where each begins, (n,).
        sizes: Bytes of each, from 1 to ``LONGEST``, (n,).

    Returns:
        Their values, and for which texts there is one, both (n,).
    """
    if not len(starts):
        return np.empty(0), np.empty(0, bool)
    texts = _Texts(data, _views(data, starts, sizes))
    values = pl.Series(texts).cast(pl.Float64, strict=False)
    if not values.null_count():
        return values.to_numpy(), np.ones(len(values), bool)
    return values.fill_null(0.0).to_numpy(), values.is_not_null().to_numpy()


def _views(data: Bytes, starts: Integers, sizes: Integers) -> npt.NDArray[np.uint32]:
    """Return views (n, 4) of the texts."""
    views = np.zeros((len(starts), 4), np.uint32)
    views[:, 0] = sizes
    long = np.flatnonzero(sizes > _INLINE)
    at = starts[long]
    views[long, 1] = np.ascontiguousarray(sliding_window_view(data, 4)[at]).view("<u4").ravel()
    views[long, 3] = at
    short = np.flatnonzero(sizes <= _INLINE)
    text = sliding_window_view(data, _INLINE)[starts[short]]
    text[np.arange(_INLINE) >= sizes[short, None]] = 0
    views[short, 1:] = text.view("<u4")
    return views
