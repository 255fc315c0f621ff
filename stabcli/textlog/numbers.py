"""Numbers: in all the spellings that trainers print, with the unit that stands behind them.

A time comes out in seconds, a percentage as a fraction, ``1.26B`` as 1.26e9; bytes, FLOP/s and
rates keep the unit they were printed in.
"""

from __future__ import annotations

import re

_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_COUNTS = {"K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_AS_PRINTED = (
    "GiB",
    "GB",
    "MiB",
    "MB",
    "KiB",
    "KB",
    "B/s",
    "TFLOPS",
    "TFLOP/s",
    "TFLOPs",
    "J",
    "W",
)
_RATES = ("tok/s", "tokens/s", "toks/s", "it/s", "samples/s", "z", "x")
UNITS = {**_TIMES, **_COUNTS, "%": 0.01, **dict.fromkeys((*_AS_PRINTED, *_RATES), 1.0)}
"""What may stand behind a number -> what to multiply it with."""

_SPELT = re.compile(
    r"""(?P<number>[-+]?(?: \d[\d,_]*\.?\d*(?:[eE][-+]?\d+)? | \.\d+(?:[eE][-+]?\d+)?
        | (?i:nan|inf(?:inity)?) ))
        (?:\((?:ind|snan)\))? \s* (?P<unit>%|[A-Za-z/]*)""",
    re.VERBOSE,
)
NO_GROUP = r",(?:\d{0,2}|\d{4,})(?:\D|$)|^[-+]?0\d*,"
"""A comma that parts no thousands."""
_NO_GROUP = re.compile(NO_GROUP)
_WRAPPED = re.compile(r"[A-Za-z_][\w.]*\(\s*([^(),]+?)\s*(?:,.*)?\)")
"""``np.float64(0.5)``, ``tensor(0.5, device='cuda:0')``, ``Array(0.5, dtype=float32)``."""
_PADDED = re.compile(r"([-+]?(?:nan|inf))\.0?", re.IGNORECASE)
"""What Lightning's bars make of them: they fill up what is short with a point and zeros."""
_DURATION = re.compile(
    r"(?:(?P<d>\d+) ?d(?:ays?)?,? ?)?(?:(?P<h>\d+) ?h ?)?(?:(?P<m>\d+) ?m(?:in)? ?)?(?P<s>\d+(?:\.\d+)?) ?s"
)
"""``1h 19m 10s``."""
_VISUAL_C = {
    "1.#qnan": "nan",
    "-1.#ind": "nan",
    "1.#ind": "nan",
    "1.#inf": "inf",
    "-1.#inf": "-inf",
}
_MISSING = ("", "n/a", "na", "none", "null", "???", "-", "--")


def number(text: str) -> float | None:
    """Return the number that ``text`` spells, its unit taken into account; None where it is none.

    ``'2.3E+00' -> 2.3``, ``'NAN' -> nan``, ``'1,234' -> 1234.0``, ``'56.1ms' -> 0.0561``,
    ``'37.9%' -> 0.379``, ``'1h 2m 3s' -> 3723.0``, ``'nan.0' -> nan``, ``'1.26B' -> 1.26e9``, ``"'0.5'" -> 0.5``, ``'6,0093' -> 6.0093``.
    """
    try:
        return float(text)
    except ValueError:
        pass
    text = text.strip().strip("'\"")
    parts = split_unit(text)
    if parts is None:
        wrapped = _WRAPPED.fullmatch(text)
        if wrapped:
            return number(wrapped[1])
        if (padded := _PADDED.fullmatch(text)) is not None:
            return float(padded[1])
        if (long := _DURATION.fullmatch(text)) is not None:
            days, hours, minutes, seconds = (float(part or 0) for part in long.groups())
            return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
        spelt = _VISUAL_C.get(text.lower())
        return float(spelt) if spelt else None
    value, _, factor = parts
    if "," in value and has_decimal_comma(value):
        if "." in value or value.count(",") > 1:
            return None
        value = value.replace(",", ".")
    return float(value.replace(",", "").replace("_", "")) * factor


def has_decimal_comma(value: str) -> bool:
    """Say whether a comma stands before anything but a group of three digits: ``6,0093``."""
    return _NO_GROUP.search(value) is not None


def split_unit(text: str) -> tuple[str, str, float] | None:
    """Return the number in ``text`` as it is spelt, its unit, and the unit's factor."""
    match = _SPELT.fullmatch(text)
    if match is None:
        return None
    unit = match["unit"]
    factor = UNITS.get(unit, 1.0 if not unit else None)
    return None if factor is None else (match["number"], unit, factor)


def is_missing(text: str) -> bool:
    """Say whether ``text`` says that there is no value."""
    return text.strip().strip("'\"").lower() in _MISSING
