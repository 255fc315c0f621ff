"""Choice: which of several runs to keep, on what grounds, and where nothing tells them apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from stabcli.comparison.sides import HELD_OUT, HIGHER, Side
from stabcli.joining.copies import begins
from stabcli.levels import noise
from stabcli.rules import SEVERITIES
from stabcli.tails import kept
from stabcli.units import number, plural

ERRORS = 3.0
"""Standard errors of a difference that are put down to noise."""
FLOOR = 0.002
"""Least relative difference that counts, however quiet the runs are."""
EVALUATIONS = 5
"""Evaluations from which their own noise is known."""

Measured = tuple[float, float]
"""A value and its standard error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The run to keep."""

    keep: tuple[str, ...]
    """Letters: one, several where nothing tells them apart, none where none is fit."""
    why: tuple[str, ...]
    """What was looked at, in order, and what it told."""
    unfit: tuple[tuple[str, str], ...]
    """Letter of each run that was never a candidate, and why."""


def choose(sides: Sequence[Side], metric: str | None) -> Choice:
    """Choose the run to keep.

    A run that ended non-finite, or never recovered, is not a candidate, nor is one that went on
    for long after its curve was logged last: how that one ended is not known. Of the others each
    ground leaves those that are no worse than the best by more than noise: the last held-out
    figure that all have, the level the training curve ended at, the incidents. What was wasted on
    the way is spent either way and decides nothing.
    """
    unfit = tuple(
        (s.key, reason) for s in sides if (reason := _beginning(s, sides) or _unfit(s, metric))
    )
    out = {key for key, _ in unfit}
    left = [s for s in sides if s.key not in out]
    known = "is known to have ended" if any(s.blind is not None for s in sides) else "ended"
    if not left:
        return Choice(keep=(), why=(f"no run {known} well",), unfit=unfit)
    if len(left) == 1:
        apart = [s for s in sides if s.key in out and not _beginning(s, sides)]
        said = f"the only one that {known} well" if apart else "the only one"
        return Choice(keep=(left[0].key,), why=(said,), unfit=unfit)
    why: list[str] = []
    vocabularies = {s.run.fact("vocab_size") for s in left} - {None}
    grounds: list[Callable[[Sequence[Side], list[str]], list[Side]]] = []
    if len(vocabularies) > 1:
        why.append("losses of different vocabularies cannot be compared")
    else:
        grounds += [_by_held_out, lambda s, said: _by_curve(s, said, metric)]
    for ground in (*grounds, _by_incidents):
        left = ground(left, why)
        if len(left) == 1:
            break
    return Choice(keep=tuple(s.key for s in left), why=tuple(why), unfit=unfit)


def _beginning(side: Side, sides: Sequence[Side]) -> str:
    """Say of which other run all rows of one are the first; empty where of none."""
    whole = next((s.key for s in sides if begins(s.run, side.run)), None)
    if whole is None:
        return ""
    rows = plural(side.run.frame.height, "row")
    return f"it is the beginning of {whole}: its {rows} are the first of {whole}, to the last value"


def _unfit(side: Side, metric: str | None) -> str:
    """Say why a run is no candidate; empty where it is one."""
    if side.spoilt is not None:
        return f"not finite from step {side.spoilt:,} on"
    final = side.final()
    if metric is not None and final is None:
        return f"its log has no {metric}"
    if final is not None and not math.isfinite(final.value):
        return f"{metric} not finite at the end, step {final.last:,}"
    if side.lost is not None:
        return f"{side.lost.rule} from step {side.lost.first:,} on, never recovered"
    if side.blind is not None:
        return f"cannot be judged: its {metric} was not logged after step {side.blind:,}"
    return ""


def _by_held_out(left: Sequence[Side], why: list[str]) -> list[Side]:
    """Keep those whose last held-out figure is no worse than the best by more than noise."""
    said = len(why)
    for metric in HELD_OUT:
        values = [_evaluated(s, metric) for s in left]
        known = [v for v in values if v is not None]
        if len(known) < len(left):
            continue
        late = [s.key for s in left if s.gone(metric) is not None]
        if not late or len(late) == len(left):
            return _best(left, known, f"last {metric}", why, higher=metric in HIGHER)
        why.append(f"last {metric}: cannot be judged: not logged to the end in {', '.join(late)}")
    if len(why) == said:
        why.append("no held-out figure that all of them have")
    return list(left)


def _evaluated(side: Side, metric: str) -> Measured | None:
    """Return the last value of a held-out figure, and how much it shakes from one to the next."""
    series = kept(side.run, metric)
    if series is None:
        return None
    good = series.values[np.isfinite(series.values)]
    if not len(good) or not math.isfinite(series.values[-1]):
        return None
    return float(good[-1]), noise(good) if len(good) >= EVALUATIONS else 0.0


def _by_curve(left: Sequence[Side], why: list[str], metric: str | None) -> list[Side]:
    """Keep those whose training curve ended no worse than the best by more than noise."""
    if metric is None or metric in ("objective_loss", "grad_norm"):
        return list(left)  # an objective's own value, or a norm, ranks nothing
    if metric in HIGHER:
        trusted = [s for s in left if not _gamed(s)]
        if len(trusted) < len(left):
            shown = ", ".join(f"{s.key} ({rule})" for s in left if (rule := _gamed(s)))
            why.append(f"a {metric} that is not to be trusted: {shown}")
            if not trusted:
                return list(left)
            left = trusted
    levels = [s.final() for s in left]
    known = [(v.value, v.error) for v in levels if v is not None]
    if len(known) < len(left):
        return list(left)
    return _best(left, known, f"final {metric}", why, higher=metric in HIGHER)


def _gamed(side: Side) -> str:
    """Return the rule that found the policy off its course for good; empty where none did."""
    found = (i for i in side.grave if i.family == "policy" and i.recovered is None)
    return next((i.rule for i in found), "")


def _best(
    left: Sequence[Side], values: Sequence[Measured], what: str, why: list[str], *, higher: bool
) -> list[Side]:
    pick = max if higher else min
    top, error = pick(values, key=lambda v: v[0])
    fit = [
        abs(value - top) <= max(ERRORS * math.hypot(own, error), FLOOR * abs(top))
        for value, own in values
    ]
    shown = ", ".join(f"{s.key} {number(v)}" for s, (v, _) in zip(left, values, strict=True))
    if all(fit):
        why.append(f"{what}: {shown}: no difference beyond noise")
    else:
        best = ", ".join(s.key for s, good in zip(left, fit, strict=True) if good)
        why.append(f"{what}: {shown}: {best} {'is' if sum(fit) == 1 else 'are'} best")
    return [s for s, good in zip(left, fit, strict=True) if good]


def _by_incidents(left: Sequence[Side], why: list[str]) -> list[Side]:
    """Keep those with the fewest grave incidents, the gravest counted first."""
    counts = [
        tuple(sum(i.severity == severity for i in s.grave) for severity in reversed(SEVERITIES))
        for s in left
    ]
    fewest = min(counts)
    fit = [s for s, c in zip(left, counts, strict=True) if c == fewest]
    shown = ", ".join(f"{s.key} {sum(c)}" for s, c in zip(left, counts, strict=True))
    why.append(f"incidents: {shown}" + (": as grave in all" if len(fit) == len(left) else ""))
    return fit
