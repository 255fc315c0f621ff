"""Rule ``perplexity-jump``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.levels import noise
from stabcli.rules import CannotLook, Finding, finding, rule
from stabcli.run import Run
from stabcli.series import signals, warmup_end

CAP = 20.0
"""Log perplexity at which Megatron cuts off what it prints: exp(20) says only that it is large."""


@rule(presets=("default",), since="0.1.0")
def perplexity_jump(run: Run, *, rise: float = 0.15, sigmas: float = 4.0) -> Iterator[Finding]:
    """Validation perplexity jumps between two evaluations.

    ## What it finds
    Evaluations whose perplexity is ``rise`` or more above that of the one before, and ``sigmas``
    standard deviations of what two evaluations of this run usually differ by. The first
    evaluation after a restart is left out, and so are those of the warm-up.

    ## Why it matters
    Between two evaluations something happened to the weights. When the training loss shows
    nothing, the batches in between taught something that the held-out data contradicts.

    ## What to do
    Look at the training loss and the gradient norm between the two evaluations, and at the data
    shard read there. Keep the checkpoint from before.

    ## When it errs
    A small or shuffled evaluation set jumps by itself; that is what ``sigmas`` is for, but it
    needs several evaluations to know the noise. With fewer than four the rule does not look.

    ## Settings
    rise: Relative rise of the perplexity from one evaluation to the next; 0.15 is 0.14 nats.
    sigmas: Least rise in standard deviations of the usual difference.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_overfit.jsonl --rule perplexity-jump --format brief
    warning   perplexity-jump      attempt 0  step 1000  val_loss 2.858, expected 2.596

    ## Sources
    - 15 % over the one before: the field's rule of thumb; the noise gate from 612 evaluations of
      39 healthy runs.
    """
    metric = "val_loss" if run.has("val_loss") else "val_perplexity"
    if not run.has(metric):
        raise CannotLook("the log has no val_loss or val_perplexity")
    looked = False
    for raw in signals(run, metric):
        signal = raw.finite()
        values, rows, steps = signal.values, signal.rows, signal.steps
        nats = values if metric == "val_loss" else np.log(np.maximum(values, 1e-300))
        if metric == "val_perplexity":
            keep = nats < CAP
            values, rows, steps, nats = values[keep], rows[keep], steps[keep], nats[keep]
        if len(nats) < 4:
            continue
        looked = True
        change = np.diff(nats)
        usual = float(np.sqrt(2.0)) * noise(nats)
        limit = max(float(np.log1p(rise)), sigmas * usual)
        jumped = (change >= limit) & (steps[1:] > warmup_end(run, signal.attempt))
        for i in (np.flatnonzero(jumped) + 1).tolist():
            if i == 1 and signal.resumed:
                continue
            yield finding(
                run,
                metric=metric,
                rows=(int(rows[i]), int(rows[i])),
                peak=int(rows[i]),
                severity="warning",
                value=float(values[i]),
                expected=float(values[i - 1]),
                score=float(change[i - 1] / limit),
            )
    if not looked:
        raise CannotLook("fewer than 4 evaluations in every attempt")
