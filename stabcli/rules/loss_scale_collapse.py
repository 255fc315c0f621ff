"""Rule ``loss-scale-collapse``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.levels import lasting, trailing
from stabcli.rules import CannotLook, Finding, Severity, finding, rule
from stabcli.run import Run
from stabcli.series import Signal, signals


@rule(presets=("default",), since="0.1.0")
def loss_scale_collapse(
    run: Run,
    *,
    minimum: float = 1.0,
    shrinks: float = 8.0,
    risky: float = 4096.0,
    rows: int = 20,
    skipped: float = 0.05,
    in_a_row: int = 10,
) -> Iterator[Finding]:
    """The loss scale of fp16 training falls and does not come back.

    ## What it finds
    In fp16 the scale is halved when gradients overflow and doubled when they have not for a
    while. At ``minimum`` or below, having been higher: an error. Its median over ``rows`` rows
    ``shrinks`` times below its best for as long: a warning where it ends below ``risky``, else a
    notice. Three halvings within 100 steps: a notice. Where skipped steps are logged: more than ``skipped`` of 500 steps, or more than
    ``in_a_row`` one after the other: a warning. The halvings from the first row on, with which the
    scale finds its place, are left out.

    ## Why it matters
    Overflows mean that activations or gradients grow. Each costs a step; at the least scale small
    gradients vanish, and the next overflow ends the run. It often begins to fall long before the
    loss shows anything.

    ## What to do
    Go back to before the fall, lower the learning rate, or train in bf16, which needs no scale.

    ## When it errs
    Some tools log the exponent of the scale: a scale that never exceeds 32 is read so.

    ## Settings
    minimum: Scale at which nothing is left to halve.
    shrinks: Factor by which the scale must shrink.
    risky: Scale below which small gradients begin to vanish.
    rows: Rows whose median is taken, and that it must last.
    skipped: Share of 500 steps that may be skipped.
    in_a_row: Steps that may be skipped one after the other.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_loss_scale.jsonl --rule loss-scale-collapse --format brief
    notice    loss-scale-collapse  attempt 0  step 725..869  loss_scale 2, expected 16,384
    error     loss-scale-collapse  attempt 0  step 881..1000  loss_scale 1, expected 65,536

    ## Sources
    - Halving and doubling, and the least scale: DeepSpeed, runtime/fp16/loss_scaler.py.
    - A scale that fell from step 4,700, long before the loss at 6,000: chronicles of tr8-104B
      (bigscience-workshop).
    """
    if not run.has("loss_scale") and not run.has("skipped_steps"):
        raise CannotLook("the log has no loss_scale or skipped_steps: fp16 only")
    if run.has("loss_scale"):
        for signal in map(Signal.finite, signals(run, "loss_scale")):
            yield from _scale(run, signal, minimum, (shrinks, risky), rows)
    if run.has("skipped_steps"):
        for signal in map(Signal.finite, signals(run, "skipped_steps")):
            yield from _skipped(run, signal, skipped, in_a_row)


def _settled(change: np.ndarray) -> int:
    """Return the index from which the scale no longer only falls; ``change`` is its log2 ratio."""
    held = np.flatnonzero(change > -0.5)
    if not len(held):
        return len(change) + 1
    # A scale that is halved only every other row, by hysteresis, is still being probed.
    falls = np.flatnonzero(change <= -0.5)
    if not len(falls) or falls[0] > 2:
        return 0
    gaps = np.flatnonzero(np.diff(falls) > 3)
    return int(falls[gaps[0]] if len(gaps) else falls[-1]) + 1


def _scale(
    run: Run, signal: Signal, minimum: float, shrunken: tuple[float, float], rows: int
) -> Iterator[Finding]:
    positive = signal.values > 0
    at, steps, values = signal.rows[positive], signal.steps[positive], signal.values[positive]
    if len(values) < 3:
        return
    log = values if values.max() <= 32 and values.min() < values.max() else np.log2(values)
    change = np.diff(log)
    start = 0 if signal.resumed else _settled(change)
    low = log <= np.log2(minimum)
    told = np.zeros(len(log), bool)
    if log[0] > np.log2(minimum):
        for first, last in lasting(low, 1, gap=rows):
            told[first : last + 1] = True
            yield _finding(run, at, values, (first, last), float(values[:first].max()), "error")
    level = trailing(log[start:], rows) if len(log) - start >= rows else np.empty(0)
    if len(level):
        best = np.fmax.accumulate(level)
        with np.errstate(invalid="ignore"):
            shrunk = best - level >= np.log2(shrunken[0])
        for first, last in lasting(shrunk, rows, gap=rows):
            span = (first + start, last + start)
            if not told[span[0] : span[1] + 1].any():
                told[span[0] : span[1] + 1] = True
                before = float(values[start : span[0] + 1].max())
                risky = level[first : last + 1].min() < np.log2(shrunken[1])
                yield _finding(run, at, values, span, before, "warning" if risky else "notice")
    halved = np.flatnonzero((change <= -0.5) & (np.arange(len(change)) >= start)) + 1
    weights = np.round(-change[halved - 1])
    total = np.cumsum(weights)
    earlier = np.searchsorted(steps[halved], steps[halved] - 100, side="right")
    recent = total - np.concatenate([[0.0], total])[earlier]
    dense = np.zeros(len(log), bool)
    dense[halved[recent >= 3]] = True
    for first, last in lasting(dense & ~told, 1, gap=rows):
        yield _finding(run, at, values, (first, last), float(values[max(0, first - 1)]), "notice")


def _finding(
    run: Run,
    at: np.ndarray,
    values: np.ndarray,
    span: tuple[int, int],
    before: float,
    severity: Severity,
) -> Finding:
    first, last = span
    peak = first + int(np.argmin(values[first : last + 1]))
    return finding(
        run,
        metric="loss_scale",
        rows=(int(at[first]), int(at[last])),
        peak=int(at[peak]),
        severity=severity,
        value=float(values[peak]),
        expected=before,
        score=before / max(float(values[peak]), 1e-12),
    )


def _skipped(run: Run, signal: Signal, share: float, in_a_row: int) -> Iterator[Finding]:
    values, steps = signal.values, signal.steps
    n = len(values)
    if n < 3:
        return
    interval = np.diff(steps, prepend=steps[0] - int(np.median(np.diff(steps))))
    some = values > 0
    if not signal.resumed:
        clear = np.flatnonzero(~some)
        some[: int(clear[0]) if len(clear) else n] = False
    total = np.concatenate([[0.0], np.cumsum(np.where(some, values, 0.0))])
    back = np.searchsorted(steps, steps - 500, side="right")
    recent = total[1:] - total[back]
    many = recent > share * 500
    whole = some & (values >= interval)
    for first, last in lasting(whole, 1):
        if values[first : last + 1].sum() > in_a_row:
            many[first : last + 1] = True
    for first, last in lasting(many, 1, gap=20):
        peak = first + int(np.argmax(recent[first : last + 1]))
        yield finding(
            run,
            metric="skipped_steps",
            rows=(int(signal.rows[first]), int(signal.rows[last])),
            peak=int(signal.rows[peak]),
            severity="warning",
            value=float(recent[peak]),
            expected=share * 500,
            score=float(recent[peak] / (share * 500)),
        )
