"""Rule ``seed-perplexity-jump``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from stabcli.perplexity import evaluations, no_perplexity
from stabcli.rules import CannotLook, Finding, finding, rule
from stabcli.run import Run
from stabcli.series import ROUNDING, WINDOW, stretches


@rule(presets=("seed",), since="0.1.0")
def seed_perplexity_jump(run: Run, *, jump: float = 0.15, join: int = 1) -> Iterator[Finding]:
    """Validation perplexity leaps by more than 15 % from one point to the next.

    ## What it finds
    Evaluations whose perplexity is more than ``1 + jump`` times that of the evaluation before,
    passing over those that were not finite. An attempt that logged no perplexity is judged by e
    to the power of its validation loss, and the finding says so with the tag ``from-val-loss``.
    Values below 1 are no perplexities but placeholders, and are left out. A loss that nothing shows to be that of a
    language model is not judged.

    ## Why it matters
    A leap between two evaluations points at what was trained on between them.

    ## What to do
    Pause, and check the data shard of the steps between the two evaluations.

    ## When it errs
    It knows no noise: a small held-out set jitters by as much, and of 39 real runs two fired
    again and again for that reason alone. An evaluation right after a restart, or early in
    warm-up, leaps without harm. A rise in small steps is never seen; that is what
    ``seed-perplexity-rise`` is for. ``perplexity-jump`` of the default preset asks for a leap
    beyond the noise of the evaluations.

    ## Settings
    jump: Relative rise above the evaluation before that must be exceeded.
    join: Evaluations between two that fire which still belong to one finding.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_overfit.jsonl --rule seed-perplexity-jump --format brief
    warning   seed-perplexity-jump attempt 0  step 1000  val_perplexity 17.43, expected 13.4

    ## Sources
    - 15 % at one point, pause and check the shard: the field's rule of thumb.
    - How often it errs: measured on 39 public runs with 612 evaluations.
    """
    if why := no_perplexity(run):
        raise CannotLook(why)
    compared = 0
    for part in evaluations(run, history=WINDOW):
        known = pl.Series(np.where(np.isfinite(part.values), part.values, np.nan)).fill_nan(None)
        filled = known.forward_fill().shift(1).fill_null(np.nan).to_numpy()
        before = filled[part.start :]
        values = part.values[part.start :]
        compared += int(np.isfinite(before[~np.isnan(values)]).sum())
        limit = (1 + jump) * before
        over = values > limit * (1 + ROUNDING)
        for first, last in stretches(over, gap=join):
            inside = np.flatnonzero(over[first : last + 1]) + first
            peak = int(inside[np.argmax(values[inside] / limit[inside])])
            told = part.told((first, last), peak=peak, expected=before[peak], limit=limit[peak])
            yield finding(run, severity="warning", **told)
    if not compared:
        raise CannotLook("no evaluation with a finite one before it")
