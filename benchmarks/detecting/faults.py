"""Faults: what is planted into a clean run, where it begins and ends, and how it should end."""

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from detecting.clean import assembled


@dataclass(frozen=True)
class Fault:
    """A kind of fault of one size."""

    kind: str
    size: str
    metric: str
    plant: object
    """Function of values, first row, random generator -> new values and last row."""
    room: int = 5
    """Rows that must follow the first."""
    room_share: float = 0.0
    within: int | None = None
    """Rows after the first that a detector gets to see; None for the whole log."""
    instant: bool = True
    ending: str | None = None
    target: float | None = None
    """Recall aimed at on real logs."""
    hidden: bool = False


@dataclass(frozen=True)
class Planted:
    """A fault in a log."""

    fault: Fault
    run: object
    row: int
    last_row: int
    first: int
    last: int
    ending: str | None
    """How it should end, where that is plain."""


def spike(factor, rows=1):
    def plant(x, i, r):
        x[i : i + rows] *= factor
        return min(len(x) - 1, i + rows - 1)

    return plant


def decaying(factor, tau):
    def plant(x, i, r):
        far = np.arange(len(x) - i)
        x[i:] *= 1 + (factor - 1) * np.exp(-far / tau)
        return min(len(x) - 1, i + 2 * tau)

    return plant


def level(factor, rows=None):
    def plant(x, i, r):
        last = len(x) - 1 if rows is None else min(len(x) - 1, i + rows - 1)
        x[i : last + 1] *= factor
        return last

    return plant


def drift(rise, share):
    def plant(x, i, r):
        over = max(8, int(share * len(x)))
        x[i:] *= 1 + rise * np.clip((np.arange(len(x) - i) + 1) / over, 0, 1)
        return len(x) - 1

    return plant


