"""Damage: the rows of a run that an incident spoiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from stabcli.alone import alone
from stabcli.endings import TRAINED
from stabcli.incidents import ONE_PROCESS, Incident
from stabcli.rules import STATISTIC, Severity
from stabcli.run import Run
from stabcli.series import SHORT, WINDOW, signals
from stabcli.units import Step

GRAVE: Final[tuple[Severity, ...]] = ("error", "critical")
"""Severities that spoil rows."""
AT_ONCE: Final = frozenset({"frozen-values", "grad-norm-vanishing"})
"""Rules whose first step already taught nothing, so that it is itself lost."""
BACK_ROWS = 5
"""Rows whose median must be back at the level before."""
_BLOCK = 1 << 12


Rows = tuple[slice, ...]
"""Stretches of rows of the frame, disjoint and in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """The rows that one incident spoiled."""

    rows: slice
    """After its onset up to its recovery, to where the old level is seen again, or to the end."""
    poisoned: slice
    """Of those, the ones after a non-finite state that never healed."""
    thrown_away: Rows
    """``rows``, and what was discarded with them by going back to before the onset."""


class Damages:
    """Says what the incidents of one run spoiled; each in time that does not grow with the run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._steps = run.frame["step"].to_numpy()
        self._attempts = run.frame["attempt"].to_numpy()
        self._discarded = run.frame["discarded"].to_numpy()
        parts = signals(run, "loss") if run.has("loss") else []
        self._losses = {s.attempt: s for s in parts}

    def of(self, incident: Incident, counted: tuple[Severity, ...] = GRAVE) -> Damage | None:
        """Return what an incident spoiled; None where it spoiled no training.

        A run that slowed down spoiled nothing, and neither did a warning: what is not at least
        an error may be worth a look, but the steps were not lost by it; ``counted`` says
        otherwise.
        """
        if STATISTIC in incident.tags or incident.severity not in counted:
            return None
        start, stop = np.searchsorted(self._attempts, [incident.attempt, incident.attempt + 1])
        steps = self._steps[start:stop]
        redone = slice(int(start + np.searchsorted(self._discarded[start:stop], 1)), int(stop))
        if incident.family == "restarts":
            return _damage(slice(0, 0), slice(0, 0), redone) if _size(redone) else None
        if incident.family in ("speed", "schedule", "hardware", "process"):
            return None
        metrics = {f.metric for f in incident.findings}
        if incident.family == "numerics" and not metrics & TRAINED:
            return None
        end = incident.recovered
        if end is None:
            end = self._level_seen_again(incident)
        begun = onset(incident)
        idle = any(f.rule in AT_ONCE and f.first == begun for f in incident.findings)
        side: Literal["left", "right"] = "left" if idle else "right"
        last = len(steps) if end is None else int(np.searchsorted(steps, end, side=side))
        first = int(np.searchsorted(steps, begun, side=side))
        broken = [
            f.first for f in incident.findings if f.metric in TRAINED and not np.isfinite(f.value)
        ]
        poisoned = slice(0, 0)
        if broken and incident.recovered is None and ONE_PROCESS not in incident.tags:
            broke = int(np.searchsorted(steps, min(broken)))
            poisoned = slice(int(start) + broke, int(start) + max(broke, last))
            first = min(first, broke)
        rows = slice(int(start) + first, int(start) + max(first, last))
        rolled_back = incident.ending == "rolled-back"
        return _damage(rows, poisoned, redone if rolled_back else slice(0, 0))

    def _level_seen_again(self, incident: Incident) -> int | None:
        """Return the step at which the loss is back where it was before the onset, however late.

        A falling loss that leapt to a higher basin comes down again in time: what was lost is
        the way back, not the rest of the run.
        """
        signal = self._losses.get(incident.attempt)
        if incident.family != "numerics" or signal is None:
            return None
        start = int(np.searchsorted(signal.steps, incident.first))
        before = np.concatenate([signal.inherited, signal.values[max(0, start - WINDOW) : start]])
        before = before[np.isfinite(before)][-SHORT:]
        if not len(before):
            return None
        after = max(start, int(np.searchsorted(signal.steps, incident.last, side="right")))
        first = _first_back(signal.values[after:], float(np.median(before)))
        return None if first is None else int(signal.steps[after + first])


def _damage(rows: slice, poisoned: slice, redone: slice) -> Damage:
    """Put stretches together; what was redone begins within the rows or after them."""
    if not _size(redone):
        thrown: Rows = (rows,) if _size(rows) else ()
    elif not _size(rows):
        thrown = (redone,)
    elif redone.start <= rows.stop:
        thrown = (slice(min(rows.start, redone.start), max(rows.stop, redone.stop)),)
    else:
        thrown = (rows, redone)
    return Damage(rows=rows, poisoned=poisoned, thrown_away=thrown)


def _size(rows: slice) -> int:
    return max(0, int(rows.stop) - int(rows.start))


def is_empty(rows: slice) -> bool:
    """Say whether a stretch holds no row."""
    return not _size(rows)


def onset(incident: Incident) -> Step:
    """Return the step at which an incident began to do harm.

    That is where the loss left its level: while only the gradient norm rose, the model still
    learnt. The steps lost are those after it, so that a spike seen at step a and a stop at step
    b make b - a lost steps, however often the run was logged. Where the step itself taught
    nothing (``AT_ONCE``, and what is not finite), it is lost as well.
    """
    grave = [f for f in incident.findings if f.severity in GRAVE] or list(incident.findings)
    told = [f for f in grave if f.metric in TRAINED and f.metric != "grad_norm"]
    return min(f.first for f in told or grave)


def went_nonfinite(run: Run) -> np.ndarray:
    """Mark the rows from which on every loss of an attempt is non-finite.

    Not where that is so of one process alone, whose weights nobody can tell.
    """
    marked = np.zeros(run.frame.height, bool)
    attempt = run.frame["attempt"].to_numpy()
    for metric in ("loss", "objective_loss"):
        if not run.has(metric):
            continue
        for signal in signals(run, metric):
            good = np.flatnonzero(np.isfinite(signal.values))
            after = int(good[-1]) + 1 if len(good) else 0
            if after < len(signal):
                one = alone(run, signal.attempt, int(signal.steps[after]))
                if one is not None and one.contained:
                    continue
                rows = np.arange(len(marked)) >= signal.rows[after]
                marked |= rows & (attempt == signal.attempt)
    return marked


def _first_back(values: np.ndarray, level: float) -> int | None:
    """Return the first index from which ``BACK_ROWS`` finite values have a median at the level."""
    for start in range(0, len(values), _BLOCK):
        part = values[start : start + _BLOCK + BACK_ROWS - 1]
        if len(part) < BACK_ROWS:
            return None
        windows = np.lib.stride_tricks.sliding_window_view(part, BACK_ROWS)
        back = np.isfinite(windows).all(axis=1) & (np.median(windows, axis=1) <= level)
        if back.any():
            return start + int(np.argmax(back))
    return None
