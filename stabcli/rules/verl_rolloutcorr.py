"""Rule ``verl-rolloutcorr``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.published import Judged
from stabcli.rules import CannotLook, Finding, published, rule
from stabcli.run import Run

LIMITS = {
    "rollout_is_mean": (0.5, 2.0),
    "rollout_is_std": (-np.inf, 1.0),
    "rollout_is_eff_sample_size": (0.3, np.inf),
    "kl": (-0.1, 0.1),
    "chi2_token": (-np.inf, 1.0),
}
"""Last word of a column -> what it should lie between."""


@rule(presets=("default", "verl-rolloutcorr"), since="0.1.0")
def verl_rolloutcorr(run: Run, *, join: int = 10) -> Iterator[Finding]:
    """Verl's guide would call rollout and training apart: weights, samples or KL out of limits.

    ## What it finds
    Rows of columns under ``rollout_corr/`` out of the limits of verl's guide: the mean of the
    importance weights (``rollout_is_mean``) outside 0.5 to 2, their deviation (``rollout_is_std``)
    above 1, the share of effective samples (``rollout_is_eff_sample_size``) below 0.3, the KL
    (``kl``) beyond 0.1 either way, and chi-squared of tokens (``chi2_token``) above 1.

    ## Why it matters
    A policy that is trained on what another one sampled learns from the wrong weights.

    ## What to do
    Look at the number formats of rollout and training, and turn on importance sampling or
    rejection.

    ## When it errs
    The limits are those of a guide, meant for a first look.

    ## Settings
    join: Rows between two that fire which still belong to one finding.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_rollout.jsonl --rule verl-rolloutcorr --format brief
    warning   verl-rolloutcorr     attempt 0  step 137..200  rollout_corr/rollout_is_mean 2.634, expected 2

    ## Sources
    - volcengine/verl, docs/algo/rollout_corr.md at b178a3c.
    """
    looked = False
    for name in run.measurements:
        folder, _, word = name.rpartition("/")
        if not run.has(name) or word not in LIMITS or not folder.endswith("rollout_corr"):
            continue
        low, high = LIMITS[word]

        def judge(x: np.ndarray, low: float = low, high: float = high) -> Judged:
            with np.errstate(invalid="ignore"):
                return Judged((x < low) | (x > high), np.where(x < low, low, high))

        looked = True
        yield from published(run, (name,), judge, least=1, join=join, falls=high == np.inf)
    if not looked:
        raise CannotLook("the log has no rollout_corr columns")
