"""Values: numbers, times and settings as trackers spell them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from stabcli.run import BadLines

SHOWN = 5
"""Unusable records that are kept with number and reason; the rest are only counted."""
WIDEST_STEP = 1 << 62
"""Steps from here on, either way, are no steps."""
LONGEST_NAME = 400
"""Letters of a name, beyond which it is cut."""


@dataclass(slots=True)
class Faults:
    """Records that could not be used: all counted, the first few kept."""

    count: int = 0
    first: list[tuple[int, str]] = field(default_factory=list)

    def add(self, number: int, why: str) -> None:
        """Take in one; ``number`` is its line or record, from 1."""
        self.count += 1
        if len(self.first) < SHOWN:
            self.first.append((number, why))

    def bad(self) -> BadLines:
        """Return them as a reading wants them."""
        return BadLines(count=self.count, first=tuple(self.first))


def number(value: object) -> float | None:
    """Return a logged value as a number, NaN and infinities in any spelling; None if it is none."""
    if isinstance(value, bool | int | float):
        try:
            return float(value)
        except OverflowError:
            return None
    if not isinstance(value, str) or len(value) > 64:
        return None
    try:
        return float(value)  # takes nan, inf, Infinity and -Infinity in any case
    except ValueError:
        return None


def whole(value: object) -> int | None:
    """Return a step as a whole number; None where it is missing, or none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) < WIDEST_STEP else None
    found = number(value) if not isinstance(value, bool) else None
    if found is None or not math.isfinite(found) or abs(found) >= WIDEST_STEP:
        return None
    return int(found) if found == int(found) else None


def seconds(value: object) -> float | None:
    """Return a time as seconds since 1970, from milliseconds, seconds or ISO 8601; None if none."""
    if isinstance(value, str) and number(value) is None:
        try:
            moment = datetime.fromisoformat(value.strip())
        except ValueError:
            return None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    found = number(value) if not isinstance(value, bool) else None
    if found is None or not math.isfinite(found) or found <= 0:
        return None
    return found / 1e3 if found > 1e11 else found


def clock(value: float) -> str:
    """Return seconds since 1970 as people write them."""
    try:
        return f"{datetime.fromtimestamp(value, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return "an impossible time"


def text(value: object) -> str:
    """Return a name as text that can stand in a table: no half characters, not without end."""
    found = str(value).encode("utf-8", "replace").decode("utf-8")
    return found if len(found) <= LONGEST_NAME else f"{found[:LONGEST_NAME]}…"


_WORDS = {"true": True, "false": False, "none": None, "null": None}


def setting(value: Any) -> Any:
    """Return a setting as what it says: trackers keep numbers and switches as text."""
    if not isinstance(value, str):
        return value
    spelt = value.strip()
    if spelt.lower() in _WORDS:
        return _WORDS[spelt.lower()]
    for read in (int, float):
        try:
            return read(spelt)
        except ValueError:
            continue
    return spelt


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return flat settings ready for facts.

    The steps between checkpoints are left out where they are saved by another clock.
    """
    made = {text(k): setting(v) for k, v in config.items()}
    if made.get("save_strategy", "steps") != "steps":
        made.pop("save_steps", None)
    return made


def named(names: Iterable[str], most: int = 5) -> str:
    """Return a few names for a note: sorted, quoted, the rest counted."""
    known = sorted(set(names))
    more = f" and {len(known) - most:,} more" if len(known) > most else ""
    return ", ".join(repr(n) for n in known[:most]) + more


def told_apart(names: Iterable[tuple[str, str]]) -> list[str]:
    """Return names of runs that are all different: those that come twice carry their id.

    Args:
        names: Name for people and id of each run.
    """
    known = [(text(name).strip() or text(key), text(key)) for name, key in names]
    often = [name for name, _ in known]
    return [name if often.count(name) == 1 else f"{name} ({key[:8]})" for name, key in known]


def counted(steps: Sequence[float], notes: list[str]) -> list[int | None]:
    """Return steps as whole numbers; fractions are counted in order, and a note says so."""
    usable = [s for s in steps if math.isfinite(s) and abs(s) < WIDEST_STEP]
    if all(s == int(s) for s in usable):
        return [whole(s) for s in steps]
    order = sorted(set(usable))
    place = {s: at for at, s in enumerate(order, start=1)}
    notes.append(
        f"steps are fractions: counted in order; 1 stands for {order[0]:g} and"
        f" {len(order):,} for {order[-1]:g}"
    )
    return [place.get(s) for s in steps]
