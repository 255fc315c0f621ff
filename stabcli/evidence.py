"""Evidence: a cause and the rows that speak for it; causes that one sign alone points at."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from stabcli.alone import Alone, alone
from stabcli.endings import TRAINED
from stabcli.incidents import Incident
from stabcli.rewards import SameReward, same_reward
from stabcli.rules import RESCALED
from stabcli.run import Run
from stabcli.units import Step, number, percent

CauseName = Literal[
    "learning-rate",
    "number-format",
    "repeated-data",
    "reordered-data",
    "schedule",
    "config-change",
    "reporting-change",
    "reward-function",
    "restart",
    "hardware",
    "bad-batch",
    "data-loading",
    "slow-hardware",
]
CAUSES: tuple[CauseName, ...] = get_args(CauseName)
"""What incidents may come from, those that a log shows best first."""
Standing = Literal["observed", "supported", "hypothesis"]
STANDINGS: tuple[Standing, ...] = get_args(Standing)
"""How sure a cause is, the surest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row that speaks for a cause."""

    metric: str
    attempt: int
    step: Step
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One thing that may have brought an incident about."""

    name: CauseName
    standing: Standing
    why: str
    """What in the log says so, as a clause without a full stop."""
    rows: tuple[Row, ...] = ()
    """The rows that say so."""


def lone_process(run: Run, incident: Incident) -> Alone | None:
    """Return the process in which alone an incident's first value was not finite; None if none."""
    broken = [f for f in incident.telling if f.metric in TRAINED and not math.isfinite(f.value)]
    first = min(broken, key=lambda f: f.first, default=None)
    return None if first is None else alone(run, first.attempt, first.first)


def of_process(run: Run, incident: Incident) -> Iterator[Cause]:
    """Point at the device, or the data, of the one process that was not finite."""
    one = lone_process(run, incident)
    if one is None:
        return
    why = f"at step {one.first:,} only process {one.process} of {one.of} was not finite: its device"
    if one.spread is not None:
        why += f", or its batch; the others followed at step {one.spread:,}"
    elif one.later:
        why += ", or its batch; the others stayed finite, which they do not once its gradients reach all weights"
    else:
        why += ", or its batch"
    row = Row(metric=one.metric, attempt=incident.attempt, step=one.first, value=math.nan)
    yield Cause(name="hardware", standing="supported", why=why, rows=(row,))
    why = f"only the batches of process {one.process} of {one.of} can have done it, if any did"
    yield Cause(name="bad-batch", standing="supported", why=why, rows=(row,))


def constant_reward(run: Run, incident: Incident) -> SameReward | None:
    """Return where the reward of an incident of a policy is one and the same; None elsewhere."""
    if not any(
        f.metric in ("reward", "reward_std", "dead_group_fraction") for f in incident.telling
    ):
        return None
    return same_reward(run, incident.attempt, incident.first, incident.last)


def of_reward(run: Run, incident: Incident) -> Iterator[Cause]:
    """Point at the function that gives rewards, where it gives the same for everything."""
    same = constant_reward(run, incident)
    if same is None:
        return
    why = f"in steps {same.first:,} to {same.last:,} {same.told} are alike"
    sure: Standing = "hypothesis"
    if same.reward is not None:
        sure = "supported"
        why = (
            f"the reward is exactly {number(same.reward)} in {same.rows:,} of {same.of:,} rows of"
            f" steps {same.first:,} to {same.last:,}"
        )
        if same.dead is not None:
            why += f", where {percent(same.dead)} of the groups have no spread"
    why += ": a broken reward function, verifier or parser of answers"
    row = Row(metric=same.metric, attempt=incident.attempt, step=same.first, value=same.value)
    yield Cause(name="reward-function", standing=sure, why=why, rows=(row,))


def of_reporting(incident: Incident) -> Iterator[Cause]:
    """Point at a loss that is summed where it was averaged, or the other way round."""
    for f in incident.findings:
        if RESCALED not in f.tags or not f.expected:
            continue
        ratio = f.value / f.expected
        times = f"{ratio:.2f} times" if ratio > 1 else f"1/{1 / ratio:.2f} of"
        known = "norm-unmoved" in f.tags
        norm = " and the gradient norm unmoved" if known else ""
        why = (
            f"from one row to the next the loss is {times} what it was, with its relative noise and"
            f" slope as before{norm}: summed over steps or processes, or averaged, unlike before"
        )
        row = Row(metric="loss", attempt=f.attempt, step=f.peak, value=f.value)
        standing: Standing = "supported" if known else "hypothesis"
        yield Cause(name="reporting-change", standing=standing, why=why, rows=(row,))
        return
