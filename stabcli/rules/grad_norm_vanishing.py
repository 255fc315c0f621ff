"""Rule ``grad-norm-vanishing``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.rules import CannotLook, Finding, Severity, finding, rule
from stabcli.run import Run
from stabcli.series import MINIMUM, signals, stretches


@rule(needs=("grad_norm",), presets=("default",), since="0.1.0")
def grad_norm_vanishing(run: Run, *, least: float = 1e-7, rows: int = 3) -> Iterator[Finding]:
    """Gradient norm is zero, or next to nothing, for several rows after it was not.

    ## What it finds
    ``rows`` or more rows in a row with a gradient norm below ``least`` and below a thousandth of
    the median before them, after at least 16 rows with a norm above it: an error; a warning where
    it comes back. A norm that was never above it is a placeholder and not judged.

    ## Why it matters
    A step without a gradient trains nothing, and costs as much as any other. Labels that are all
    masked, parameters frozen by mistake, or a loss that no longer depends on the weights look
    like that; so does a loss scaler that skips step after step.

    ## What to do
    Look at the labels of the batches at ``first`` (are any left to predict?), at which parameters
    require a gradient, and at the loss scale.

    ## When it errs
    fairseq and metaseq log a norm of 0 for a step skipped for overflow; where that happens more
    than twice in a row ``loss-scale-collapse`` says more.

    ## Settings
    least: Gradient norm below which a row counts.
    rows: Rows in a row.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_vanishing.jsonl --rule grad-norm-vanishing --format brief
    error     grad-norm-vanishing  attempt 0  step 600..800  grad_norm 0, expected 0.3526

    ## Sources
    - A mean absolute gradient below 1e-7 counts as vanished: VanishingGradient of SageMaker
      Debugger.
    """
    looked = False
    for raw in signals(run, "grad_norm"):
        signal = raw.finite()
        alive = signal.values >= least
        if int(alive.sum()) < MINIMUM:
            continue
        looked = True
        begun = int(np.flatnonzero(alive)[MINIMUM - 1])
        for first, last in stretches(~alive):
            if first < begun or last - first + 1 < rows:
                continue
            before = float(np.median(signal.values[:first][alive[:first]][-64:]))
            if signal.values[first : last + 1].max() > before / 1000:
                continue
            severity: Severity = "error" if last == len(signal) - 1 else "warning"
            yield finding(
                run,
                metric="grad_norm",
                rows=(int(signal.rows[first]), int(signal.rows[last])),
                peak=int(signal.rows[first]),
                severity=severity,
                value=float(signal.values[first]),
                expected=before,
                score=(last - first + 1) / rows,
            )
    if not looked:
        raise CannotLook(f"fewer than {MINIMUM} gradient norms above {least:g} in every attempt")
