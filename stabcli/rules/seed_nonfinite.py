"""Rule ``seed-nonfinite``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.rules import CannotLook, Finding, finding, rule
from stabcli.run import Run
from stabcli.series import signals, stretches

METRICS = ("loss", "objective_loss", "grad_norm")
"""What is looked at; under reinforcement learning a log's ``loss`` is an objective."""


@rule(presets=("seed",), since="0.1.0", judges=False)
def seed_nonfinite(run: Run, *, join: int = 10) -> Iterator[Finding]:
    """Loss or gradient norm is NaN or infinite.

    ## What it finds
    Every row whose loss or gradient norm is NaN or infinite, one finding a stretch and metric.

    ## Why it matters
    An update made of a non-finite gradient leaves no usable weight behind; every step after it
    is wasted, and so is every checkpoint.

    ## What to do
    Stop at once and roll back to the last stable checkpoint before ``first``.

    ## When it errs
    Under fp16 the loss scaler probes for the largest scale that works: 10 to 20 steps with
    infinite gradients at the start are skipped without harm. It sees only what the log holds:
    some trainers replace a NaN loss by a mean, by 0, or leave the field out.
    ``nonfinite`` of the default preset tells the scaler's skips apart and looks at every
    measurement; ``hidden-nonfinite`` finds what the log hides.

    ## Settings
    join: Rows between two that fire which still belong to one finding.

    ## Example
    $ stabcli scan sample_logs/hf-trainer/hidden_nan.json --rule seed-nonfinite --format brief
    critical  seed-nonfinite       attempt 0  step 305..500  loss NaN
    critical  seed-nonfinite       attempt 0  step 305..500  grad_norm NaN

    ## Sources
    - Any NaN or infinity, stop and roll back: the field's rule of thumb; torchtitan and OLMo-core
      stop a run in the same way.
    - Skips at the start: DeepSpeed's fp16 scaler begins at 2^16 and halves at each overflow.
    """
    metrics = [m for m in METRICS if run.has(m)]
    if not metrics:
        raise CannotLook("the log has no loss and no grad_norm")
    for metric in metrics:
        for signal in signals(run, metric):
            for first, last in stretches(~np.isfinite(signal.values), gap=join):
                yield finding(
                    run,
                    metric=metric,
                    rows=(int(signal.rows[first]), int(signal.rows[last])),
                    peak=int(signal.rows[first]),
                    severity="critical",
                    value=signal.values[first],
                )
