"""Endings: how an event ended, judged by the series that shows whether training goes well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from stabcli.alone import alone
from stabcli.metrics import COMPUTED_FROM
from stabcli.rules import Finding
from stabcli.run import Run
from stabcli.series import SHORT, WINDOW, Signal, signals, slope, spread
from stabcli.units import Step

Ending = Literal[
    "fast-recovery", "slow-recovery", "new-basin", "diverged", "rolled-back", "unresolved"
]
ENDINGS: tuple[Ending, ...] = get_args(Ending)
"""How an incident ended; ``unresolved`` where the log ends too soon to tell."""

FAST_STEPS = 200
"""Steps within which a recovery is fast (BLOOM's largest spike took 30)."""
TOLERANCE = 0.02
"""Relative distance to the level before, within which a series has recovered."""
STAYED = 0.75
"""Share of its leap by which a loss lies above its own course where it has not healed."""
SETTLED = 10
"""Rows, far apart or of whole evaluations, that must stay away for it to be more than too soon."""
FAR = 0.5
"""Relative distance to the level before, beyond which a series has diverged."""
BACK = 0.25
"""Share of its leap, in log units, down to which a series beside the judging one is back."""

TRAINED: Final = frozenset({"loss", "objective_loss", "loss_max", "grad_norm"})
"""Metrics that show the state of the weights; a NaN in any other column proves nothing of them."""
LOWER_IS_BETTER = TRAINED | {"val_loss", "val_perplexity", "perplexity"}
"""Metrics whose level says whether what was not finite has healed."""
CLOCKS = ("wall_time", "elapsed_seconds")
"""Metrics whose gaps are over with the row that ends them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How an event ended."""

    ending: Ending
    recovered: Step | None = None
    """Step at which it was over."""
    onset: Literal["instant", "gradual-onset"] | None = None
    """Whether the level had been leaving its band before it was flagged; None if unknown."""
    stays: str | None = None
    """Metric beside the judging one that has not come back at the end of the attempt."""


class Judge:
    """Says how the events of one run ended; keeps the series it judges by."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._interval = run.log_interval or 1
        steps = run.frame["step"].to_numpy()
        self._total = int(steps.max() - steps.min())
        self._signals: dict[str, dict[int, Signal]] = {}

    def ending(self, findings: Sequence[Finding], worst: Finding, *, numeric: bool) -> End:
        """Say how the event of these findings ended.

        Recovered is the first place past the last flagged row from which the median of the next
        five rows (fewer where rows are far apart) is back within 2 %, or one robust standard
        deviation, of the level before. A falling loss that leapt up for good comes down to that
        level as well, in time: where it has come no nearer to its own course, it has settled
        higher. And nothing has recovered while any other series of the event is still off.
        """
        end = self._of_series(findings, worst, numeric=numeric)
        if end.recovered is None or worst.metric in CLOCKS:
            return end
        signal = self._signal(findings, worst, numeric=numeric)
        judged = None if signal is None else signal.metric
        for f in findings:
            if f.metric not in (judged, *CLOCKS) and self._stays(f):
                return End(ending="new-basin", onset=end.onset, stays=f.metric)
        return end

    def one_process(self, findings: Sequence[Finding]) -> bool:
        """Say whether all that is not finite was so in one process alone, and stayed there."""
        broken = [f for f in findings if f.metric in TRAINED and not np.isfinite(f.value)]
        found = [alone(self._run, f.attempt, f.first) for f in broken]
        return bool(found) and all(a is not None and a.contained for a in found)

    def _stays(self, found: Finding) -> bool:
        """Say whether the series of a finding never comes back, up to the end of its attempt."""
        signal = self._of(found.metric).get(found.attempt)
        if signal is None or found.expected is None or not np.isfinite(found.value):
            return False
        first, behind = np.searchsorted(signal.steps, [found.first, found.last + 1])
        values = np.concatenate([signal.inherited, signal.values])
        before = values[: len(signal.inherited) + first]
        before = before[np.isfinite(before)][-WINDOW:]
        inside = signal.values[first:behind]
        inside, after = inside[np.isfinite(inside)], signal.values[behind:]
        if len(before) < SHORT or not len(inside):
            return False
        if min(before.min(), inside.min()) > 0:
            before, inside, after = (
                np.log(np.maximum(part, 1e-300)) for part in (before, inside, after)
            )
        level, width, _ = _before(before, inside, found)
        sign = -1.0 if found.value < found.expected else 1.0
        leapt = float((sign * inside).max()) - sign * level
        if leapt <= width:
            return False
        limit = sign * level + max(width, BACK * leapt)
        finite = after[np.isfinite(after)]
        rows = min(5, len(finite))
        return not rows or _recovery(sign * finite, limit, rows, -1) is None

    def _of_series(self, findings: Sequence[Finding], worst: Finding, *, numeric: bool) -> End:
        """Say how the event ended by the one series that shows it best."""
        if worst.metric in CLOCKS:
            return End(ending="fast-recovery", recovered=worst.last)
        signal = self._signal(findings, worst, numeric=numeric)
        if signal is None:
            return End(ending="unresolved")
        first, last = min(f.first for f in findings), max(f.last for f in findings)
        steps, values = signal.steps, signal.values
        start = int(np.searchsorted(steps, first))
        horizon = max(min(max(self._total // 20, 1000), 5000), 20 * self._interval)
        stop = int(np.searchsorted(steps, last + horizon, side="right"))
        x = values[start:stop]
        if not len(x):
            return End(ending="unresolved")
        before = np.concatenate([signal.inherited, values[max(0, start - WINDOW) : start]])
        before = before[np.isfinite(before)]
        if not np.isfinite(worst.value) and signal.metric not in LOWER_IS_BETTER:
            # nobody knows which way is worse
            x, before = np.where(np.isfinite(x), 1.0, x), np.ones(len(before))
        level, width, sign = _before(before, x, worst)
        onset = _onset(before, level, width)
        last_bad = max(0, int(np.searchsorted(steps, last, side="right")) - 1 - start)
        rows = min(5, max(1, 50 // self._interval))
        recovered = _recovery(sign * x, sign * level + width, rows, last_bad)
        if (
            recovered is not None
            and sign > 0
            and numeric
            and _stayed(steps, values, start, recovered)
        ):
            recovered = None
        if recovered is not None:
            at = int(steps[start + recovered])
            fast = at - first <= max(FAST_STEPS, 3 * self._interval)
            return End(
                ending="fast-recovery" if fast else "slow-recovery", recovered=at, onset=onset
            )
        if self._discarded(signal, start):
            return End(ending="rolled-back", onset=onset)
        if not np.isfinite(x[-max(4, len(x) // 4) :]).all():
            return End(ending="diverged", onset=onset)
        after = int(steps[start + len(x) - 1]) - int(steps[start + last_bad])
        soon = stop >= len(values) and after < horizon // 2
        away = _stays_away(signal, sign * x, sign * level + width)
        if soon and len(x) - last_bad <= 20 and len(x) < 2 * WINDOW and not away:
            return End(ending="unresolved", onset=onset)
        if numeric and _diverged(sign * x, sign * level, abs(level)):
            return End(ending="diverged", onset=onset)
        return End(ending="new-basin", onset=onset)

    def _signal(
        self, findings: Sequence[Finding], worst: Finding, *, numeric: bool
    ) -> Signal | None:
        """Return the series that says when an event was over: the loss where there is one."""
        metric = worst.metric
        of_model = any(f.metric in ("loss", "grad_norm") for f in findings)
        if numeric and of_model and self._run.has("loss"):
            metric = "loss"
        return self._of(metric).get(worst.attempt)

    def _of(self, metric: str) -> dict[int, Signal]:
        """Return the attempts of a metric, or of what it is computed from."""
        if not self._run.has(metric):
            metric = COMPUTED_FROM.get(metric, metric)
        if metric not in self._signals:
            parts = signals(self._run, metric) if self._run.has(metric) else []
            self._signals[metric] = {s.attempt: s for s in parts}
        return self._signals[metric]

    def _discarded(self, signal: Signal, start: int) -> bool:
        """Say whether a later attempt went back past the row at which the event began."""
        return bool(self._run.frame["discarded"][int(signal.rows[start])])


def _before(before: np.ndarray, x: np.ndarray, worst: Finding) -> tuple[float, float, float]:
    """Return level and spread before an event, and the direction in which it is worse."""
    if len(before) >= 3:
        level = float(np.median(before[-SHORT:]))
        width = spread(np.diff(before[-WINDOW:])) / np.sqrt(2) if len(before) > 4 else 0.0
    elif worst.expected is not None and np.isfinite(worst.expected):
        level, width = float(worst.expected), 0.0
    else:
        finite = x[np.isfinite(x)]
        level, width = (float(np.min(finite)) if len(finite) else float("nan")), 0.0
    falls = worst.expected is not None and np.isfinite(worst.value) and worst.value < worst.expected
    return level, max(width, TOLERANCE * abs(level)), (-1.0 if falls else 1.0)


def _recovery(ahead: np.ndarray, limit: float, rows: int, last_bad: int) -> int | None:
    """Return the first index past ``last_bad`` from which ``rows`` values are below the limit."""
    rest = ahead[last_bad + 1 :]
    if not np.isfinite(limit) or len(rest) < rows:
        return None
    windows = sliding_window_view(np.where(np.isfinite(rest), rest, np.inf), rows)
    back = np.isfinite(windows).all(axis=1)
    back &= np.sort(windows, axis=1)[:, rows // 2] <= limit
    found = np.flatnonzero(back)
    return last_bad + 1 + int(found[0]) if len(found) else None


def _stays_away(signal: Signal, ahead: np.ndarray, limit: float) -> bool:
    """Say whether a series logged rarely has been away from its level for long enough.

    In as many rows as steps make up for, or as evaluations show: what comes back at all has then
    begun to. One of the newest rows that is back leaves it open.
    """
    apart = float(np.median(np.diff(signal.steps))) if len(signal) > 1 else 1.0
    asked = SETTLED if signal.metric.startswith("val_") else max(SETTLED, 2 * WINDOW / apart)
    newest = ahead[-5:]
    return bool(np.isfinite(limit) and len(ahead) >= asked and not (newest <= limit).any())


def _stayed(steps: np.ndarray, values: np.ndarray, start: int, rows: int) -> bool:
    """Say whether a series is back at its level by falling as before, and not by healing.

    The course before is a straight line in the logarithm of the steps since the first, fitted to
    as many rows before the event as it took until the level was seen again, and drawn on as far.
    """
    if rows < SHORT or start < SHORT:
        return False
    far = slice(max(0, start - max(rows, WINDOW)), min(len(values), start + 2 * rows))
    at, x = np.log(steps[far] - int(steps[0]) + 1.0), values[far]
    begun = start - far.start
    known = np.isfinite(x)
    before = known & (np.arange(len(x)) < begun)
    falls = slope(at[before], x[before])
    if not falls < 0:
        return False
    above = x - falls * at
    newest = above[:begun][known[:begun]][-WINDOW:]
    above -= np.median(newest)
    leapt, back, later = (
        float(np.median(part[np.isfinite(part)])) if np.isfinite(part).any() else 0.0
        for part in (
            above[begun : begun + max(5, rows // 4)],
            above[begun + rows : begun + rows + max(5, rows // 4)],
            above[-max(5, rows // 4) :],
        )
    )
    noise = spread(np.diff(newest)) / np.sqrt(2) if len(newest) > 4 else 0.0
    return leapt > noise and min(back, later) > max(STAYED * leapt, noise)


def _onset(
    before: np.ndarray, level: float, width: float
) -> Literal["instant", "gradual-onset"] | None:
    """Say whether the level had been leaving its band for a while before it was flagged."""
    if len(before) <= SHORT or not np.isfinite(level):
        return None
    recent, earlier = before[-20:], before[-WINDOW:-20]
    if len(earlier) < SHORT:
        return "instant"
    middle = float(np.median(earlier))
    gradual = float(np.median(recent)) > middle + 1.5 * width and level > middle
    return "gradual-onset" if gradual else "instant"


def _diverged(x: np.ndarray, level: float, size: float) -> bool:
    """Say whether a series that did not recover is far away from its level, or still leaving."""
    tail = x[-max(4, len(x) // 4) :]
    if np.median(tail) - level > FAR * size:
        return True
    half = len(x) // 2
    early, late = x[:half], x[half:]
    early, late = early[np.isfinite(early)], late[np.isfinite(late)]
    return len(early) > 2 and bool(np.median(late) - np.median(early) > TOLERANCE * size)
