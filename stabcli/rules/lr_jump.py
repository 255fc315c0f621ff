"""Rule ``lr-jump``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from stabcli.rules import STATISTIC, CannotLook, Finding, Severity, finding, rule
from stabcli.run import Run
from stabcli.series import Signal, signals, warmup_end


@rule(needs=("learning_rate",), presets=("default",), since="0.1.0", judges=False)
def lr_jump(
    run: Run, *, ratio: float = 1.5, differs: float = 0.05, many: int = 10
) -> Iterator[Finding]:
    """Learning rate leaps up, or is not what it was before a restart.

    ## What it finds
    Three things. A learning rate that falls by half or more in one row and then warms up again:
    an error. A rate more than ``ratio`` times that of the row before, outside warm-up: an error; a
    notice where it is a schedule that restarts, because the rate had decayed to
    nothing, or leaps at a fixed distance, or because the batch size or the number of GPUs changed
    with it. More than ``many`` leaps are one notice: the rate is adapted as the run goes. And
    after a restart a rate that differs by more than ``differs`` from that of the attempt before
    at the same step: an error, but a notice where it is lower all along, as one sets it after a
    divergence.

    ## Why it matters
    A scheduler that was not restored warms up again or starts from its peak: the weights get
    updates many times too large for where they are, and the loss follows days later.

    ## What to do
    Load the scheduler's state from the checkpoint, or set its last step, and start again from
    that checkpoint.

    ## When it errs
    A rate that was raised on purpose is told like one that was raised by accident.

    ## Settings
    ratio: Multiple of the row before.
    differs: Relative difference from the attempt before at the same step.
    many: Leaps beyond which the rate is taken to be adapted.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_bad_resume.jsonl --rule lr-jump --format brief
    error     lr-jump              attempt 1  step 501..620  learning_rate 0.0002, expected 0.000125

    ## Sources
    - A schedule that restarted unnoticed, twice: chronicles of IDEFICS-80B (m4-logs).
    """
    parts = [s.finite() for s in signals(run, "learning_rate")]
    parts = [s for s in parts if len(s)]
    if sum(map(len, parts)) < 3:
        raise CannotLook("fewer than 3 logged learning rates")
    for at, signal in enumerate(parts):
        leaps = _leaps(run, signal, ratio)
        if len(leaps) > many:
            yield _finding(run, signal, int(leaps[0]), int(leaps[-1]), "notice", (STATISTIC,))
        else:
            for i in _resets(signal, warmup_end(run, signal.attempt))[:many].tolist():
                yield _finding(run, signal, i, i, "error", ("warms-up-again",))
            for i in leaps.tolist():
                planned = _planned(run, signal, i) or _periodic(signal, leaps)
                tags = ("planned",) if planned else ()
                yield _finding(run, signal, i, i, "notice" if planned else "error", tags)
        yield from _restarted(run, parts[:at], signal, differs)


def _leaps(run: Run, signal: Signal, ratio: float) -> np.ndarray:
    before, after = signal.values[:-1], signal.values[1:]
    warm = signal.steps[1:] <= warmup_end(run, signal.attempt)
    # A resumed attempt that starts from nothing is told by comparison with the one before it.
    if signal.resumed and len(signal):
        rising = np.flatnonzero(after <= before)
        warm[: int(rising[0]) if len(rising) else len(warm)] = True
    # A linear warm-up doubles its second row and is still only going on: a leap breaks the line.
    pace, usual = _pace(signal.steps, after - before)
    leapt = (after > ratio * before) & (before > 0) & (pace > 2 * usual) & ~warm
    return np.asarray(np.flatnonzero(leapt) + 1)


def _pace(steps: np.ndarray, change: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the change per step of each row, and the largest of the three rows before it."""
    pace = change / np.maximum(1, np.diff(steps))
    earlier = [np.append(np.zeros(k), pace)[: len(pace)] for k in (1, 2, 3)]
    return pace, np.maximum.reduce([*earlier, np.zeros(len(pace))])


