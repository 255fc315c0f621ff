"""Technique ``stop-on-nonfinite``."""

from __future__ import annotations

import numpy as np

from stabcli.damage import went_nonfinite
from stabcli.run import Run
from stabcli.techniques import Judgement, Subject, in_place, missing, technique, unknown
from stabcli.units import steps

FEW = 1
"""Rows that a run may still log once it is not finite and have stopped at once."""


@technique(
    guards=("nonfinite", "hidden-nonfinite"), effect="would have ended the run at", lasting=True
)
def stop_on_nonfinite(subject: Subject) -> Judgement | None:
    """Training stops by itself once the loss is NaN.

    ## Why it matters
    Weights that went through a NaN stay NaN: every step after it is wasted, and trainers that
    replace a NaN loss in their logs let it go on unseen.

    ## What to do
    Stop at the first NaN of loss or gradient norm and go back to the last checkpoint; switch off logging_nan_inf_filter.

    ## How to log it
    Write stop_on_nan into the configuration, or give --fact stop_on_nonfinite=yes.

    ## Sources
    - Megatron-LM checks by default: check_for_nan_in_loss_and_grad
    - transformers hides them by default: https://huggingface.co/docs/transformers/main_classes/trainer
    """
    said = subject.word("stop_on_nonfinite")
    if subject.run is not None and (seen := _seen(subject.run)) is not None:
        return seen
    if said is None:
        nothing = "nothing says what the run does at a NaN"
        if subject.run is None:
            return unknown(nothing)
        return unknown(f"the loss never stayed NaN to show it, and {nothing}")
    return (missing if said == "no" else in_place)(subject.cite("stop_on_nonfinite"))


def _seen(run: Run) -> Judgement | None:
    """Say what a run did once it was not finite for good; None where it always was finite."""
    spoilt = went_nonfinite(run)
    if not spoilt.any():
        return None
    rows = np.flatnonzero(spoilt)
    step = run.frame["step"].to_numpy()
    at = f"step {int(step[rows[0]]):,}"
    if len(rows) <= FEW:
        return in_place(f"the log ends at {at}, where it was first not finite")
    more = int(step[rows[-1]] - step[rows[0]])
    return missing(f"not finite from {at} on, and trained on for {steps(more)}")
