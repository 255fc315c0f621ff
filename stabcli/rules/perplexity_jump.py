"""Rule ``perplexity-jump``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.levels import noise
from stabcli.perplexity import nats, no_perplexity
from stabcli.rules import CannotLook, Finding, finding, rule
from stabcli.run import Run
from stabcli.series import warmup_end


@rule(presets=("default",), since="0.1.0")
def perplexity_jump(run: Run, *, rise: float = 0.15, sigmas: float = 4.0) -> Iterator[Finding]:
    """Validation perplexity jumps between two evaluations.

    ## What it finds
    Evaluations whose perplexity is ``rise`` or more above that of the one before, and ``sigmas``
    standard deviations of what two evaluations of this run usually differ by. The first
    evaluation after a restart is left out, and so are those of the warm-up. A validation loss is judged where
    something shows that it is that of a language model.

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
    if why := no_perplexity(run):
        raise CannotLook(why)
    looked = False
    for part in nats(run):
        signal, values = part.signal, part.values[part.start :]
        if len(values) < 4:
            continue
        looked = True
        change = np.diff(values)
        usual = float(np.sqrt(2.0)) * noise(values)
        limit = max(float(np.log1p(rise)), sigmas * usual)
        jumped = (change >= limit) & (signal.steps[1:] > warmup_end(run, signal.attempt))
        for i in (np.flatnonzero(jumped) + 1).tolist():
            if i == 1 and signal.resumed:
                continue
            yield finding(
                run,
                metric=part.metric,
                rows=(int(signal.rows[i]), int(signal.rows[i])),
                peak=int(signal.rows[i]),
                severity="warning",
                value=float(signal.values[i]),
                expected=float(signal.values[i - 1]),
                score=float(change[i - 1] / limit),
            )
    if not looked:
        raise CannotLook("fewer than 4 evaluations in every attempt")
