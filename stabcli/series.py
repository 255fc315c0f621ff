"""Series: robust baselines, scores and stretches of rows, which the rules share.

The score follows one idea: compare a value, in log space, with the median of the values just
before it, in units of their own spread, and leave out of that history whatever was flagged, so
that a spike cannot raise the bar for the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.lib.stride_tricks import sliding_window_view

from stabcli.run import Run
from stabcli.units import Step

SIGMA_PER_MAD = 1.4826
"""Standard deviations in one median absolute deviation of a normal sample."""

WINDOW = 64
"""Values of history that a score looks back over."""
SHORT = 16
"""Newest values of the history, whose median is the base."""
MINIMUM = 16
"""Values of history without which nothing is scored."""
ROUNDING = 1e-12
"""Relative slack of a comparison with a computed limit: 3.6 is not above 1.2 times 3."""
PLANNED = ("batch_tokens", "batch_sequences", "sequence_length", "data_stage", "gpus")
"""Columns whose change is meant, and begins a segment."""
_BATCH = 1 << 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """One metric over one attempt: the rows where it was logged, n of them."""

    metric: str
    attempt: int
    rows: np.ndarray
    """Row numbers in the frame, int64 of shape (n,)."""
    steps: np.ndarray
    """Steps, int64 of shape (n,)."""
    values: np.ndarray
    """Values, float64 of shape (n,); NaN and infinities are what the trainer had."""
    inherited: np.ndarray
    """The last finite values of earlier attempts that this one goes on from; see ``signals``."""
    resumed: bool
    """Whether an earlier attempt exists."""

    def __len__(self) -> int:
        return len(self.rows)

    def finite(self) -> Signal:
        """Return the signal without its non-finite values."""
        return self.at(np.isfinite(self.values))

    def at(self, keep: np.ndarray) -> Signal:
        """Return the signal with only the rows where ``keep``, bool of shape (n,), is true."""
        if keep.all():
            return self
        kept = {name: getattr(self, name)[keep] for name in ("rows", "steps", "values")}
        return replace(self, **kept)


def signals(run: Run, metric: str, *, history: int = WINDOW) -> list[Signal]:
    """Return ``metric`` attempt by attempt, each with up to ``history`` values it inherits."""
    rows = np.flatnonzero(run.logged(metric))
    there = rows if len(rows) < run.frame.height else slice(None)  # a copy of everything costs
    values = run.array(metric)[there]
    steps, attempts = (run.frame[key].to_numpy()[there] for key in ("step", "attempt"))
    edges = np.flatnonzero(np.diff(attempts)) + 1
    starts = [0, *edges.tolist()]
    stops = [*edges.tolist(), len(rows)]
    parts: list[Signal] = []
    for start, stop in zip(starts, stops, strict=True):
        if start == stop:
            continue
        parts.append(
            Signal(
                metric=metric,
                attempt=int(attempts[start]),
                rows=rows[start:stop],
                steps=steps[start:stop],
                values=values[start:stop],
                inherited=_inherited(parts, int(steps[start]), history),
                resumed=bool(parts) or int(attempts[start]) > 0,
            )
        )
    return parts


def _inherited(earlier: list[Signal], limit: Step, missing: int) -> np.ndarray:
    """Return the last finite values before ``limit`` that no later attempt has overwritten."""
    found: list[np.ndarray] = []
    for part in reversed(earlier):
        if missing <= 0:
            break
        below = part.values[: int(np.searchsorted(part.steps, limit))]
        below = below[np.isfinite(below)][-missing:]
        found.append(below)
        missing -= len(below)
        limit = min(limit, int(part.steps[0]))
    return np.concatenate(found[::-1]) if found else np.empty(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """How far each of n values stands out of the history before it."""

    base: np.ndarray
    """Median of the newest history in the metric's own unit; NaN where there is too little."""
    z: np.ndarray
    """Robust score; 0 where the value did not stand out by the least effect asked for."""
    flagged: np.ndarray
    """Values that stood out so far that they were left out of the history of those after them."""


