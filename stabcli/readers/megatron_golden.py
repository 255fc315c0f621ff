"""Reader ``megatron-golden``: the golden values that Megatron-LM's functional tests compare with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from stabcli.assembly import Reading
from stabcli.errors import LogError
from stabcli.readers import reader
from stabcli.sources import Source
from stabcli.trackers.documents import document
from stabcli.trackers.layouts import is_golden
from stabcli.trackers.points import STEP, Points
from stabcli.trackers.values import Faults, number, text, whole


def matches(source: Source) -> bool:
    """Claim a JSON object of series with a first step, a last step and an interval."""
    return is_golden(source)


@reader(matches, writes="Megatron-LM: golden values of its functional tests")
def megatron_golden(source: Source) -> Iterator[Reading]:
    """Read series over steps: ``values`` by step, or in a list from ``start_step`` on.

    The tests write "nan" for whatever they did not find: a step at which every series says so
    was never reached, and a time that is one was not taken; both are left out. Another "nan" is
    one. Names are those of Megatron's TensorBoard tags; figures that are no series are left out.

    Raises:
        LogError: It is cut short, or holds no series.
    """
    held = document(source)
    faults = Faults()
    found: dict[str, list[tuple[int, int, float]]] = {}
    for name, series in held.items() if isinstance(held, dict) else []:
        if not isinstance(series, dict) or "values" not in series:
            if isinstance(series, dict) and _OF_A_SERIES & series.keys():
                faults.add(1, f"{text(name)[:40]}: a series without values")
            continue
        for line, (step, value) in enumerate(_values(series), start=1):
            counted, told = whole(step), number(value)
            if counted is None or told is None:
                faults.add(line, f"{text(name)[:40]}: no step and number: {text(value)[:40]!r}")
            else:
                found.setdefault(str(name), []).append((line, counted, told))
    reached = {
        step for series in found.values() for _, step, value in series if not math.isnan(value)
    }
    points = Points()
    never: set[int] = set()
    untimed = 0
    for name, told_series in found.items():
        for line, step, value in told_series:
            if step not in reached:
                never.add(step)
            elif math.isnan(value) and _is_time(name):
                untimed += 1
            else:
                points.add(name, step, value, line=line)
    if not len(points):
        raise LogError(f"{source.shown}: no series with a value in it: check the file")
    notes: list[str] = []
    if never:
        notes.append(
            f"{len(never):,} steps at which every series is nan were never reached: left out"
            f" ({min(never):,} to {max(never):,})"
        )
    if untimed:
        notes.append(f"{untimed:,} steps were not timed (nan in a series of times)")
    yield Reading(
        name=_name(source),
        table=points.table(notes, apart=True),
        names={"step": STEP},
        notes=tuple(notes),
        bad=faults.bad(),
    )


_OF_A_SERIES = {"start_step", "end_step", "step_interval"}


def _values(series: Mapping[str, Any]) -> Iterator[tuple[object, object]]:
    """Yield step and value, from a mapping by step or a list at equal distances."""
    values = series["values"]
    if isinstance(values, dict):
        for step, value in values.items():
            yield number(step), value
    elif isinstance(values, list):
        first, gap = whole(series.get("start_step")) or 0, whole(series.get("step_interval")) or 1
        for at, value in enumerate(values):
            yield first + at * gap, value


def _is_time(name: str) -> bool:
    return name.lower().endswith(("time", "timing", "timing_avg", "(ms)"))


def _name(source: Source) -> str:
    """Return the name of the folder, which is that of the test, before the file's."""
    parts = source.path.parts if source.shown == "-" else tuple(source.shown.split("/"))
    return "/".join(parts[-2:]) if len(parts) > 1 and source.shown != "-" else source.name
