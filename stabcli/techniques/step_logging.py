"""Technique ``step-logging``."""

from __future__ import annotations

import re

from stabcli.metrics import normalise
from stabcli.run import Run
from stabcli.techniques import Judgement, Subject, in_place, missing, technique, unknown

FIGURES = {
    "loss": ("loss", "objective_loss"),
    "grad_norm": ("grad_norm",),
    "learning_rate": ("learning_rate",),
    "tokens/s": ("tokens_per_second", "tokens_per_second_per_gpu"),
    "MFU": ("mfu", "tflops_per_gpu"),
}
OF_RL = {"reward": ("reward",), "entropy": ("entropy",), "kl": ("kl",)}
CLOCKS = ("wall_time", "elapsed_seconds", "step_seconds")
SAMPLES = "samples"
"""Words of the note by which a reader says that its steps count samples."""


@technique()
def step_logging(subject: Subject) -> Judgement | None:
    """Every step logs loss, gradient norm, learning rate, tokens/s and MFU.

    ## Why it matters
    The gradient norm moves before the loss, the rate tells a schedule gone wrong from a bad batch,
    and below 25 % MFU the bottleneck is input or communication. In a log of every k-th step a
    spike of one step is divided by k, or not seen.

    ## What to do
    Log what is missing at every step; it costs nothing beside the step.

    ## How to log it
    Give the log itself to `stabcli audit`; a column it does not recognise is named by --map METRIC=NAME.

    ## Sources
    - BLOOM-176B, whose gradient norm rose from 0.24 to 145 before its loss leapt: https://huggingface.co/bigscience/tr11-176B-logs
    - MFU is defined in PaLM: arXiv:2204.02311, appendix B
    """
    run = subject.run
    if run is None:
        return unknown("a configuration does not tell what was logged")
    wanted = FIGURES | (OF_RL if subject.kind == "rl" else {})
    absent = [name for name in wanted if not _logged(subject, run, name, wanted[name])]
    named = _unrecognised(run) if "tokens/s" in absent else None
    told = [
        name if any(run.has(m) for m in wanted[name]) else f"{name} (worked out)"
        for name in wanted
        if name not in absent
    ]
    logged = ", ".join(told) or "none of them"
    interval = run.log_interval or 1
    sampled = interval > 1 and not any(SAMPLES in note for note in run.notes)
    every = f"one row in {interval:,} steps" if sampled else "every step"
    if not absent and not sampled:
        return in_place(f"{logged}: every step")
    said = f"{logged}: {every}" if logged != "none of them" else every
    if absent:
        said += f"; not logged: {', '.join(absent)}"
    if named is not None:
        said += f"; is {named} the tokens/s? then --map tokens_per_second={named}"
    return missing(said)


def _logged(subject: Subject, run: Run, name: str, metrics: tuple[str, ...]) -> bool:
    """Say whether a figure is in the log, or follows from what is."""
    if any(run.has(m) for m in metrics):
        return True
    if subject.diagnosis is None:
        return False
    cost = subject.diagnosis.cost
    if name == "tokens/s":
        clock = any(run.has(c) for c in CLOCKS)
        return clock and dict(cost.sources).get("tokens", "unknown") != "unknown"
    return name == "MFU" and cost.efficiency.mfu is not None


def _unrecognised(run: Run) -> str | None:
    """Return a column that looks like tokens/s but is of no known unit."""
    pattern = re.compile(r"tok(en)?s?_?(/|per)_?s(ec(ond)?)?$")
    names = (n for n in run.measurements if n not in run.columns)
    return next((n for n in names if pattern.search(normalise(n))), None)
