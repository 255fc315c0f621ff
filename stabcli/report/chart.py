"""Charts: a series over steps as text. The only module that knows plotext.

plotext aborts the whole process on a NaN in a line, so that nothing non-finite may reach it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from stabcli.units import number

OUTLIER = 10.0
"""Values beyond this many times the 95th percentile are drawn at the upper edge."""
LARGEST = 1e300
"""Size beyond which arithmetic on values would overflow."""
LABELLED = 4
"""Most incidents whose steps are written beside their marks."""
MOST_LINES = 100
"""Most lines drawn, for each takes its time."""
_DOTS = 2
"""Dots of a braille character from left to right."""
_TO_ASCII = str.maketrans("┌┐└┘─│┤├┬┴┼", "++++-|||+++")


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A chart as text."""

    lines: tuple[str, ...]
    """The frame with the series in it, top to bottom."""
    marks: str
    """The row below: arrows where the incidents are, crosses where values are not finite."""
    remark: str
    """What the picture does not show as it is: outliers, non-finite values; may be empty."""


def picture(
    steps: np.ndarray,
    values: np.ndarray,
    attempts: np.ndarray,
    *,
    incidents: Sequence[int] = (),
    width: int = 78,
    height: int = 10,
    ascii_only: bool = False,
) -> Picture | None:
    """Draw a series.

    Args:
        steps: Steps of shape (n,), rising within an attempt.
        values: Values of shape (n,); non-finite ones are left out and marked below.
        attempts: Attempt of each value, shape (n,); no line joins two of them.
        incidents: Steps to mark.
        width: Columns.
        height: Rows of the frame and what is in it.
        ascii_only: Draw with ASCII only.

    Returns:
        The picture, or None where there is nothing to draw or plotext cannot be imported.
    """
    finite = np.isfinite(values)
    if finite.sum() < 2 or np.ptp(steps[finite]) == 0:
        return None
    try:
        import plotext
    except (ImportError, OSError):  # no wheel for this machine: the report does without
        return None
    values = np.clip(values, -LARGEST, LARGEST)  # after what is finite was noted
    low, high = int(steps.min()), int(steps.max())
    bottom, top = _limits(values[finite])
    figure = plotext.figure  # one for the whole process
    figure.clear.all()
    figure.theme("colorless")
    figure.plot_size(width, height)
    parts = _lines(finite, attempts)
    joined = len(parts) <= MOST_LINES
    if not joined:  # so many attempts that only points can show them all
        rows = np.flatnonzero(finite)
        parts = [rows[np.argsort(steps[rows], kind="stable")]]
    for part in parts:
        x, y = _thinned(steps[part], values[part], low, high, width * _DOTS)
        marker = "*" if ascii_only else "braille"
        line = figure.signal(x.tolist(), np.clip(y, bottom, top).tolist(), marker=marker).lines(
            joined and len(x) > 1
        )
        figure.draw(line)
    lines = _framed(figure, low, high, bottom, top)
    marks = _marks(lines[0], steps, ~finite, incidents, low, high, ascii_only=ascii_only)
    if ascii_only:
        lines = tuple(line.translate(_TO_ASCII) for line in lines)
    return Picture(
        lines=lines,
        marks=marks,
        remark=_remark(steps, values, ~finite, top, ascii_only=ascii_only),
    )


def overlay(
    curves: Sequence[tuple[str, np.ndarray, np.ndarray]],
    *,
    width: int = 78,
    height: int = 12,
    ascii_only: bool = False,
) -> Picture | None:
    """Draw several series over one another, each in a letter of its own.

    Args:
        curves: Letter, steps of shape (n,) and values of shape (n,) of each; non-finite values
            are left out. Where curves meet, the first one shows.
        width: Columns.
        height: Rows of the frame and what is in it.
        ascii_only: Draw with ASCII only.

    Returns:
        The picture, or None where there is nothing to draw or plotext cannot be imported.
    """
    kept = [(mark, steps, np.isfinite(values), values) for mark, steps, values in curves]
    kept = [(mark, s[good], good, v[good]) for mark, s, good, v in kept if good.any()]
    shown = np.clip(np.concatenate([v for *_, v in kept]), -LARGEST, LARGEST) if kept else None
    if shown is None or len(shown) < 2:
        return None
    low = min(int(s.min()) for _, s, _, _ in kept)
    high = max(int(s.max()) for _, s, _, _ in kept)
    if low == high:
        return None
    try:
        import plotext
    except (ImportError, OSError):
        return None
    bottom, top = _limits(shown)
    figure = plotext.figure
    figure.clear.all()
    figure.theme("colorless")
    figure.plot_size(width, height)
    joined = False  # lines of letters would fill the frame
    for mark, steps, _, values in reversed(kept):
        x, y = _thinned(steps, np.clip(values, bottom, top), low, high, width)
        figure.draw(figure.signal(x.tolist(), y.tolist(), marker=mark[:1]).lines(joined))
    lines = _framed(figure, low, high, bottom, top)
    over = [f"{mark} {int((v > top).sum()):,}" for mark, _, _, v in kept if (v > top).any()]
    broken = [f"{mark} {int((~good).sum()):,}" for mark, _, good, _ in kept if not good.all()]
    parts = ["where curves meet the first letter shows"] if len(kept) > 1 else []
    parts += [f"above {number(top, 3)} cut off: {', '.join(over)}"] if over else []
    parts += [f"rows not finite: {', '.join(broken)}"] if broken else []
    return Picture(
        lines=tuple(line.translate(_TO_ASCII) for line in lines) if ascii_only else lines,
        marks="",
        remark="; ".join(parts),
    )