def climb(top):
    def plant(x, i, r):
        over = max(16, len(x) // 10)
        x[i:] *= 1 + (top - 1) * np.clip((np.arange(len(x) - i) + 1) / over, 0, None)
        return len(x) - 1

    return plant


def constant(value, rows=None):
    def plant(x, i, r):
        last = len(x) - 1 if rows is None else min(len(x) - 1, i + rows - 1)
        x[i : last + 1] = value
        return last

    return plant


FAULTS = (
    Fault("single row", "x1.3", "loss", spike(1.3)),
    Fault("single row", "x1.5", "loss", spike(1.5), ending="fast-recovery", target=0.80),
    Fault("single row", "x2", "loss", spike(2.0), ending="fast-recovery", target=0.95),
    Fault("single row", "x3", "loss", spike(3.0), ending="fast-recovery", target=0.99),
    Fault("spike of 10 rows", "x1.3", "loss", spike(1.3, 10), room=40, ending="fast-recovery"),
    Fault("pulse of 50 rows", "x1.3", "loss", spike(1.3, 50), room=250, ending="fast-recovery"),
    Fault("decaying spike", "x1.6, 30 rows", "loss", decaying(1.6, 30), room=200),
    Fault("level shift", "+5 %", "loss", level(1.05), room=64, within=64),
    Fault("level shift", "+10 %", "loss", level(1.10), room=64, within=64),
    Fault("level shift", "+15 %", "loss", level(1.15), room=64, within=64, target=0.90),
    Fault("level shift", "+30 %", "loss", level(1.30), room=64, within=64),
    Fault(
        "level shift for good",
        "+20 %",
        "loss",
        level(1.20),
        room=150,
        room_share=0.2,
        ending="new-basin",
    ),
    Fault("slow drift", "+5 %", "loss", drift(0.05, 0.05), room_share=0.12, instant=False),
    Fault(
        "slow drift",
        "+10 %",
        "loss",
        drift(0.10, 0.05),
        room_share=0.12,
        instant=False,
        target=0.90,
    ),
    Fault(
        "divergence", "to x2", "loss", climb(2.0), room_share=0.12, instant=False, ending="diverged"
    ),
    Fault("sudden drop", "-20 %", "loss", level(0.80), room=64, within=64),
    Fault("NaN", "to the end", "loss", constant(np.nan), room=10, ending="diverged"),
    Fault("NaN", "one row", "loss", constant(np.nan, 1)),
    Fault("gradient norm", "one row x10", "grad_norm", spike(10.0)),
    Fault("gradient norm", "ten rows x10", "grad_norm", spike(10.0, 10), target=0.99),
    Fault("gradient norm", "ten rows x4", "grad_norm", spike(4.0, 10)),
    Fault("gradient norm", "0 for 5 rows", "grad_norm", constant(0.0, 5)),
    Fault("throughput", "-6 % for 200 rows", "tokens_per_second", level(0.94, 200), room=200),
    Fault(
        "throughput",
        "-10 % for 200 rows",
        "tokens_per_second",
        level(0.90, 200),
        room=200,
        target=0.95,
    ),
    Fault("throughput", "-30 % for 200 rows", "tokens_per_second", level(0.70, 200), room=200),
    Fault(
        "hidden NaN",
        "loss 0, gradient NaN",
        "loss",
        constant(0.0),
        room=10,
        hidden=True,
        ending="diverged",
    ),
)
SPEED = ("tokens_per_second", "tokens_per_second_per_gpu", "step_seconds")


def planted(log, fault, r):
    """Plant a fault at a random place of a log; None where it does not fit."""
    metric, plant = fault.metric, fault.plant
    if metric == "tokens_per_second":
        metric = next((m for m in SPEED if log.run.has(m)), metric)
    at = log.at(metric)
    attempts = log.run.frame["attempt"].to_numpy()[at] if len(at) else at
    at = at[attempts == attempts[-1]] if len(at) else at
    n = len(at)
    room = max(fault.room, int(fault.room_share * n), 2)
    # After warm-up and the first rows: faults there are another matter, which rules tone down.
    low, high = max(80, int(0.15 * n)), n - room
    if high <= low or (fault.hidden and not log.run.has("grad_norm")):
        return None
    steps = log.run.frame["step"].to_numpy()
    for _ in range(20):
        i = int(r.integers(low, high))
        if metric == "loss" and fault.kind == "level shift" and not clear(log, steps[at], i, 64):
            continue
        if clear(log, steps[at], i, min(room, 200)):
            break
    else:
        return None
    values = log.run.array(metric).copy()
    x = values[at]
    if metric == "step_seconds":
        x = 1 / x
    last = plant(x, i, r)
    values[at] = 1 / x if metric == "step_seconds" else x
    columns = {metric: values}
    if fault.hidden:
        norm = log.run.array("grad_norm").copy()
        norm[at[i : last + 1]] = np.nan
        columns["grad_norm"] = norm
    run = log.changed(columns)
    if fault.hidden:
        run = rebuilt(run)
    first_step, last_step = int(steps[at[i]]), int(steps[at[last]])
    ending = _ending(fault, log, at, i, last_step - first_step)
    return Planted(fault, run, int(at[i]), int(at[last]), first_step, last_step, ending)


def _ending(fault, log, at, i, lasts):
    """How a fault should end; None where the run's own course decides or the limit is near."""
    interval = log.run.log_interval or 1
    if fault.ending == "fast-recovery":
        limit = max(200, 3 * interval)
        if lasts + 5 * interval <= limit:
            return "fast-recovery"
        return "slow-recovery" if lasts > limit else None
    if fault.ending == "new-basin":
        x = log.run.array(fault.metric)[at]
        before, after = np.median(x[max(0, i - 16) : i]), np.median(x[i + (len(x) - i) // 2 :])
        return "new-basin" if after > 0.97 * before else None
    return fault.ending


def clear(log, steps, i, rows):
    """Say whether no labelled stretch lies near the rows from i on."""
    near = max(1, int(np.median(np.diff(steps)))) * 80
    first, last = steps[i] - near, steps[min(len(steps) - 1, i + rows)] + near
    return not any(a <= last and b >= first for a, b in log.known)


def rebuilt(run):
    """Assemble anew, so that what the trainer hid is looked for."""
    keep = [
        c
        for c in run.frame.columns
        if c in ("step", "loss", "grad_norm", "learning_rate", "tokens_per_second")
    ]
    frame = run.frame.filter(~pl.col("discarded")).select(keep).sort("step")
    return assembled(run.name, frame.to_dict(as_series=True))
