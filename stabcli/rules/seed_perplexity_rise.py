"""Rule ``seed-perplexity-rise``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.perplexity import evaluations, no_perplexity
from stabcli.rules import CannotLook, Finding, finding, rule
from stabcli.run import Run
from stabcli.series import ROUNDING, stretches


@rule(presets=("seed",), since="0.1.0")
def seed_perplexity_rise(run: Run, *, rise: float = 0.20, join: int = 1) -> Iterator[Finding]:
    """Validation perplexity is more than 20 % above the best before.

    ## What it finds
    Evaluations whose perplexity is more than ``1 + rise`` times the lowest of all evaluations
    before them. An attempt that logged no perplexity is judged by e to the power of its
    validation loss, and the finding says so with the tag ``from-val-loss``. Values below 1 are
    no perplexities but placeholders, and are left out. A loss that nothing shows to be that of a
    language model is not judged.

    ## Why it matters
    The model gets worse on data it does not train on: overfitting, or contaminated data.

    ## What to do
    Go back to the checkpoint with the lowest perplexity, and look at what the training data of
    the steps up to ``first`` and the held-out set have in common.

    ## When it errs
    20 % of perplexity are 0.18 nats of loss, whatever the noise of the evaluation: 37 of 39 real
    runs stayed silent, the other two fired 19 and 13 times for nothing but jitter. A held-out
    set that was changed looks like a rise. Megatron cuts perplexity off at exp(20) = 4.85e8, so
    that nothing can rise above that. ``perplexity-rise`` of the default preset asks for a rise
    beyond the noise, twice in a row.

    ## Settings
    rise: Relative rise above the best that an evaluation must exceed.
    join: Evaluations between two that fire which still belong to one finding.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_overfit.jsonl --rule seed-perplexity-rise --format brief
    error     seed-perplexity-rise attempt 0  step 1000..1200  val_perplexity 18.1, expected 12.78

    ## Sources
    - 20 % above the best: the field's rule of thumb.
    - How often it errs: measured on 39 public runs with 612 evaluations.
    """
    if why := no_perplexity(run):
        raise CannotLook(why)
    compared = 0
    for part in evaluations(run, history=len(run.frame)):
        best = np.fmin.accumulate(part.values)
        before = np.concatenate([[np.nan], best[:-1]])[part.start :]
        values = part.values[part.start :]
        compared += int(np.isfinite(before[~np.isnan(values)]).sum())
        limit = (1 + rise) * before
        over = (values > limit * (1 + ROUNDING)) & np.isfinite(limit)
        for first, last in stretches(over, gap=join):
            peak = first + int(np.nanargmax(values[first : last + 1]))
            told = part.told((first, last), peak=peak, expected=before[peak], limit=limit[peak])
            yield finding(run, severity="error", **told)
    if not compared:
        raise CannotLook("no evaluation with a finite one before it")