def robust(
    values: np.ndarray,
    *,
    inherited: np.ndarray | None = None,
    rising: bool = True,
    floor: float,
    z: float,
    effect: float,
    least_effect: float | None = None,
    restarts: Iterable[int] = (),
) -> Scores:
    """Score finite values against their own recent past.

    Args:
        values: Finite values of shape (n,).
        inherited: Finite values that came before them.
        rising: Whether a rise or a fall is the fault.
        floor: Least spread assumed, in log units (0.005 is 0.5 %).
        z: Score at which a value is flagged and kept out of later history.
        effect: Relative change that a flagged value must show besides.
        least_effect: Relative change from which scores are given at all; ``effect`` by default.
        restarts: Indices at which the history begins anew.

    Returns:
        Scores in the values' order.

    Source: RULES of the field compared over 99 runs: log values, median of the last 16 as the
    base, spread as the MAD of the detrended last 64 with a floor of one logging quantum, because
    losses logged in bf16 take only a few distinct values (MAD 0).
    """
    history = np.empty(0) if inherited is None else inherited[-WINDOW:]
    joined = np.concatenate([history, values])
    log, back = _log(joined)
    if not rising:
        log = -log
    start = len(history)
    scan = _Scan(log, z=z, effect=effect, least=least_effect or effect, floor=floor)
    base, score, flagged = scan.run(start, {i + start for i in restarts})
    if not rising:
        base = -base
    return Scores(base=back(base[start:]), z=score[start:], flagged=flagged[start:])


def _log(x: np.ndarray) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """Return values in log space and the way back; asinh where some are not positive."""
    if (x > 0).all():
        return np.log(np.maximum(x, 1e-300)), np.exp
    unit = float(np.median(np.abs(x))) or 1.0
    return np.arcsinh(x / unit), lambda u: np.sinh(u) * unit


