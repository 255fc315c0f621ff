"""Rewards: where they are the same for every answer, so that no policy can learn from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stabcli.run import Run
from stabcli.series import Signal, signals
from stabcli.units import Step, number, percent

ALIKE = 0.8
"""Share of the rows of a stretch that must hold one and the same reward for it to be constant."""
LEAST = 10
"""Rows that a constant reward, or groups without spread, must last."""
WHOLE = 20
"""Rows that a reward must have which never was another one."""
USUAL = 0.2
"""Share of the rows before in which that reward, or such groups, may have been there already."""
DEAD = 0.9
"""Share of the groups without any spread of rewards from which nearly all are dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SameReward:
    """A stretch in which answers were rewarded alike."""

    reward: float | None
    """The mean reward that its rows hold; None where only groups are without spread."""
    rows: int
    """Rows that hold it."""
    of: int
    """Rows of the stretch."""
    first: Step
    last: Step
    dead: float | None
    """Median share of groups without spread there; None if not logged."""
    metric: str
    """Metric that shows it."""
    value: float
    """Its value there."""

    @property
    def told(self) -> str:
        """What is alike, for a sentence."""
        if self.reward is not None:
            return f"{number(self.reward)} for all,"
        return f"{percent(self.dead or 0.0)} of the groups"


def same_reward(run: Run, attempt: int, first: Step, last: Step) -> SameReward | None:
    """Return the stretch of an incident in which answers are rewarded alike, unlike before.

    A reward that falls because the policy got worse still differs from batch to batch and within
    groups. One that is exactly 0, or exactly anything, row after row, comes from what gives it.

    Args:
        run: The run.
        attempt: The attempt of the incident.
        first: Its first step.
        last: Its last step.
    """
    reward = _signal(run, "reward", attempt)
    if reward is None:
        return None
    dead = _signal(run, "dead_group_fraction", attempt)
    if dead is None and (spread := _signal(run, "reward_std", attempt)) is not None:
        dead = Signal(
            metric="reward_std",
            attempt=attempt,
            rows=spread.rows,
            steps=spread.steps,
            values=(np.abs(spread.values) < 1e-9).astype(float),
            inherited=np.empty(0),
            resumed=spread.resumed,
        )
    return _constant(reward, dead, first, last) or _lifeless(dead, first, last)


def throughout(reward: Signal, value: float) -> bool:
    """Say whether a reward has one value in all rows there are, those before a restart too."""
    joined = np.concatenate([reward.inherited, reward.values])
    return len(joined) >= WHOLE and bool((joined[np.isfinite(joined)] == value).all())


def never_differed(run: Run, attempt: int) -> bool:
    """Say whether the mean reward is the same from the first row of an attempt to its last."""
    reward = _signal(run, "reward", attempt)
    return reward is not None and len(reward) > 0 and throughout(reward, float(reward.values[0]))


def _constant(reward: Signal, dead: Signal | None, first: Step, last: Step) -> SameReward | None:
    begin, end = np.searchsorted(reward.steps, [first, last + 1])
    x = reward.values[begin:end]
    if not len(x):
        return None
    values, counts = np.unique(x, return_counts=True)
    common = float(values[np.argmax(counts)])
    at = np.flatnonzero(x == common)
    a, b = int(at[0]), int(at[-1])
    before = reward.values[:begin]
    # Without rows before it is news only where it never was another one.
    held = (
        float((before == common).mean()) if len(before) else float(not throughout(reward, common))
    )
    if len(at) < LEAST or len(at) < ALIKE * (b - a + 1) or held > USUAL:
        return None
    start, stop = int(reward.steps[begin + a]), int(reward.steps[begin + b])
    share = None
    if dead is not None:
        inside = dead.values[(dead.steps >= start) & (dead.steps <= stop)]
        share = float(np.median(inside)) if len(inside) else None
        if share is not None and share < DEAD:
            return None
    return SameReward(
        reward=common,
        rows=len(at),
        of=b - a + 1,
        first=start,
        last=stop,
        dead=share,
        metric="reward",
        value=common,
    )


def _lifeless(dead: Signal | None, first: Step, last: Step) -> SameReward | None:
    if dead is None:
        return None
    begin, end = np.searchsorted(dead.steps, [first, last + 1])
    at = begin + np.flatnonzero(dead.values[begin:end] >= DEAD)
    before = dead.values[:begin]
    if len(at) < LEAST or len(at) < ALIKE * (at[-1] - at[0] + 1) or not len(before):
        return None
    if float((before >= DEAD).mean()) > USUAL:
        return None
    share = float(np.median(dead.values[at]))
    return SameReward(
        reward=None,
        rows=len(at),
        of=int(at[-1] - at[0]) + 1,
        first=int(dead.steps[at[0]]),
        last=int(dead.steps[at[-1]]),
        dead=share,
        metric=dead.metric,
        value=share if dead.metric == "dead_group_fraction" else 0.0,
    )


def _signal(run: Run, metric: str, attempt: int) -> Signal | None:
    """Return the finite values of a metric in an attempt; None where there are none."""
    parts = signals(run, metric) if run.has(metric) else []
    return next((s.finite() for s in parts if s.attempt == attempt), None)
