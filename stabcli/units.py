"""Units: what a number means is said in its type, and how it is printed is decided here only."""

from __future__ import annotations

import math
import re

Step = int  # optimizer step as logged, not micro-batch
Tokens = float  # training tokens, padding included
Seconds = float
GpuHours = float  # GPUs x wall-clock hours

_SCALES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
_SUFFIX = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_QUANTITY = re.compile(r"([0-9][0-9_,]*\.?[0-9]*(?:e[+-]?[0-9]+)?)\s*([kmbgt]?)", re.IGNORECASE)


def number(x: float, digits: int = 4) -> str:
    """Print a measured value to a few digits, without exponents where people read numbers.

    ``0.00031 -> '0.00031'``, ``12345.6 -> '12,346'``, ``nan -> 'NaN'``, ``inf -> 'Inf'``.
    """
    if math.isnan(x):
        return "NaN"
    if math.isinf(x):
        return "Inf" if x > 0 else "-Inf"
    if x == 0:
        return "0"
    size = abs(x)
    if size >= 1e7 or size < 1e-5:
        return f"{x:.{digits - 1}g}"
    if size >= 10 ** (digits - 1):
        return f"{x:,.0f}"
    return f"{x:.{digits}g}"


def count(n: float) -> str:
    """Print a count to three digits: ``1_230_000_000 -> '1.23B'``, ``950 -> '950'``."""
    for scale, unit in _SCALES:
        if abs(n) >= scale:
            return f"{n / scale:.3g}{unit}"
    return f"{n:.3g}" if n != int(n) else str(int(n))


def plural(n: int, noun: str) -> str:
    """Print a number of things: ``1 rule``, ``3 rules``."""
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def does(n: int, verb: str) -> str:
    """Print what a number of things do: ``1 -> 'takes'``, ``3 -> 'take'``."""
    return verb + ("s" if n == 1 else "")


def steps(n: int) -> str:
    """Print a number of steps: ``1 -> '1 step'``, ``5000 -> '5,000 steps'``."""
    return plural(n, "step")


def span(first: Step, last: Step) -> str:
    """Print a stretch of steps: ``step 600``, ``steps 600..1,603``."""
    return f"step {first:,}" if first == last else f"steps {first:,}..{last:,}"


def gpu_hours(x: GpuHours) -> str:
    """Print GPU-hours: ``808.3 -> '808 GPU-hours'``."""
    if 0 < x < 0.01:
        return "under 0.01 GPU-hours"
    return f"{x:,.0f} GPU-hours" if x >= 100 else f"{x:.3g} GPU-hours"


def duration(seconds: Seconds) -> str:
    """Print a time span by its two largest units: ``93784 -> '1 d 2 h'``."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    parts = []
    rest = round(seconds)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if n := rest // size:
            parts.append(f"{n} {unit}")
        rest %= size
    return " ".join(parts[:2])


def percent(share: float, digits: int = 1) -> str:
    """Print a share: ``0.2345 -> '23.5 %'``."""
    return f"{100 * share:.{digits}f} %"


def quantity(text: str) -> float:
    """Read a count as people type it: ``7e9``, ``7B``, ``4M``, ``4_000_000``, ``4,000,000``.

    Raises:
        ValueError: It is not a positive number with an optional k, M, B, G or T.
    """
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"not a count: {text!r}; write 4000000, 4e6 or 4M")
    value = float(match[1].replace("_", "").replace(",", "")) * _SUFFIX.get(match[2].lower(), 1.0)
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"not a positive count: {text!r}")
    return value


def printable(text: str) -> str:
    r"""Return text from a log as it may be shown: control characters as ``\x1b``.

    Escape sequences could repaint the terminal, line breaks forge a line of a report, and
    marks of writing direction reorder what is read.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
