"""Technique ``warm-up``."""

from __future__ import annotations

from stabcli.observed import warm_up as observed
from stabcli.techniques import Judgement, Subject, in_place, missing, technique, unknown
from stabcli.units import Step

EARLY = 0.1
"""Share of a run in which the lack of a warm-up shows."""


@technique(
    guards=("hidden-nonfinite", "nonfinite", "loss-spike", "loss-divergence", "grad-norm-run",
            "grad-norm-spike", "loss-scale-collapse"),
    effect="might have prevented",
)  # fmt: skip
def warm_up(subject: Subject) -> Judgement | None:
    """The learning rate rises over the first steps.

    ## Why it matters
    At first the second moments of the optimizer rest on a few gradients and the loss is sharp:
    a full step breaks then what it would not break later. Rates that a warm-up makes safe
    diverge without one.

    ## What to do
    Let the rate rise over 50 to 100 steps of a fine-tune, or 1,000 to 2,000 of a pretraining.

    ## How to log it
    Log the learning rate of every step from the first on, or give --fact warmup_steps=N.

    ## Sources
    - Goyal et al. 2017, arXiv:1706.02677
    - Wortsman et al. 2023, on which rates diverge with less warm-up: arXiv:2309.14322
    """
    run = subject.run
    seen = None if run is None else observed(run)
    steps, ratio = subject.number("warmup_steps"), subject.number("warmup_ratio")
    said = "warmup_steps" if steps else "warmup_ratio" if ratio else None
    if seen is not None and seen.steps == 0:
        told = f", though {subject.cite(said)}" if said else ""
        return missing(seen.told + told, until=_early(subject))
    if seen is not None and seen.steps:
        return in_place(seen.told)
    if said:
        return in_place(subject.cite(said))
    if steps == 0 or ratio == 0:
        names = [n for n in ("warmup_steps", "warmup_ratio") if n in subject.facts]
        return missing(subject.cite(*names), until=_early(subject))
    if seen is not None:
        return unknown(seen.told, until=_early(subject))
    return unknown("neither a learning rate nor a length of warm-up is told", until=_early(subject))


def _early(subject: Subject) -> Step | None:
    """Return the last step at which the lack of a warm-up shows."""
    if subject.run is None:
        return None
    attempts = subject.run.attempts
    total = int(subject.number("total_steps") or attempts[-1].last_step)
    return attempts[0].first_step + int((total - attempts[0].first_step) * EARLY)
