"""Technique ``seed``."""

from __future__ import annotations

from stabcli.techniques import Judgement, Subject, in_place, technique, unknown


@technique(kinds=("sft",))
def seed(subject: Subject) -> Judgement | None:
    """The random seed is fixed and recorded.

    ## Why it matters
    Seeds alone move a fine-tune by more than many a change of settings does, and a run of a few
    GPU-hours is cheap to repeat: without its seed nobody can tell a fault from luck.

    ## What to do
    Set one seed for Python, numpy, torch and the data loader, and write it down.

    ## How to log it
    Write seed into the configuration beside the log, or give --fact seed=42.

    ## Sources
    - Dodge et al. 2020, on seeds and data orders in fine-tuning: arXiv:2002.06305
    """
    if "seed" in subject.facts:
        return in_place(subject.cite("seed"))
    return unknown("nothing says which seed the run had")
