"""Rule ``hidden-nonfinite``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.rules import PAUSED, Finding, finding, rule
from stabcli.run import Run
from stabcli.series import SHORT, WINDOW, Signal, signals, stretches

COMPANIONS = ("grad_norm", "learning_rate")
"""What is logged in the rows in which a loss is."""
BESIDE = 0.9
"""Share of those rows that held a loss before."""
NEAR = 0.3
"""Times its median that the lowest twentieth of a loss reaches where its zeros are its own."""
NEAR_SINGLE = 0.5
"""The same where single zeros come, too."""
SINGLE = 3
"""Shorter runs of zeros from which single ones come, too."""
MISSED = 8
"""Times that a loss is due, in its own rhythm, until it is missing."""
LEAP = 3.0
"""Times its level from which a gradient norm beside missing losses makes a hidden NaN suspected."""


@rule(needs=("loss",), presets=("default",), since="0.1.0", judges=False)
def hidden_nonfinite(
    run: Run, *, zeros: int = 3, join: int = 10, gone: int = 32, absent: int = 16
) -> Iterator[Finding]:
    """The trainer hid a NaN loss: it logged exactly 0, or no loss at all.

    ## What it finds
    Rows where the loss is exactly 0, or missing though it is logged beside every other gradient
    norm, while the gradient norm is not finite: critical. And ``zeros`` or more losses in a row
    of exactly 0 without a gradient norm to tell why: an error. Losses of reinforcement learning,
    which really are 0, are not looked at, nor are losses that come near 0 by themselves, as those
    with a margin do: the lowest twentieth of the values around is below 0.3 times their median
    (0.5 where there are three shorter runs of zeros and more). Where the trainer counts the steps of a row whose loss
    was not finite, and prints the mean of the others, as Megatron does: an error, and a warning
    where as many steps were skipped. An error, too, where a loss that stood beside every gradient
    norm or learning rate is missing from the last ``gone`` rows of an attempt or more. Where it is
    missing from ``absent`` rows or more in the middle, and stands beside the others before and
    behind them: a notice, and a warning where the gradient norm there is not finite, or reaches
    three times its level. A loss that is logged every k-th row must have been due 8 times, too.

    ## Why it matters
    The run looks healthy, or even perfect, while it trains on NaN. Nobody stops it.

    ## What to do
    Roll back to the newest checkpoint before the first such row. With transformers set
    ``logging_nan_inf_filter=False``, so that the next one is seen at once.

    ## When it errs
    A loss that is masked out in every token is 0 as well: look at the labels of that batch.

    ## Settings
    zeros: Losses of exactly 0 in a row that count without a gradient norm.
    join: Rows between two such rows that still belong to one finding.
    gone: Rows at the end of an attempt that hold no loss.
    absent: Rows in the middle of an attempt that hold no loss.

    ## Example
    $ stabcli scan sample_logs/hf-trainer/hidden_nan.json --rule hidden-nonfinite --format brief
    critical  hidden-nonfinite     attempt 0  step 305..500  loss NaN, expected 1.51

    ## Sources
    - transformers, Trainer: a NaN or infinite loss is replaced by the mean of the interval
      before it is logged, and is 0.0 where all of the interval was NaN.
    - Megatron-LM, training_log: a loss is printed only if it is at least 0, which NaN is not.
    """
    hidden = run.frame["hidden"].to_numpy() if "hidden" in run.frame.columns else None
    for signal in signals(run, "loss"):
        if hidden is not None:
            here = hidden[signal.rows]
            for first, last in stretches(here, gap=join):
                yield _found(run, signal, first, last, "critical", float("nan"))
        for first, last in _zeros(signal, zeros, gone):
            yield _found(run, signal, first, last, "error", 0.0)
        yield from _gone(run, signal, gone)
        yield from _absent(run, signal, absent)
    yield from _counted(run, join)


def _zeros(signal: Signal, least: int, long: int) -> Iterator[tuple[int, int]]:
    """Yield the runs of zeros that do not belong to a loss which comes near 0 by itself."""
    found = stretches(signal.values == 0.0)
    short = sum(last - first + 1 < least for first, last in found)
    at = np.flatnonzero(np.isfinite(signal.values) & (signal.values != 0.0))
    for first, last in found:
        if last - first + 1 < least:
            continue
        begin, end = np.searchsorted(at, [first, last])
        near = signal.values[at[max(0, begin - WINDOW) : end + WINDOW]]
        if len(near) >= SHORT and (short or last - first + 1 < long):
            low = float(np.percentile(near, 5))
            if low < (NEAR_SINGLE if short >= SINGLE else NEAR) * float(np.median(near)):
                continue
        yield first, last


def _rhythm(held: np.ndarray) -> float | None:
    """Return every how many rows of another metric a loss is held; None where that varies.

    Args:
        held: Whether each row of the other metric, in order, holds a loss; shape (n,).
    """
    if held.mean() >= BESIDE:
        return 1.0
    gaps = np.diff(np.flatnonzero(held))
    if len(gaps) < SHORT:
        return None
    usual = float(np.median(gaps))
    return usual if float((gaps <= 2 * usual).mean()) >= BESIDE else None


def _counted(run: Run, join: int) -> Iterator[Finding]:
    """Tell of steps that the trainer counts as not finite in rows whose loss looks well."""
    if not run.has("nonfinite_steps"):
        return
    loss = run.array("loss")
    skipped = run.array("skipped_steps") if run.has("skipped_steps") else np.zeros(len(loss))
    for signal in map(Signal.finite, signals(run, "nonfinite_steps")):
        for first, last in stretches(
            (signal.values > 0) & np.isfinite(loss[signal.rows]), gap=join
        ):
            inside = signal.rows[first : last + 1]
            peak = int(inside[np.argmax(signal.values[first : last + 1])])
            held = np.nansum(skipped[inside]) >= signal.values[first : last + 1].sum()
            yield finding(
                run,
                metric="nonfinite_steps",
                rows=(int(inside[0]), int(inside[-1])),
                peak=peak,
                severity="warning" if held else "error",
                value=float(run.array("nonfinite_steps")[peak]),
                expected=0.0,
                tags=("skipped",) if held else (),
            )


def _gone(run: Run, signal: Signal, least: int) -> Iterator[Finding]:
    """Tell of a loss that is no longer logged while the rest goes on."""
    mine = run.frame["attempt"].to_numpy() == signal.attempt
    last = int(signal.rows[-1])
    for metric in COMPANIONS:
        if not run.has(metric):
            continue
        beside = np.flatnonzero(run.logged(metric) & mine)
        after, before = beside[beside > last], beside[beside <= last]
        if len(after) < least or len(before) < least:
            continue
        held = np.isin(before, signal.rows)
        usual = _rhythm(held)
        if usual is None:
            continue
        # Loops may log less often later on: what they did last counts.
        latest = np.diff(np.flatnonzero(held))[-MISSED:]
        if held.mean() < BESIDE and len(after) <= MISSED * max(usual, float(latest.max())):
            continue
        yield finding(
            run,
            metric="loss",
            rows=(int(after[0]), int(after[-1])),
            peak=int(after[0]),
            severity="error",
            value=float("nan"),
            expected=float(signal.values[-1]) if np.isfinite(signal.values[-1]) else None,
            tags=("no-loss",),
        )
        return


def _absent(run: Run, signal: Signal, least: int) -> Iterator[Finding]:
    """Tell of losses that are missing for a while, while what stood beside them went on."""
    away = np.diff(signal.rows) > least
    if not away.any() or least < 1:
        return
    mine = run.frame["attempt"].to_numpy() == signal.attempt
    left = list(zip(signal.rows[:-1][away].tolist(), signal.rows[1:][away].tolist(), strict=True))
    for metric in dict.fromkeys([*COMPANIONS, *run.measurements]):
        if metric == "loss" or not left or not run.has(metric):
            continue
        beside = np.flatnonzero(run.logged(metric) & mine)
        held = np.isin(beside, signal.rows)
        usual = _rhythm(held) or 1.0
        due = least if usual <= 1 else max(least, int(MISSED * usual) + 1)
        for last, back in left.copy():
            begin, end = np.searchsorted(beside, [last, back])
            begin += int(begin < len(beside) and beside[begin] == last)
            near = max(2 * due, int(end - begin))
            sides = held[max(0, begin - near) : begin], held[end : end + near]
            if end - begin < due or any(len(s) < due or s.mean() * usual < BESIDE for s in sides):
                continue
            left.remove((last, back))
            rows = int(beside[begin]), int(beside[end - 1])
            yield finding(
                run,
                metric="loss",
                rows=rows,
                peak=rows[0],
                severity="warning" if _leapt(run, last, back) else "notice",
                value=float(run.array("loss")[last]),
                tags=(PAUSED, f"{end - begin}-rows", f"beside-{metric}"),
            )


def _leapt(run: Run, last: int, back: int) -> bool:
    """Say whether the gradient norm leaps or is lost between two rows, or beside them."""
    if not run.has("grad_norm"):
        return False
    norms, logged = run.array("grad_norm"), run.logged("grad_norm")
    before = norms[max(0, last - 2 * WINDOW) : last]
    before = before[np.isfinite(before)]
    inside = norms[last : back + 1][logged[last : back + 1]]
    if not np.isfinite(inside).all():
        return True
    if len(before) < SHORT or not len(inside):
        return False
    usual = max(LEAP * float(np.median(before)), 1.5 * float(before.max()))
    return float(inside.max()) > usual


def _found(run: Run, signal: Signal, first: int, last: int, severity: str, value: float) -> Finding:
    before = signal.values[:first]
    before = before[np.isfinite(before) & (before != 0.0)]
    return finding(
        run,
        metric="loss",
        rows=(int(signal.rows[first]), int(signal.rows[last])),
        peak=int(signal.rows[first]),
        severity="critical" if severity == "critical" else "error",
        value=value,
        expected=float(before[-1]) if len(before) else None,
    )
