"""Quick: many lines at once through Polars, taken only where the result can be proved whole.

``polars.read_ndjson`` knows no NaN, passes over keys that its schema lacks, and keeps the first
of two equal keys where Python keeps the last. So bare NaN and infinities are rewritten into
sentinel numbers and back, and the keys of a chunk are counted by their colons: what does not
add up is refused, and the caller reads it line by line (``stabcli.ndjson.lines``).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from polars.exceptions import PanicException, PolarsError

from stabcli.ndjson.chunks import count, positions
from stabcli.ndjson.lines import Lists

Schema = dict[str, pl.DataType]

_NAN, _INF, _MINUS_INF = (
    b"-1.3345678901234567e+301",
    b"1.2345678901234569e+301",
    b"-1.2345678901234567e+301",
)
"""Numbers no trainer logs. A chunk that holds one of its own is found out by counting."""
_TOKENS = {b"NaN": _NAN, b"Infinity": _INF, b"-Infinity": _MINUS_INF}
_BEYOND = 1e301
_MARK = "e+301"
"""What all of them end in."""
_MEANT = {float(s): float(t) for t, s in _TOKENS.items()}

_DEEPEST = 64
"""Levels of nesting above which Polars is not asked for a schema: its recursion ends the process."""
_INFERRED = 1 << 18  # bytes from which on a chunk that breaks the schema is not asked for another
_WALKED = 4096  # hits up to which a search hops from byte to byte
_ODD = re.compile(r"^(?:[\[{]|true$|false$)", re.MULTILINE)
_NULL = re.compile(rb":[ \t]*null[ \t]*[,}\r\n]")
_AFTER = np.zeros(256, bool)
_AFTER[list(b" ,}\t\r\n")] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """A chunk as Polars reads it."""

    columns: dict[str, pl.Series]
    """Name -> values, nested names joined by ``/``; a list of one number is that number."""
    height: int
    """Rows."""
    nulls: bool
    """Whether the chunk spells nulls out."""
    nested: set[str]
    """Names at the top that hold an object."""
    lists: Lists
    """Names that hold lists."""


@dataclass(slots=True)
class Quick:
    """Reads chunks, and remembers from one to the next which columns there are."""

    schema: Schema = field(default_factory=dict)
    """Columns seen so far, the widest type of each."""

    def parse(self, data: bytes) -> Parsed | None:
        """Read whole lines; None where Polars cannot, or not provably all of them."""
        if len(_search(data, b"\\u003")):  # may spell a colon, which would spoil the counting
            return None
        plain, hidden = _without_nan(data)
        if self.schema:
            read = _read(plain, self.schema)
            parsed = _proved(read, data, hidden)
            if parsed or (read is None and len(data) > _INFERRED):
                return parsed  # what it breaks at is sooner found in smaller pieces
        if _too_deep(plain):
            return None
        frame = _read(plain, None)
        if frame is None:
            return None
        self.schema = _merge(self.schema, dict(frame.schema))
        return _proved(frame, data, hidden)


def _read(data: bytes, schema: Schema | None) -> pl.DataFrame | None:
    try:
        return pl.read_ndjson(data, schema=schema, infer_schema_length=None)
    except (PolarsError, PanicException):
        return None


def _proved(frame: pl.DataFrame | None, data: bytes, hidden: Counter[bytes]) -> Parsed | None:
    """Turn sentinels back and check that nothing of the chunk is missing from the frame."""
    if frame is None:
        return None
    leaves: dict[str, pl.Series] = {}
    keys = 0
    nested: set[str] = set()
    lists = Lists()
    stack = [("", s) for s in reversed(frame.get_columns())]
    while stack:
        prefix, series = stack.pop()
        present = series.len() - series.null_count()
        keys += present * (1 + series.name.count(":"))
        name = prefix + series.name
        if isinstance(series.dtype, pl.Struct):
            fields = series.struct.unnest().get_columns()
            stack += [(f"{name}/", f) for f in reversed(fields)]
            if not prefix:
                nested.add(name)
        elif isinstance(series.dtype, pl.List):
            if not (series.dtype.inner == pl.Null or series.dtype.inner.is_numeric()):
                return None
            if name in leaves:
                return None
            if present:
                _unlisted(series.alias(name), leaves, lists)
        elif name in leaves:
            return None
        else:
            leaves[name] = series
    texts = pl.DataFrame({n: s for n, s in leaves.items() if s.dtype == pl.String})
    said = _said(texts)
    if said.odd:
        return None  # text, or an object or a truth value where others hold text
    if hidden:
        left = hidden.total() - sum(_restore(leaves, name) for name in _behind(leaves, hidden))
        if left - (_restore_texts(leaves, texts) if said.sentinel else 0):
            return None
    keys += said.colons
    missing = count(data, ord(":")) - keys
    if missing:
        if said.null or any(re.search(r":\s*null", n) for n in leaves):
            return None
        if sum(1 for _ in _NULL.finditer(data)) != missing:
            return None
    return Parsed(
        columns=leaves, height=frame.height, nulls=missing > 0, nested=nested, lists=lists
    )


def _unlisted(series: pl.Series, leaves: dict[str, pl.Series], lists: Lists) -> None:
    """Take the numbers of lists that hold just one."""
    values = series.list.first().set((series.list.len() != 1).fill_null(value=False), None)
    if values.count():
        whole = values.dtype == pl.Int64
        leaves[series.name] = values if whole else values.cast(pl.Float64)
        lists.single[series.name] = None
    if values.count() < series.count():
        lists.others[series.name] = None


@dataclass(frozen=True, slots=True)
class _Said:
    """What stands in the text of a chunk."""

    colons: int
    """As it was written, with tokens for sentinels."""
    odd: bool
    """What might be no text."""
    null: bool
    sentinel: bool


def _said(texts: pl.DataFrame) -> _Said:
    # by Python's own means: to have Polars plan a query takes longer than to search most chunks
    text = "\n".join(value for s in texts.get_columns() for value in s.drop_nulls().to_list())
    return _Said(
        colons=text.count(":"),
        odd=_ODD.search(text) is not None,
        null="null" in text,
        sentinel=_MARK in text,
    )


def _without_nan(data: bytes) -> tuple[bytes, Counter[bytes]]:
    """Rewrite bare NaN, Infinity and -Infinity into sentinels; return how many each key had.

    What stands in text is rewritten as well where it looks just the same, and turned back with the
    rest.
    """
    hidden: Counter[bytes] = Counter()
    found = np.concatenate([_values(data, b"NaN"), _values(data, b"Infinity")])
    if not len(found):
        return data, hidden
    view = memoryview(data)
    parts: list[bytes | memoryview] = []
    done = 0
    for at in np.sort(found).tolist():
        token = b"NaN" if data[at : at + 1] == b"N" else b"Infinity"
        start = at - 1 if data[at - 1 : at] == b"-" else at
        parts += (view[done:start], _TOKENS[data[start:at] + token])
        done = at + len(token)
        stop = data.rfind(b'"', 0, start)
        hidden[data[data.rfind(b'"', 0, stop) + 1 : stop]] += 1
    parts.append(view[done:])
    return b"".join(parts), hidden


def _behind(leaves: Mapping[str, pl.Series], keys: Iterable[bytes]) -> list[str]:
    """Return the columns of numbers that such keys may stand for."""
    named = {key.decode("utf-8", "replace") for key in keys}
    return [name for name in leaves if name in named or name.rpartition("/")[2] in named]


def _values(data: bytes, token: bytes) -> np.ndarray:
    r"""Return where a token stands as the value of a key: after a colon, before what may follow.

    Before the colon is a quote that ends a name. One behind a backslash stands in text; a name that
    ends in a backslash would look like it, and a chunk with such a name is left to the slow way.
    """
    at = _search(data, token)
    at = at[(at >= 5) & (at + len(token) < len(data))]
    if not len(at):
        return at
    array = np.frombuffer(data, np.uint8)
    before = at - (array[at - 1] == ord("-")) if token == b"Infinity" else at
    before = before - (array[before - 1] == ord(" "))
    fits: np.ndarray = (array[before - 1] == ord(":")) & _AFTER[array[at + len(token)]]
    fits &= (array[before - 2] != ord('"')) | (array[before - 3] != ord("\\"))
    return np.asarray(at[fits])


def _search(data: bytes, token: bytes) -> np.ndarray:
    """Return where a token stands, fast where its first byte is rare: it is in most logs."""
    first = token[:1]
    hits: list[int] = []
    at = data.find(first)
    for _ in range(_WALKED):
        if at < 0:
            return np.array(hits, np.int64)
        if data.startswith(token, at):
            hits.append(at)
        at = data.find(first, at + 1)
    every = positions(data, first[0])
    every = every[every + len(token) <= len(data)]
    array = np.frombuffer(data, np.uint8)
    for offset, byte in enumerate(token[1:], 1):
        every = every[array[every + offset] == byte]
    return every


def _restore_texts(leaves: dict[str, pl.Series], texts: pl.DataFrame) -> int:
    """Turn the sentinels in text back; return how many there were."""
    held = pl.lit(0)
    plain = pl.all()
    for token, sentinel in _TOKENS.items():
        held += pl.sum_horizontal(pl.all().str.count_matches(sentinel.decode(), literal=True).sum())
        plain = plain.str.replace_all(sentinel.decode(), token.decode(), literal=True)
    leaves.update({s.name: s for s in texts.select(plain).get_columns()})
    return int(texts.select(held).item())


def _restore(leaves: dict[str, pl.Series], name: str) -> int:
    """Turn the sentinels of a column back; return how many it held."""
    series = leaves[name]
    if series.dtype != pl.Float64 or series.len() == series.null_count():
        return 0
    values = series.to_numpy(writable=True)  # nulls become NaN here and are put back below
    beyond = np.flatnonzero(np.abs(values) > _BEYOND)
    held = 0
    for at, value in zip(beyond.tolist(), values[beyond].tolist(), strict=True):
        held += value in _MEANT
        values[at] = _MEANT.get(value, value)
    restored = pl.Series(series.name, values, nan_to_null=False)
    leaves[name] = restored.set(series.is_null(), None) if series.null_count() else restored
    return held


def _too_deep(data: bytes) -> bool:
    """Say whether brackets may open more levels than Polars can take."""
    if data.find(b"[") < 0 and count(data, ord("{")) <= count(data, ord("\n")) + 1:
        return False  # all lines are flat
    array = np.frombuffer(data, np.uint8)
    level = lowest = 0
    for i in range(0, len(array), 1 << 20):
        part = array[i : i + (1 << 20)]
        change = np.isin(part, list(b"{[")).astype(np.int8) - np.isin(part, list(b"}]"))
        levels = level + np.cumsum(change, dtype=np.int32)
        floor = np.minimum(lowest, np.minimum.accumulate(levels))
        if (levels - floor).max() > _DEEPEST:
            return True
        level, lowest = int(levels[-1]), int(floor[-1])
    return False


def _merge(known: Schema, new: Schema) -> Schema:
    """Return all columns of both, each as the wider type."""
    merged = dict(known)
    for name, dtype in new.items():
        merged[name] = _wider(merged.get(name), dtype)
    return merged


def _wider(known: pl.DataType | None, new: pl.DataType) -> pl.DataType:
    if new == pl.Null:
        return known if known is not None else pl.Float64()
    if isinstance(new, pl.Struct) and (known is None or isinstance(known, pl.Struct)):
        return pl.Struct(_merge(_fields(known), _fields(new)))
    if known is None:
        return pl.Float64() if new.is_integer() and new != pl.Int64 else new
    if known == new or known.is_nested() or new.is_nested():
        return known if known == new else new
    return pl.String() if pl.String in (known, new) else pl.Float64()


def _fields(dtype: pl.DataType | None) -> Schema:
    fields = dtype.fields if isinstance(dtype, pl.Struct) else []
    return {f.name: f.dtype for f in fields if isinstance(f.dtype, pl.DataType)}
