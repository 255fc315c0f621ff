"""Baseline: is a run worse than another one, by more than a margin and the noise of both?"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stabcli.clocks import LONE_ROWS, SMOOTH, STANDSTILL
from stabcli.criteria import Criterion, Status, share
from stabcli.diagnosis import Diagnosis
from stabcli.endings import TRAINED
from stabcli.errors import SettingError
from stabcli.ledger import Ledger, ledger
from stabcli.progress import tokens_reached
from stabcli.run import Run
from stabcli.series import stretches
from stabcli.settings import suggestion
from stabcli.tails import FEWEST, Kept, Level, gone, kept, level, tail
from stabcli.units import count, number, percent

ERRORS = 3.0
"""Standard errors of the difference that are put down to noise."""
CHANCE = 0.05
"""Probability below which more spikes than in the baseline are no chance."""
WINDOW = 0.05
"""Share of the way, in tokens or steps, whose rows tell the loss at a point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Margins:
    """How much worse than the baseline is still well, as fractions of the baseline's figure."""

    loss: float = 0.01
    throughput: float = 0.05
    mfu: float = 0.05
    spikes: float = 0.0


MARGINS = ("loss", "throughput", "mfu", "spikes")


def margins(given: Mapping[str, tuple[object, str]]) -> Margins:
    """Read margins.

    Args:
        given: Name of a margin -> its value and where it was given.

    Raises:
        SettingError: There is no such margin, or it is not a share.
    """
    values: dict[str, Any] = {}
    for name, (value, source) in given.items():
        if name not in MARGINS:
            raise SettingError(f"{source}: no such margin: {suggestion(name, MARGINS)}")
        values[name] = share(value, source)
    return Margins(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One of the two runs, with what several comparisons need of it."""

    d: Diagnosis
    book: Ledger
    loss: Kept | None

    @property
    def run(self) -> Run:
        return self.d.run


def _side(d: Diagnosis) -> _Side:
    return _Side(d=d, book=ledger(d.run), loss=kept(d.run, "loss"))


def against(d: Diagnosis, base: Diagnosis, allowed: Margins) -> list[Criterion]:
    """Compare a run with a baseline in everything that both logs tell.

    What neither log tells, or the baseline's does not, is skipped; what only the baseline's
    tells is unknown, and so is the whole where nothing can be compared.
    """
    ours, theirs = _side(d), _side(base)
    found = [
        _final(ours, theirs, allowed.loss),
        _on_the_way(ours, theirs, allowed.loss),
        _throughput(ours, theirs, allowed.throughput),
        _mfu(d, base, allowed.mfu),
        _spikes(ours, theirs, allowed.spikes),
    ]
    if all(c.status == "skipped" for c in found):
        why = f"{base.run.name} and this run have nothing in common that could be compared"
        found.append(Criterion(name="baseline", status="unknown", text=why))
    return found


def _final(ours: _Side, theirs: _Side, margin: float) -> Criterion:
    name = "baseline final-loss"
    if ours.loss is None or theirs.loss is None:
        return _untold(name, "loss", ours.loss is None, theirs.loss is None)
    for side, whose in ((ours, "the loss"), (theirs, "the loss of the baseline")):
        if side.loss is not None and (late := gone(side.run, side.loss)):
            why = f"{whose} at the end is unknown: it was {late}"
            return Criterion(name=name, status="unknown", text=why)
    a, b = tail(ours.loss), tail(theirs.loss)
    return _loss(name, a, b, margin, f"median of the last {a.rows:,} logged")


def _on_the_way(ours: _Side, theirs: _Side, margin: float) -> Criterion:
    """Compare the loss at the last point, in tokens, that both runs reached."""
    name = "baseline loss"
    if ours.loss is None or theirs.loss is None:
        return _untold(name, "loss", ours.loss is None, theirs.loss is None)
    unit = "tokens"
    x = tokens_reached(ours.run, ours.book, ours.loss)
    y = tokens_reached(theirs.run, theirs.book, theirs.loss)
    if x is None or y is None:
        unit, x, y = "steps", ours.loss.steps.astype(float), theirs.loss.steps.astype(float)
    end = min(float(x[-1]), float(y[-1]))
    a, b = _before(x, end), _before(y, end)
    if a is None or b is None:
        late = "this one" if a is None else "the baseline"
        why = f"no stretch in common: {late} begins after {count(end)} {unit}"
        return Criterion(name=name, status="unknown", text=why)
    where = f"at {count(end)} {unit}"
    return _loss(name, level(ours.loss, a), level(theirs.loss, b), margin, where)


def _before(x: np.ndarray, end: float) -> slice | None:
    """Return the rows just before a point of the way: the last 5 % of it, at least 16 rows."""
    stop = int(np.searchsorted(x, end * (1 + 1e-9), side="right"))
    if not stop:
        return None
    start = int(np.searchsorted(x, end - WINDOW * abs(end), side="right"))
    return slice(max(0, min(start, stop - FEWEST)), stop)


def _loss(name: str, a: Level, b: Level, margin: float, where: str) -> Criterion:
    if not math.isfinite(b.value):
        why = f"the baseline's loss is not finite at step {b.last:,}: give another baseline"
        return Criterion(name=name, status="unknown", text=why, value=a.value)
    noise = ERRORS * math.hypot(a.error, b.error)
    most = b.value + margin * abs(b.value) + noise
    said = (
        f"loss {number(a.value)} against {number(b.value)}, {where};"
        f" at most {number(most)} allowed: margin {percent(margin)}, noise {number(noise, 2)}"
    )
    return _decided(name, math.isfinite(a.value) and a.value <= most, said, a.value, most)


def _throughput(ours: _Side, theirs: _Side, margin: float) -> Criterion:
    name = "baseline throughput"
    here, there = _speeds(ours), _speeds(theirs)
    unit = next((u for u in there if u in here), None)
    if unit is None:
        if here and there:
            why = f"this log tells {next(iter(here))}, the baseline's {next(iter(there))}"
            return Criterion(name=name, status="unknown", text=why)
        return _untold(name, "time or the throughput", not here, not there)
    a, b = here[unit], there[unit]
    noise = ERRORS * math.hypot(a.error, b.error)
    least = b.value * (1 - margin) - noise
    said = (
        f"{number(a.value)} {unit} against {number(b.value)}, standstills left out; at least {number(least)} wanted:"
        f" margin {percent(margin)}, noise {number(noise, 2)}"
    )
    gpus = [side.run.fact("gpus") for side in (ours, theirs)]
    if "GPU" not in unit and gpus[0] and gpus[1] and gpus[0] != gpus[1]:
        said += f"; with {gpus[0]:,.0f} GPUs against {gpus[1]:,.0f}"
    return _decided(name, a.value >= least, said, a.value, least)


def _speeds(side: _Side) -> dict[str, Level]:
    """Return the speed of a run in every unit that its log tells, the best unit first."""
    run, book = side.run, side.book
    work = book.steps.astype(float) if book.tokens is None else book.tokens
    done: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    if book.seconds is not None:
        if book.tokens is not None:
            done["tokens/s"] = book.tokens, book.seconds
        done["steps/s"] = book.steps.astype(float), book.seconds
    gpus = run.fact("gpus")
    if run.has("tokens_per_second_per_gpu"):
        done["tokens/s per GPU"] = _paced(work, run.array("tokens_per_second_per_gpu"))
    if run.has("tokens_per_second"):
        done["tokens/s"] = _paced(work, run.array("tokens_per_second"))
    if gpus and "tokens/s" in done:
        tokens, seconds = done["tokens/s"]
        done.setdefault("tokens/s per GPU", (tokens, seconds * gpus))
    units = [u for u in ("tokens/s per GPU", "tokens/s", "steps/s") if u in done]
    found = {u: _in_all(run, *done[u]) for u in units}
    return {u: speed for u, speed in found.items() if speed is not None}


def _paced(work: np.ndarray, rate: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return an amount of work, and the time that it took at a rate."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return work, np.where(rate > 0, work / rate, np.nan)


def _in_all(run: Run, work: np.ndarray, seconds: np.ndarray) -> Level | None:
    """Return all work over all time, of rows that no restart took back; None where none is timed.

    Rows that stand still are left out, which a pause or a checkpoint makes as well, and so are the
    slow first ones of an attempt, which compile: those are no speed of the training.
    """
    stays = ~run.frame["discarded"].to_numpy()
    good = np.flatnonzero(stays & np.isfinite(seconds) & (seconds >= 0) & (work > 0))
    work, seconds = work[good], seconds[good]
    if not seconds.sum() > 0:
        return None
    pace = seconds / work
    middle = float(np.median(pace)) or float(pace.mean())  # a coarse clock may make most of them 0
    tick = 1.0 if (seconds == np.round(seconds)).all() else 0.0
    begins = np.diff(run.frame["attempt"].to_numpy()[good], prepend=-1) != 0
    stay = np.ones(len(good), bool)
    slow = (pace >= STANDSTILL * middle) & (seconds - middle * work > tick)
    for first, last in stretches(slow):
        early = begins[max(0, first - 1) : first + 1].any()  # no clock times the very first row
        if last - first < (SMOOTH if early else LONE_ROWS):
            stay[first : last + 1] = False
    work, seconds, pace, rows = work[stay], seconds[stay], pace[stay], good[stay]
    if not seconds.sum() > 0:
        return None
    speed = float(work.sum() / seconds.sum())
    series = Kept(rows=rows, steps=run.frame["step"].to_numpy()[rows], values=pace)
    shown = level(series, slice(None))
    return replace(shown, value=speed, error=shown.error * speed**2)  # of the inverse


def _mfu(d: Diagnosis, base: Diagnosis, margin: float) -> Criterion:
    name = "baseline mfu"
    ours, theirs = d.cost.efficiency, base.cost.efficiency
    for fit, whose in ((ours, "an MFU"), (theirs, "an MFU of the baseline")):
        if fit.doubt:
            return Criterion(name=name, status="unknown", text=f"{whose}: {fit.doubt}")
    pairs = ((ours.mfu, theirs.mfu, "computed"), (ours.logged, theirs.logged, "as logged"))
    both = next(((a, b, how) for a, b, how in pairs if a is not None and b is not None), None)
    if both is None:
        here, there = ((e.mfu, e.logged) != (None, None) for e in (ours, theirs))
        kind = "MFU of the same kind" if here and there else "MFU"
        return _untold(name, kind, there or not here, not there)
    a, b, how = both
    least = b * (1 - margin)
    said = (
        f"MFU {percent(a)} against {percent(b)} ({how}); at least {percent(least)} wanted:"
        f" margin {percent(margin)}"
    )
    return _decided(name, a >= least, said, a, least)


def _spikes(ours: _Side, theirs: _Side, margin: float) -> Criterion:
    """Compare incidents of loss and gradients, a warning or worse, by the steps they came in.

    Only those of metrics that both logs have. Given as many in both runs together as were seen,
    those of this run are binomial where the rates are equal: only what that makes improbable is
    a worse rate.
    """
    name = "baseline spikes"
    told = [{m for m in TRAINED if side.run.has(m)} for side in (ours, theirs)]
    common = told[0] & told[1]
    if not common:
        return _untold(name, "loss or the gradient norm", not told[0] or bool(told[1]), not told[1])
    seen = [_leaps(side.d, common) for side in (ours, theirs)]
    steps = [int(side.book.steps.sum()) for side in (ours, theirs)]
    rates = [1000 * n / max(1, s) for n, s in zip(seen, steps, strict=True)]
    weight = steps[0] * (1 + margin)
    chance = _at_least(seen[0], sum(seen), weight / max(1.0, weight + steps[1]))
    worse = rates[0] > rates[1] * (1 + margin) and chance < CHANCE
    said = (
        f"{seen[0]:,} in {steps[0]:,} steps against {seen[1]:,} in {steps[1]:,};"
        f" at equal rates so many have a probability of {number(chance, 2)}"
    )
    return _decided(name, not worse, said, rates[0], rates[1] * (1 + margin))


def _leaps(d: Diagnosis, metrics: Collection[str]) -> int:
    grave = [i for i in d.incidents if i.family == "numerics" and i.severity != "notice"]
    return sum(
        any(f.metric in metrics and f.severity != "notice" for f in i.findings) for i in grave
    )


def _decided(name: str, met: bool, said: str, value: float, bound: float) -> Criterion:
    status: Status = "pass" if met else "fail"
    return Criterion(name=name, status=status, text=said, value=value, limit=bound)


def _at_least(k: int, n: int, p: float) -> float:
    """Return the probability of at least ``k`` of ``n`` where each comes with probability ``p``."""
    if k <= 0 or p >= 1:
        return 1.0
    if p <= 0:
        return 0.0
    logs = [
        math.lgamma(n + 1)
        - math.lgamma(i + 1)
        - math.lgamma(n - i + 1)
        + i * math.log(p)
        + (n - i) * math.log1p(-p)
        for i in range(k, n + 1)
    ]
    return min(1.0, math.fsum(math.exp(x) for x in logs))


def _untold(name: str, what: str, ours: bool, theirs: bool) -> Criterion:
    """Say what cannot be compared: skipped where the baseline's log does not tell it."""
    if theirs:
        who = "neither log tells" if ours else "the baseline's log does not tell"
        return Criterion(name=name, status="skipped", text=f"{who} the {what}")
    said = f"the log does not tell the {what}, the baseline's does"
    return Criterion(name=name, status="unknown", text=said)
