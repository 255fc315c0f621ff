"""Technique ``entropy-bonus``."""

from __future__ import annotations

from stabcli.techniques import Judgement, Subject, in_place, missing, technique, unknown


@technique(kinds=("rl",), guards=("entropy-collapse",), effect="might have held off")
def entropy_bonus(subject: Subject) -> Judgement | None:
    """A bonus keeps the policy exploring.

    ## Why it matters
    Once the entropy has collapsed all answers to a prompt are alike, and nothing is left to
    learn from. A reward that still rises then hides it. A higher upper clip serves the same end.

    ## What to do
    Give the entropy a small weight, or raise the upper clip; stop where it falls below what it needs.

    ## How to log it
    Write entropy_coef into the configuration beside the log, or give --fact entropy_coefficient=0.001.

    ## Sources
    - Cui et al. 2025, The entropy mechanism of reinforcement learning: arXiv:2505.22617
    - DAPO raises the upper clip instead: arXiv:2503.14476
    """
    weight = subject.number("entropy_coefficient")
    if weight is None:
        return unknown("nothing says whether entropy is rewarded")
    return (in_place if weight else missing)(subject.cite("entropy_coefficient"))
