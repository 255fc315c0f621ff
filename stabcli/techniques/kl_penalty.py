"""Technique ``kl-penalty``."""

from __future__ import annotations

from stabcli.techniques import Judgement, Subject, in_place, missing, technique, unknown


@technique(
    kinds=("rl",),
    guards=("kl-runaway", "reward-hacking", "entropy-collapse"),
    effect="might have held off",
)
def kl_penalty(subject: Subject) -> Judgement | None:
    """A penalty keeps the policy near its reference.

    ## Why it matters
    A reward can only judge what it was made on. A policy free to leave that range finds what the
    reward likes and people do not. Recipes with rewards that can be verified leave it out.

    ## What to do
    Give the divergence from the reference a weight of 0.001 to 0.1, and raise it where kl runs away.

    ## How to log it
    Write kl_coef into the configuration beside the log, or give --fact kl_coefficient=0.01.

    ## Sources
    - Ziegler et al. 2019: arXiv:1909.08593
    - Gao et al. 2022, on rewards over the divergence: arXiv:2210.10760
    - DAPO leaves it out: arXiv:2503.14476
    """
    weight = subject.number("kl_coefficient")
    if weight is not None:
        return (in_place if weight else missing)(subject.cite("kl_coefficient"))
    if subject.has("kl"):
        return unknown("the divergence is logged; whether it is penalised is not told")
    return unknown("nothing says whether the divergence from the reference is penalised")
