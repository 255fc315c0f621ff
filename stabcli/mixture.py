"""Mixture: losses of single sources of the data, and which of them leapt."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from stabcli.metrics import METRICS, normalise
from stabcli.run import Run
from stabcli.series import WINDOW, signals
from stabcli.units import Step

PARTS = frozenset(
    [
        "val",
        "valid",
        "validation",
        "eval",
        "test",
        "dev",
        "aux",
        "auxiliary",
        "z",
        "ce",
        "lm",
        "nll",
        "total",
        "avg",
        "global",
        "local",
        "max",
        "min",
        "kl",
        "policy",
        "pg",
        "value",
        "vf",
        "actor",
        "critic",
        "entropy",
        "balance",
        "balancing",
        "router",
        "moe",
        "expert",
        "mtp",
        "distill",
        "reg",
        "ptx",
        "raw",
        "ema",
        "smooth",
        "scaled",
        "reduced",
        "mean",
        "step",
        "epoch",
        "weighted",
    ]
)
"""Words of losses that are a part, a mean or a kind of the loss, and no source of data."""
COMMON = frozenset({"train", "training", "loss", "losses"})
"""Words that losses of sources have besides the name of the source."""
ALONE = 0.25
"""Share of the leap of one source that no other may show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leap:
    """The one source whose loss leapt."""

    metric: str
    """Its column."""
    of: int
    """Sources that are logged."""
    step: Step
    before: float
    """Level of its loss before."""
    value: float
    """Its highest loss."""


def only_source(run: Run, attempt: int, first: Step, last: Step) -> Leap | None:
    """Return the source whose loss alone leapt from step ``first`` to ``last``; None if none did.

    None as well where fewer than two sources are logged, or several leapt.
    """
    for names in _sources(run):
        leaps = [leap for m in names if (leap := _leap(run, m, len(names), attempt, first, last))]
        if len(leaps) < len(names):
            continue
        leaps.sort(key=lambda leap: leap.value / leap.before, reverse=True)
        sizes = [leap.value / leap.before - 1 for leap in leaps]
        # A leap of the mean over n sources that one alone has is n times as large there.
        if sizes[0] > _size(run, attempt, first, last) > 0 and sizes[1] < ALONE * sizes[0]:
            return leaps[0]
    return None


def _sources(run: Run) -> list[list[str]]:
    """Return the columns that differ in one word, the name of a source, two at least."""
    alike: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for metric in run.measurements:
        words = re.split(r"[/._]+", normalise(metric))
        named = [w for w in words if w not in COMMON]
        if metric in METRICS or len(named) != 1 or len(named) == len(words):
            continue
        if not PARTS & set(words) and not named[0].isdigit():
            alike[tuple("" if w == named[0] else w for w in words)].append(metric)
    return [names for names in alike.values() if len(names) > 1]


def _leap(run: Run, metric: str, of: int, attempt: int, first: Step, last: Step) -> Leap | None:
    signal = next((s.finite() for s in signals(run, metric) if s.attempt == attempt), None)
    if signal is None:
        return None
    start, stop = np.searchsorted(signal.steps, [first, last + 1])
    before = signal.values[max(0, start - WINDOW) : start]
    if len(before) < WINDOW // 4 or start == stop or not (level := float(np.median(before))) > 0:
        return None
    at = int(start + np.argmax(signal.values[start:stop]))
    return Leap(
        metric=metric,
        of=of,
        step=int(signal.steps[at]),
        before=level,
        value=float(signal.values[at]),
    )


def _size(run: Run, attempt: int, first: Step, last: Step) -> float:
    """Return how far the loss itself leapt, relative to its level before."""
    leap = _leap(run, "loss", 1, attempt, first, last) if run.has("loss") else None
    return 0.0 if leap is None else leap.value / leap.before - 1
