"""Rule ``seed-grad-norm-high``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.rules import CannotLook, Finding, finding, rule
from stabcli.run import Run
from stabcli.series import after_clipping, signals, stretches


@rule(needs=("grad_norm",), presets=("seed",), since="0.1.0")
def seed_grad_norm_high(run: Run, *, threshold: float = 1.0, join: int = 10) -> Iterator[Finding]:
    """Gradient norm before clipping is above 1.

    ## What it finds
    Rows whose global gradient norm, before clipping, is above ``threshold``.

    ## Why it matters
    Said to mean that the run is about to explode.

    ## What to do
    Watch the loss of the next steps; keep the checkpoint before ``first``. If the norm goes on
    rising, lower the learning rate.

    ## When it errs
    Most of the time. In 45 healthy runs the norm was above 1 on 52 % of 29,145 rows, and in
    every run at some time: its level depends on the model, the batch and the loss. It means
    something only where the run's own level lies far below: BLOOM 176B stood at 0.24 and passed
    1 a few logged rows before its loss leapt. Where the log holds the norm after clipping, nothing
    can be seen at all. ``grad-norm-spike`` of the default preset compares with the run's own
    level.

    ## Settings
    threshold: Gradient norm that a row must exceed.
    join: Rows between two that fire which still belong to one finding.

    ## Example
    $ stabcli scan sample_logs/jsonl/clean.jsonl --rule seed-grad-norm-high --format brief
    warning   seed-grad-norm-high  attempt 0  step 1..44  grad_norm 2.484, expected 1
    warning   seed-grad-norm-high  attempt 0  step 65..66  grad_norm 2.327, expected 1
    warning   seed-grad-norm-high  attempt 0  step 83..99  grad_norm 2.966, expected 1
    warning   seed-grad-norm-high  attempt 0  step 116  grad_norm 1.062, expected 1
    warning   seed-grad-norm-high  attempt 0  step 151  grad_norm 1.035, expected 1
    warning   seed-grad-norm-high  attempt 0  step 204..205  grad_norm 1.133, expected 1
    warning   seed-grad-norm-high  attempt 0  step 241  grad_norm 1.228, expected 1
    warning   seed-grad-norm-high  attempt 0  step 267  grad_norm 1.081, expected 1
    warning   seed-grad-norm-high  attempt 0  step 281..1000  grad_norm 3.34, expected 1

    ## Sources
    - Above 1.0 before clipping: the field's rule of thumb, after the usual clip of 1.0.
    - How often it errs: measured on 45 public runs that converged.
    - BLOOM 176B: the training log of 2022-04-12.
    """
    clip = after_clipping(run)
    if clip is not None and clip <= threshold:
        raise CannotLook(f"grad_norm is logged after clipping to {clip:g}: the norm is not known")
    looked = False
    for signal in signals(run, "grad_norm"):
        looked = looked or not np.isnan(signal.values).all()
        for first, last in stretches(signal.values > threshold, gap=join):
            peak = first + int(np.nanargmax(signal.values[first : last + 1]))
            yield finding(
                run,
                metric="grad_norm",
                rows=(int(signal.rows[first]), int(signal.rows[last])),
                peak=int(signal.rows[peak]),
                severity="warning",
                value=signal.values[peak],
                expected=threshold,
                score=signal.values[peak] / threshold,
            )
    if not looked:
        raise CannotLook("every logged grad_norm is NaN")
