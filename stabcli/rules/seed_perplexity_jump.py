"""Rule ``seed-perplexity-jump``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from stabcli.rules import CannotLook, Finding, finding, rule
from stabcli.run import Run
from stabcli.series import ROUNDING, signals, stretches

METRICS = ("val_perplexity", "val_loss")
"""What perplexity is taken from, the first that an attempt logged."""


@rule(presets=("seed",), since="0.1.0")
def seed_perplexity_jump(run: Run, *, jump: float = 0.15, join: int = 1) -> Iterator[Finding]:
    """Validation perplexity leaps by more than 15 % from one point to the next.

    ## What it finds
    Evaluations whose perplexity is more than ``1 + jump`` times that of the evaluation before,
    passing over those that were not finite. An attempt that logged no perplexity is judged by e
    to the power of its validation loss, and the finding says so with the tag ``from-val-loss``.
    Values below 1 are no perplexities but placeholders, and are left out.

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
    metrics = [m for m in METRICS if run.has(m)]
    if not metrics:
        raise CannotLook("the log has no val_perplexity and no val_loss")
    compared = 0
    seen: set[int] = set()
    for metric in metrics:
        for signal in signals(run, metric):
            if signal.attempt in seen:
                continue
            seen.add(signal.attempt)
            values = np.concatenate([signal.inherited, signal.values])
            if metric == "val_loss":
                with np.errstate(over="ignore"):
                    values = np.exp(values)
            values[~(values >= 1)] = np.nan
            known = pl.Series(np.where(np.isfinite(values), values, np.nan)).fill_nan(None)
            filled = known.forward_fill().shift(1).fill_null(np.nan).to_numpy()
            before = filled[len(signal.inherited) :]
            values = values[len(signal.inherited) :]
            compared += int(np.isfinite(before[~np.isnan(values)]).sum())
            limit = (1 + jump) * before
            over = values > limit * (1 + ROUNDING)
            for first, last in stretches(over, gap=join):
                inside = np.flatnonzero(over[first : last + 1]) + first
                peak = int(inside[np.argmax(values[inside] / limit[inside])])
                yield finding(
                    run,
                    metric="val_perplexity",
                    rows=(int(signal.rows[first]), int(signal.rows[last])),
                    peak=int(signal.rows[peak]),
                    severity="warning",
                    value=values[peak],
                    expected=before[peak],
                    score=values[peak] / limit[peak],
                    tags=("from-val-loss",) if metric == "val_loss" else (),
                )
    if not compared:
        raise CannotLook("no evaluation with a finite one before it")
