"""Technique ``validation``."""

from __future__ import annotations

import numpy as np

from stabcli.run import Run
from stabcli.techniques import Judgement, Subject, in_place, missing, technique, unknown

HELD_OUT = {
    "pretraining": ("val_loss", "val_perplexity"),
    "sft": ("val_loss", "val_perplexity", "val_reward"),
    "rl": ("val_reward", "val_loss", "val_perplexity"),
}
FEWEST = 3
"""Evaluations without which there is no trend."""


@technique()
def validation(subject: Subject) -> Judgement | None:
    """A small held-out set is evaluated all along.

    ## Why it matters
    The training loss alone does not tell: while it falls and the held-out loss rises the model
    learns by heart, and while a reward rises and the held-out score falls the policy games it.

    ## What to do
    Evaluate a small set that never changes, every few hundred steps, beside the training.

    ## How to log it
    Log val_loss (in RL val_reward) at the step it belongs to; where it stands under another name, --map val_loss=NAME.

    ## Sources
    - Gao et al. 2022, on rewards that rise while what they stand for falls: arXiv:2210.10760
    - Prechelt 1998, Early stopping, but when: doi:10.1007/3-540-49430-8_3
    """
    run = subject.run
    found = [m for m in HELD_OUT[subject.kind] if subject.has(m)]
    if run is not None and found:
        return _seen(run, found[0])
    if subject.number("eval_every") == 0:
        return missing(subject.cite("eval_every"))
    if subject.word("eval_strategy") == "no":
        return missing(subject.cite("eval_strategy"))
    told = [f for f in ("eval_strategy", "eval_every") if f in subject.facts]
    if run is None:
        if "eval_strategy" in told or subject.number("eval_every"):
            return in_place(subject.cite(*told))
        return unknown("nothing says whether held-out data is evaluated")
    if told:
        return unknown(f"{subject.cite(*told)}, but this log holds no held-out figure")
    return unknown("this log holds no held-out figure; another file may")


def _seen(run: Run, metric: str) -> Judgement:
    """Say how often a held-out figure was logged."""
    rows = np.flatnonzero(run.logged(metric))
    steps = np.unique(run.frame["step"].to_numpy()[rows])
    where = f"column {run.word(metric)}"
    if len(steps) < FEWEST:
        times = "one evaluation" if len(steps) == 1 else f"{len(steps)} evaluations"
        return in_place(f"{times} ({where}), too few for a trend")
    every = int(np.median(np.diff(steps)))
    return in_place(f"every {every:,} steps, {len(steps):,} in all ({where})")
