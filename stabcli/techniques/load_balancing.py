"""Technique ``load-balancing``."""

from __future__ import annotations

from stabcli.techniques import Judgement, Subject, in_place, missing, technique, unknown

BROKEN = ("moe-aux-loss", "expert-imbalance")
"""Rules that see routing out of balance."""


@technique(kinds=("pretraining", "sft"), guards=BROKEN, effect="might have prevented")
def load_balancing(subject: Subject) -> Judgement | None:
    """The experts of a mixture are kept in balance.

    ## Why it matters
    A router that prefers one expert trains it most and prefers it more: the others starve, and a
    model of eight experts becomes one of one.

    ## What to do
    Give the load-balancing loss a weight of about 0.01, or balance by biases; log the busiest expert's load.

    ## How to log it
    Write router_aux_loss_coef into the configuration, or give --fact aux_loss_coefficient=0.01.

    ## Sources
    - Switch Transformer uses 0.01: arXiv:2101.03961, section 2.2
    - Wang et al. 2024, balance without a loss: arXiv:2408.15664
    """
    routed = subject.has("aux_loss") or subject.has("expert_load_ratio")
    if (subject.number("experts") or 0) <= 1 and not routed:
        return None
    weight = subject.number("aux_loss_coefficient")
    if weight is None:
        logged = "the load-balancing loss is logged; " if subject.has("aux_loss") else ""
        return unknown(f"{logged}nothing says which weight it has")
    if weight == 0:
        return missing(subject.cite("aux_loss_coefficient"))
    return in_place(subject.cite("aux_loss_coefficient") + _yet(subject))


def _yet(subject: Subject) -> str:
    """Say where the routing left its balance all the same."""
    found = subject.diagnosis.incidents if subject.diagnosis else ()
    grave = [i for i in found if i.rule in BROKEN and i.severity != "notice"]
    if not grave:
        return ""
    return f"; yet {grave[0].rule} at step {grave[0].first:,}: was it on all along?"