def _resets(signal: Signal, warm: int) -> np.ndarray:
    """Return where the rate falls by half or more in one row, and then warms up again."""
    before, after = signal.values[:-1], signal.values[1:]
    ahead = pl.Series(after[::-1]).rolling_max(200, min_samples=1).to_numpy()[::-1]
    # A cosine halves its last rows and is still only going on.
    pace, usual = _pace(signal.steps, before - after)
    fell = (after < 0.5 * before) & (pace > 3 * usual) & (signal.steps[1:] > warm)
    # Back in the next row: a value logged wrongly once, not a schedule.
    stays = np.append(after[1:] < 0.5 * before[:-1], [False])
    rises = ahead > np.maximum(2 * after, 0.1 * before)
    return np.asarray(np.flatnonzero(fell & stays & rises) + 1)


def _planned(run: Run, signal: Signal, i: int) -> bool:
    """Say whether the rate had decayed to nothing, or the batch changed with it."""
    top = float(signal.values[:i].max())
    if signal.values[i - 1] <= 0.02 * top and signal.values[i] <= 1.05 * top:
        return True
    for metric in ("batch_tokens", "batch_sequences", "gpus"):
        if run.has(metric):
            values = run.array(metric)[signal.rows[i - 1 : i + 1]]
            if np.isfinite(values).all() and values[0] != values[1]:
                return True
    return False


def _periodic(signal: Signal, leaps: np.ndarray) -> bool:
    """Say whether leaps come at one distance, or at distances that grow by one factor."""
    if len(leaps) < 2:
        return False
    at = signal.steps[leaps]
    gaps = np.diff(np.concatenate([[signal.steps[0]], at])).astype(float)
    if len(leaps) == 2:
        return bool(abs(gaps[1] / gaps[0] - round(gaps[1] / gaps[0])) < 0.05)
    factors = gaps[1:] / gaps[:-1]
    return bool(np.ptp(factors[1:]) < 0.1 or np.ptp(gaps[1:]) < 0.05 * gaps[1:].mean())


def _restarted(
    run: Run, earlier: list[Signal], signal: Signal, differs: float
) -> Iterator[Finding]:
    """Compare with the attempt before at the same steps, or just before where there are none."""
    # Fewer than three rows before it: a run of its own, written into the same file.
    parent = next((p for p in reversed(earlier) if (p.steps < signal.steps[0]).sum() > 2), None)
    if parent is None:
        return
    expected = np.interp(signal.steps, parent.steps, parent.values)
    shared = signal.steps <= parent.steps[-1]
    if not shared.any():
        # Not redone, only gone on: the next rows continue the line of the last ones.
        last = parent.values[-1] + (parent.values[-1] - parent.values[-2]) * (
            signal.steps[:1] - parent.steps[-1]
        ) / (parent.steps[-1] - parent.steps[-2])
        if last[0] <= 0 or signal.steps[0] - parent.steps[-1] > parent.steps[-1] - parent.steps[0]:
            return
        expected, shared = last, np.ones(1, bool)
    k = int(shared.sum())
    mine, theirs = signal.values[:k], expected[:k]
    off = np.abs(mine - theirs) > differs * np.abs(theirs)
    if not off[0] or off.sum() < max(1, k // 2):
        return
    last = int(np.flatnonzero(off)[-1])
    lower = bool((mine[off] < theirs[off]).all())
    ahead = signal.values[: max(k, min(len(signal), 50))]
    warms_up = len(ahead) > 1 and float(ahead.max()) > 1.2 * float(ahead[0])
    peak = int(np.argmax(np.abs(np.log(np.maximum(mine, 1e-30) / np.maximum(theirs, 1e-30)))))
    planned = lower and not warms_up
    yield finding(
        run,
        metric="learning_rate",
        rows=(int(signal.rows[0]), int(signal.rows[last])),
        peak=int(signal.rows[peak]),
        severity="notice" if planned else "error",
        value=float(mine[peak]),
        expected=float(theirs[peak]),
        score=float(abs(mine[peak] / max(theirs[peak], 1e-30) - 1) / differs),
        tags=("resume", "lowered") if planned else ("resume",),
    )


def _finding(
    run: Run, signal: Signal, first: int, last: int, severity: Severity, tags: tuple[str, ...]
) -> Finding:
    before, after = float(signal.values[first - 1]), float(signal.values[first])
    return finding(
        run,
        metric="learning_rate",
        rows=(int(signal.rows[first]), int(signal.rows[last])),
        peak=int(signal.rows[first]),
        severity=severity,
        value=after,
        expected=before,
        score=max(after, before) / max(min(after, before), 1e-3 * max(after, before)),
        tags=tags,
    )
