"""Technique ``weight-decay``."""

from __future__ import annotations

from stabcli.techniques import Judgement, Subject, in_place, missing, technique, unknown
from stabcli.units import number

USUAL = {"pretraining": 0.1, "sft": 0.01}
FAR = 5.0
"""Ratio to the usual decay from which it is said that it is another."""


@technique(kinds=("pretraining", "sft"), guards=("overfitting",), effect="might have softened")
def weight_decay(subject: Subject) -> Judgement | None:
    """Weights decay, by 0.1 in a pretraining and 0.01 in a fine-tune.

    ## Why it matters
    It keeps weights, and with them the effective learning rate, in bounds. In adapters it acts on
    the adapters alone.

    ## What to do
    Set weight_decay to 0.1 for a pretraining, 0.01 for a fine-tune.

    ## How to log it
    Write weight_decay into the configuration beside the log, or give --fact weight_decay=0.1.

    ## Sources
    - GPT-3 and LLaMA use 0.1: arXiv:2005.14165, appendix B; arXiv:2302.13971, section 2.3
    - torch.optim.AdamW uses 0.01 by default: https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html
    - D'Angelo et al. 2023, Why do we need weight decay: arXiv:2310.04415
    """
    decay = subject.number("weight_decay")
    if decay is None:
        return unknown("nothing says how weights decay")
    if decay == 0:
        return missing(subject.cite("weight_decay"))
    usual = USUAL[subject.kind]
    far = not 1 / FAR <= decay / usual <= FAR
    said = f"; {number(usual)} is usual in this kind of training" if far else ""
    return in_place(subject.cite("weight_decay") + said)