class _Scan:
    """The scan behind ``robust``: whole stretches at once, one by one only around flags."""

    def __init__(
        self, u: np.ndarray, *, z: float, effect: float, least: float, floor: float
    ) -> None:
        self.u = u
        self.z_flag = z
        self.rise_flag = float(np.log1p(effect))
        self.rise_least = float(np.log1p(least))
        self.floor = floor

    def run(self, start: int, restarts: set[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        u, n = self.u, len(self.u)
        base = np.full(n, np.nan)
        score = np.zeros(n)
        flagged = np.zeros(n, bool)
        quiet_base, quiet_score, hits = self._quiet()
        fresh = sorted(restarts)
        history: list[float] = u[:start].tolist()
        clean, streak, i = len(history), 0, start
        while i < n:
            if i in restarts:
                history, clean, streak = [], 0, 0
            if clean >= WINDOW:
                stop = int(hits[k]) if (k := int(np.searchsorted(hits, i))) < len(hits) else n
                cut = next((f for f in fresh if f > i), n)
                stop = min(stop, cut)
                if stop > i:
                    base[i:stop] = quiet_base[i:stop]
                    score[i:stop] = quiet_score[i:stop]
                    clean += stop - i
                    i = stop
                    history = u[i - WINDOW : i].tolist()
                    continue
            x = float(u[i])
            hit = False
            if len(history) >= MINIMUM:
                newest = sorted(history[-SHORT:])
                middle = (newest[(SHORT - 1) // 2] + newest[SHORT // 2]) / 2
                base[i] = middle
                if x - middle >= self.rise_least:
                    score[i] = self._score(np.array(history[-WINDOW:])[None, :], np.array([x]))[0]
                    hit = score[i] >= self.z_flag and x - middle >= self.rise_flag
            flagged[i] = hit
            if hit:
                clean, streak = 0, streak + 1
                if streak >= WINDOW:
                    history, streak = [], 0
            else:
                clean, streak = clean + 1, 0
                history.append(x)
                if len(history) > 2 * WINDOW:
                    del history[:-WINDOW]
            i += 1
        return base, score, flagged

    def _quiet(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return bases, scores and hits as they are wherever the last WINDOW were unflagged."""
        u, n = self.u, len(self.u)
        base = np.full(n, np.nan)
        score = np.zeros(n)
        if n <= WINDOW:
            return base, score, np.empty(0, np.int64)
        medians = pl.Series(u).rolling_median(SHORT).to_numpy()
        base[WINDOW:] = medians[WINDOW - 1 : n - 1]
        with np.errstate(invalid="ignore"):
            candidates = np.flatnonzero(u - base >= self.rise_least)
        windows = sliding_window_view(u, WINDOW)
        for at in range(0, len(candidates), _BATCH):
            part = candidates[at : at + _BATCH]
            score[part] = self._score(windows[part - WINDOW], u[part])
        hits = candidates[
            (score[candidates] >= self.z_flag)
            & (u[candidates] - base[candidates] >= self.rise_flag)
        ]
        return base, score, hits

    def _score(self, windows: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Return the robust scores of ``x`` (k,) against ``windows`` (k, w)."""
        half = (width := windows.shape[1]) // 2
        base = _medians(windows[:, -SHORT:])
        slope = (_medians(windows[:, half:]) - _medians(windows[:, :half])) / (width / 2)
        rest = windows - slope[:, None] * np.arange(width)
        rest = np.abs(rest - _medians(rest)[:, None])
        gaps = np.diff(np.sort(windows, axis=1), axis=1)
        quantum = np.where(gaps > 1e-9, gaps, np.inf).min(axis=1)
        quantum = np.where(np.isfinite(quantum), np.minimum(quantum, 0.02), 0.0)
        spread = np.maximum(SIGMA_PER_MAD * _medians(rest), np.maximum(quantum, self.floor))
        return np.asarray((x - base) / spread)


def _medians(windows: np.ndarray) -> np.ndarray:
    """Return the median of each row; sorting short rows is several times faster than picking."""
    x = np.sort(windows, axis=1)
    return np.asarray((x[:, x.shape[1] // 2] + x[:, (x.shape[1] - 1) // 2]) / 2)


def stretches(mask: np.ndarray, *, gap: int = 0) -> list[tuple[int, int]]:
    """Return first and last index of every run of True, joining runs at most ``gap`` apart.

    ``[0, 1, 1, 0, 1] -> [(1, 2), (4, 4)]``, and ``[(1, 4)]`` with a gap of 1.
    """
    at = np.flatnonzero(mask)
    if not len(at):
        return []
    cuts = np.flatnonzero(np.diff(at) > gap + 1)
    firsts = at[np.concatenate([[0], cuts + 1])]
    lasts = at[np.concatenate([cuts, [len(at) - 1]])]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


def slope(x: np.ndarray, y: np.ndarray) -> float:
    """Return the Theil-Sen slope of ``y`` over ``x``: the median of the slopes of all pairs.

    At most 200 points are used, evenly picked. NaN with fewer than two.

    Source: Sen (1968), Estimates of the regression coefficient based on Kendall's tau.
    """
    if len(x) > 200:
        pick = np.linspace(0, len(x) - 1, 200).astype(int)
        x, y = x[pick], y[pick]
    if len(x) < 2:
        return float("nan")
    i, j = np.triu_indices(len(x), 1)
    run = (x[j] - x[i]).astype(float)
    keep = run != 0
    return float(np.median((y[j] - y[i])[keep] / run[keep])) if keep.any() else float("nan")


def slopes(windows: np.ndarray) -> np.ndarray:
    """Return the Theil-Sen slope per column of each row of ``windows`` (k, w), leaving out NaN.

    NaN where a row has fewer than two values.
    """
    i, j = np.triu_indices(windows.shape[1], 1)
    out = np.full(len(windows), np.nan)
    batch = max(1, (_BATCH << 7) // max(1, len(i)))
    for at in range(0, len(windows), batch):
        part = windows[at : at + batch]
        pairs = (part[:, j] - part[:, i]) / (j - i)
        missing = np.isnan(pairs)
        if not missing.any():
            out[at : at + batch] = np.median(pairs, axis=1)
            continue
        some = ~missing.all(axis=1)
        out[at : at + batch][some] = np.nanmedian(pairs[some], axis=1)
    return out


def spread(x: np.ndarray) -> float:
    """Return the robust standard deviation of values, from their median absolute deviation."""
    return SIGMA_PER_MAD * float(np.median(np.abs(x - np.median(x)))) if len(x) else 0.0


def warmup_end(run: Run, attempt: int = 0) -> Step:
    """Return the step up to which a run is still warming up.

    The end of the rise of the learning rate where it is logged or known, else 1 % of the planned
    or logged steps. A resumed attempt has no warm-up of its own.
    """
    if attempt > int(run.frame["attempt"][0]):
        return -1
    return run.once("warmup_end", lambda: _warmup_end(run))


def _warmup_end(run: Run) -> Step:
    first = int(run.frame["step"].min())  # type: ignore[arg-type]
    last = int(run.fact("total_steps") or run.frame["step"].max())  # type: ignore[arg-type]
    share = first + (last - first) // 100
    known = run.fact("warmup_steps")
    if known is not None:
        return max(share, int(known))
    if run.has("learning_rate"):
        rate = signals(run, "learning_rate")[0].finite()
        falls = np.flatnonzero(np.diff(rate.values) < 0)
        risen = rate.values[: int(falls[0]) + 1] if len(falls) else rate.values
        top = int(np.argmax(risen)) if len(risen) else 0
        steady = (np.diff(risen[: top + 1]) > 0).mean() > 0.5 if top else False
        if steady and risen[0] < 0.9 * risen[top]:
            return max(share, int(rate.steps[top]))
    return share


def after_clipping(run: Run) -> float | None:
    """Return the clip that ``grad_norm`` was cut to before it was logged; None where it was not.

    It was where no norm is above the known clip, and at least one in a hundred stands right at
    it: such a log does not tell how large a gradient really was.
    """
    clip = run.fact("grad_clip")
    if clip is None or clip <= 0 or not run.has("grad_norm"):
        return None
    norms = run.array("grad_norm")
    norms = norms[np.isfinite(norms)]
    pinned = int((np.abs(norms - clip) <= 1e-3 * clip).sum())
    if (norms > 1.001 * clip).any() or pinned < max(3, len(norms) // 100):
        return None
    return clip


def planned_changes(run: Run, signal: Signal) -> list[int]:
    """Return the indices into ``signal`` where the run was changed on purpose.

    A change of batch size, length of sequences, stage of the data or number of GPUs, and a
    learning rate that leaps by more than half, begin a new segment: what comes after is not compared with what came before. What changes in
    more than a tenth of the rows is no plan: batches of whole sequences never hold equal tokens,
    and a run cut at each of them would have no history at all.
    """
    found: set[int] = set()
    rows = signal.rows
    most = max(4, len(rows) // 10)
    for metric in PLANNED:
        if run.has(metric):
            values = run.array(metric)[rows]
            known = np.isfinite(values[1:]) & np.isfinite(values[:-1])
            changed = np.flatnonzero(known & (values[1:] != values[:-1])) + 1
            if len(changed) <= most:
                found.update(changed.tolist())
    if run.has("learning_rate"):
        rate = run.array("learning_rate")[rows]
        warm = signal.steps <= warmup_end(run, signal.attempt)
        with np.errstate(invalid="ignore", divide="ignore"):
            leap = (rate[1:] > 1.5 * rate[:-1]) & ~warm[1:] & (rate[:-1] > 0)
        leaps = np.flatnonzero(leap) + 1
        if len(leaps) <= most:
            found.update(leaps.tolist())
    return sorted(found)
