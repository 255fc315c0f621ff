"""Waiting for data: which part of each step the data loader took, where the log tells."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from stabcli.metrics import normalise
from stabcli.run import Run
from stabcli.units import Step

SHARE = 0.1
"""Share of the time above which a run is held up by its data; a judgement."""
BEFORE = 200
"""Rows before a slow stretch that tell what is usual."""
NAMES = re.compile(
    r"(?:^|[/.])(?:data_?loading|loading|data_?load|data|data_?loader)(?P<timed>_time)?"
    r"(?:_*(?:\((?P<percent>%)\)|\((?P<seconds>s)\)|_(?P<word>pct|percent|s|sec|seconds)))?$"
)
"""Columns that time the data loader: ``time_metrics/data_loading(%)`` and ``(s)`` in torchtitan,
``throughput/device/data loading (%)`` in OLMo-core, ``throughput/loading_time`` in Levanter,
``data_time`` in many loops. Without a unit they are in seconds, and say that it is a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What part of the time each of n rows waited for data."""

    metric: str
    """The column that tells."""
    share: np.ndarray
    """Share of the row's time from 0 to 1, float64 of shape (n,); NaN where not known."""
    scale: np.ndarray
    """What the column shows where the share is 1, float64 of shape (n,)."""


def waiting(run: Run) -> Waiting | None:
    """Return the share of the time spent on loading data; None where no column tells.

    A column in percent comes first; one in seconds needs ``step_seconds``. None as well where a
    value is no share at all: it then counts something else, such as the sum of many steps.
    """
    found: list[tuple[bool, Waiting]] = []
    for metric in run.measurements:
        match = NAMES.search(normalise(run.word(metric)))
        if not match or not any(match.groups()):
            continue
        percent = bool(match["percent"]) or match["word"] in ("pct", "percent")
        if percent:
            scale = np.full(run.frame.height, 100.0)
        elif run.has("step_seconds"):
            scale = run.array("step_seconds")
        else:
            continue
        with np.errstate(invalid="ignore", divide="ignore"):
            share = run.array(metric) / scale
        known = share[np.isfinite(share)]
        if len(known) and known.min() >= 0 and known.max() <= 1.05:
            found.append((not percent, Waiting(metric=metric, share=share, scale=scale)))
    return min(found, key=lambda pair: pair[0])[1] if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What loading data had to do with steps that got slower."""

    metric: str
    """The column that tells."""
    says: str
    """What it says, in words."""
    part: float
    """Share of the lost time that loading took, from 0 to 1; 0 where it took its usual part."""
    rows: tuple[tuple[Step, float], ...]
    """Steps and values of the last row before and of the worst one."""


def held_up(
    run: Run,
    metric: str,
    attempt: int,
    steps: tuple[Step, Step],
    speeds: tuple[float, float | None],
) -> Held | None:
    """Compare the time for loading data while a run was slower with that before.

    Args:
        run: The run.
        metric: The figure that got worse: ``step_seconds``, or one of which more is better.
        attempt: Where it did.
        steps: First and last step of the slow stretch.
        speeds: The figure there, and as it should be.

    Returns:
        What loading had to do with it; None where the log does not tell.
    """
    told = waiting(run)
    value, expected = speeds
    if told is None or not expected or not value or not np.isfinite(value / expected):
        return None
    at = run.frame["step"].to_numpy()
    mine = (run.frame["attempt"].to_numpy() == attempt) & np.isfinite(told.share)
    during = np.flatnonzero(mine & (at >= steps[0]) & (at <= steps[1]))
    before = np.flatnonzero(mine & (at < steps[0]))[-BEFORE:]
    if not len(during) or len(before) < 3:
        return None
    usual, share = float(np.median(told.share[before])), float(np.median(told.share[during]))
    slower = value / expected if metric == "step_seconds" else expected / value
    # In units of the usual step: what loading takes more, of what the whole step takes more.
    part = (share * slower - usual) / (slower - 1) if slower > 1 else 0.0
    grew = share > SHARE and share >= usual + SHARE / 2
    worst = int(during[np.argmax(told.share[during])])
    return Held(
        metric=told.metric,
        says=f"{share:.0%} of the time went into loading data, {usual:.0%} before",
        part=min(part, 1.0) if grew and part >= SHARE else 0.0,
        rows=tuple(
            (int(at[r]), float(told.share[r] * told.scale[r])) for r in (int(before[-1]), worst)
        ),
    )
