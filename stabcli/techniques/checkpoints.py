"""Technique ``checkpoints``."""

from __future__ import annotations

from stabcli.techniques import Judgement, Subject, in_place, missing, technique, unknown
from stabcli.units import steps

FEWEST = 2
"""Checkpoints before the end of a run without which there is hardly a way back."""


@technique(
    guards=("nonfinite", "hidden-nonfinite", "loss-divergence", "loss-spike", "discarded-steps"),
    effect="would make it cheaper to go back behind",
    lasting=True,
)
def checkpoints(subject: Subject) -> Judgement | None:
    """Checkpoints are saved often, and several are kept.

    ## Why it matters
    What an incident costs at most is what was trained since the last good checkpoint. Keep more
    than one: those saved after the onset hold the damage.

    ## What to do
    Save every few hundred to 2,000 steps; `stabcli cost-report` works out how often pays.

    ## How to log it
    Write save_every into the configuration beside the log, or give --fact checkpoint_every=1000.

    ## Sources
    - PaLM went back about 100 steps before each of its spikes: arXiv:2204.02311, section 5.1
    - Daly 2006, on the interval that pays: doi:10.1016/j.future.2004.11.016
    """
    every, saved = subject.number("checkpoint_every"), subject.facts.get("checkpoints")
    total = subject.number("total_steps")
    run = subject.run
    if run is not None:
        total = max(total or 0.0, *(float(a.last_step) for a in run.attempts))
    if every is not None and total is not None:
        before = range(int(every), int(total), int(every))
        said = subject.cite("checkpoint_every")
        if not before:
            return missing(f"{said}: none before the end, at step {total:,.0f}")
        if len(before) < FEWEST:
            return missing(f"{said}: one alone before the end, at step {total:,.0f}")
        return in_place(f"{said}: {steps(int(every))} lost at most")
    if every is not None:
        return in_place(subject.cite("checkpoint_every"))
    if saved is not None and isinstance(saved.value, tuple):
        shown = ", ".join(f"{s:,}" for s in saved.value[-4:])
        kept = f"those of steps {shown} lie there ({saved.source})"
        return in_place(kept) if len(saved.value) >= FEWEST else unknown(f"only {kept}")
    return unknown("nothing says how often checkpoints are saved")
