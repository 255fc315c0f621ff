"""Damage: the rows of a run that an incident spoiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from stabcli.incidents import Incident
from stabcli.rules import STATISTIC, Severity
from stabcli.run import Run
from stabcli.series import SHORT, signals
from stabcli.units import Step

TRAINED: Final = frozenset({"loss", "objective_loss", "loss_max", "grad_norm"})
"""Metrics that show the state of the weights; a NaN in any other column proves nothing of them."""
GRAVE: Final[tuple[Severity, ...]] = ("error", "critical")
"""Severities that spoil rows."""
BACK_ROWS = 5
"""Rows whose median must be back at the level before."""
_BLOCK = 1 << 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """The rows that one incident spoiled, as masks of shape (n,) over the frame."""

    rows: np.ndarray
    """After its onset up to its recovery, to where the old level is seen again, or to the end."""
    poisoned: np.ndarray
    """Of those, the ones after a non-finite state that never healed."""
    thrown_away: np.ndarray
    """``rows``, and what was discarded with them by going back to before the onset."""


def spoiled(run: Run, incident: Incident, counted: tuple[Severity, ...] = GRAVE) -> Damage | None:
    """Return what an incident spoiled; None where it spoiled no training.

    A run that slowed down spoiled nothing, and neither did a warning: what is not at least an
    error may be worth a look, but the steps were not lost by it; ``counted`` says otherwise.
    """
    if STATISTIC in incident.tags or incident.severity not in counted:
        return None
    steps = run.frame["step"].to_numpy()
    own = run.frame["attempt"].to_numpy() == incident.attempt
    discarded = run.frame["discarded"].to_numpy()
    none = np.zeros(len(steps), bool)
    if incident.family == "restarts":
        rows = own & discarded
        return Damage(rows=none, poisoned=none, thrown_away=rows) if rows.any() else None
    if incident.family in ("speed", "schedule"):
        return None
    metrics = {f.metric for f in incident.findings}
    if incident.family == "numerics" and not metrics & TRAINED:
        return None
    end = incident.recovered
    if end is None:
        end = _level_seen_again(run, incident)
    ahead = own & (steps <= (steps.max() if end is None else end))
    rows = ahead & (steps > onset(incident))
    poisoned = none
    broken = [
        f.first for f in incident.findings if f.metric in TRAINED and not np.isfinite(f.value)
    ]
    if broken and incident.recovered is None:
        poisoned = ahead & (steps >= min(broken))
        rows |= poisoned
    thrown = rows
    if incident.ending == "rolled-back":
        thrown = rows | (own & discarded)
    return Damage(rows=rows, poisoned=poisoned, thrown_away=thrown)


def onset(incident: Incident) -> Step:
    """Return the step at which an incident began to do harm.

    That is where the loss left its level: while only the gradient norm rose, the model still
    learnt. The steps lost are those after it, so that a spike seen at step a and a stop at step
    b make b - a lost steps, however often the run was logged.
    """
    grave = [f for f in incident.findings if f.severity in GRAVE] or list(incident.findings)
    told = [f for f in grave if f.metric in TRAINED and f.metric != "grad_norm"]
    return min(f.first for f in told or grave)


def went_nonfinite(run: Run) -> np.ndarray:
    """Mark the rows from which on every loss of an attempt is non-finite."""
    marked = np.zeros(run.frame.height, bool)
    attempt = run.frame["attempt"].to_numpy()
    for metric in ("loss", "objective_loss"):
        if not run.has(metric):
            continue
        for signal in signals(run, metric):
            good = np.flatnonzero(np.isfinite(signal.values))
            after = int(good[-1]) + 1 if len(good) else 0
            if after < len(signal):
                rows = np.arange(len(marked)) >= signal.rows[after]
                marked |= rows & (attempt == signal.attempt)
    return marked


def _level_seen_again(run: Run, incident: Incident) -> int | None:
    """Return the step at which the loss is back where it was before the onset, however late.

    A falling loss that leapt to a higher basin comes down again in time: what was lost is the
    way back, not the rest of the run.
    """
    if incident.family != "numerics" or not run.has("loss"):
        return None
    for signal in signals(run, "loss"):
        if signal.attempt != incident.attempt:
            continue
        start = int(np.searchsorted(signal.steps, incident.first))
        before = np.concatenate([signal.inherited, signal.values[:start]])
        before = before[np.isfinite(before)][-SHORT:]
        if not len(before):
            return None
        level = float(np.median(before))
        after = max(start, int(np.searchsorted(signal.steps, incident.last, side="right")))
        ahead = signal.values[after:]
        first = _first_back(ahead, level)
        return None if first is None else int(signal.steps[after + first])
    return None


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