def _limits(values: np.ndarray) -> tuple[float, float]:
    """Return the lowest and highest value to draw."""
    bottom, top = float(values.min()), float(min(values.max(), _ceiling(values)))
    if bottom == top:
        margin = abs(bottom) * 0.01 or 1.0
        bottom, top = bottom - margin, top + margin
    return bottom, top


def _framed(figure: Any, low: int, high: int, bottom: float, top: float) -> tuple[str, ...]:
    """Return what was drawn as lines, with its rulers."""
    figure.ruler(0, 0).lim(low, high)
    figure.ruler(1, 0).lim(bottom, top)
    ticks = [low + (high - low) * i // 4 for i in range(5)]
    figure.ruler(0, 0).ticks(ticks, [f"{t:,}" for t in ticks])
    levels = np.linspace(bottom, top, 4).tolist()
    figure.ruler(1, 0).ticks(levels, [_level(v, top - bottom) for v in levels])
    text = figure.build().string(colorless=True)
    figure.clear.all()
    return tuple(line.rstrip() for line in text.splitlines() if line.strip())


def _ceiling(finite: np.ndarray) -> float:
    """Return the value above which values are drawn at the upper edge."""
    low, high = (float(v) for v in np.quantile(finite, [0.05, 0.95]))
    reach = high if low > 0 else high - low
    limit = OUTLIER * high if low > 0 else high + OUTLIER * reach
    return limit if limit > low else math.inf


def _lines(finite: np.ndarray, attempts: np.ndarray) -> list[np.ndarray]:
    """Return the row numbers of each line to draw: finite values of one attempt, without a gap.

    Where there are too many, gaps are drawn across, which the crosses below still show.
    """
    pieces = _pieces(finite, attempts)
    if len(pieces) <= MOST_LINES:
        return [np.arange(start, stop) for start, stop in pieces]
    rows = np.flatnonzero(finite)
    breaks = np.flatnonzero(np.diff(attempts[rows]) != 0) + 1
    return np.split(rows, breaks)


def _pieces(finite: np.ndarray, attempts: np.ndarray) -> list[tuple[int, int]]:
    """Return the half-open ranges of finite values that belong to one attempt."""
    breaks = np.flatnonzero(np.diff(attempts) != 0) + 1
    edges = np.flatnonzero(np.diff(finite.astype(np.int8)) != 0) + 1
    inner = np.sort(np.concatenate([breaks, edges]))
    cuts = [0, *inner.tolist(), len(finite)]
    return [(a, b) for a, b in pairwise(cuts) if b > a and finite[a]]


def _thinned(
    steps: np.ndarray, values: np.ndarray, low: int, high: int, columns: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the first, lowest, highest and last value of every column: all that can be seen."""
    if len(steps) <= 4 * columns:
        return steps, values
    column = (steps - low) * columns // max(1, high - low + 1)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(column)) + 1, [len(steps)]])
    keep: set[int] = set()
    for start, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        part = values[start:stop]
        keep.update((start, start + int(part.argmin()), start + int(part.argmax()), stop - 1))
    chosen = np.array(sorted(keep))
    return steps[chosen], values[chosen]


def _level(value: float, span: float) -> str:
    """Print a level of the axis with as many digits as tell it from its neighbours."""
    if value == 0 or not span:
        return number(value)
    digits = max(2, math.ceil(math.log10(abs(value) / span)) + 2) if abs(value) > span else 2
    return number(value, max(3, min(digits, 6)))


def _marks(
    frame: str,
    steps: np.ndarray,
    broken: np.ndarray,
    incidents: Sequence[int],
    low: int,
    high: int,
    *,
    ascii_only: bool,
) -> str:
    """Return the row that stands below the frame."""
    left = len(frame) - len(frame.lstrip()) + 1
    columns = len(frame.strip()) - 2
    row = [" "] * (left + columns)
    arrow, cross = ("^", "x") if ascii_only else ("▲", "×")

    def column(at: np.ndarray) -> list[int]:
        shares = (at - low) / max(1, high - low)
        return [int(c) for c in np.unique(np.rint(shares * (columns - 1)))]

    for c in column(steps[broken]):
        row[left + c] = cross
    at = np.array(sorted(set(incidents)), dtype=np.int64)
    at = at[(at >= low) & (at <= high)]
    for c in column(at):
        row[left + c] = arrow
    if len(at) <= LABELLED:
        for step in at.tolist():
            _label(row, left + column(np.array([step]))[0], f"{step:,}")
    return "".join(row).rstrip()


def _label(row: list[str], at: int, text: str) -> None:
    """Write ``text`` beside the mark at index ``at`` of a row, where there is room for it."""
    width = len(text) + 1
    for start in (at + 1, at - width):
        room = row[max(0, start) : start + width]
        if start >= 0 and len(room) == width and not "".join(room).strip():
            written = f" {text}" if start > at else f"{text} "
            row[start : start + width] = written
            return


def _remark(
    steps: np.ndarray, values: np.ndarray, broken: np.ndarray, top: float, *, ascii_only: bool
) -> str:
    """Say what is not drawn as it is."""
    parts: list[str] = []
    over = np.flatnonzero(~broken & (values > top))
    if len(over):
        peak = int(over[values[over].argmax()])
        parts.append(
            f"{len(over):,} above {number(top, 3)} cut off,"
            f" highest {number(float(values[peak]))} at step {int(steps[peak]):,}"
        )
    count = int(broken.sum())
    cross = "x" if ascii_only else "×"
    if count:
        parts.append(f"{cross} not finite ({count:,} row{'' if count == 1 else 's'})")
    return "; ".join(parts)
