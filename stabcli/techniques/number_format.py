"""Technique ``number-format``."""

from __future__ import annotations

import re

import numpy as np

from stabcli.techniques import Judgement, Subject, in_place, missing, technique, unknown


@technique(
    guards=("loss-scale-collapse", "hidden-nonfinite", "nonfinite"), effect="might have prevented"
)
def number_format(subject: Subject) -> Judgement | None:
    """Activations and gradients are bf16, not fp16.

    ## Why it matters
    fp16 overflows above 65,504 and needs a loss scale; bf16 has the range of fp32. What it lacks
    is digits, which is why sums and master weights stay fp32. In RL fp16 has its advocates: it
    brings the probabilities of trainer and sampler closer together.

    ## What to do
    Train in bf16 where the hardware has it; in fp16 watch the loss scale.

    ## How to log it
    Write precision into the configuration beside the log, or give --fact precision=bf16.

    ## Sources
    - BLOOM took bf16 after fp16 had been unstable at 104B: arXiv:2211.05100
    - Kalamkar et al. 2019, A study of bfloat16: arXiv:1905.12322
    """
    said = subject.word("precision")
    kind = None if said is None else _kind(said)
    if kind == "fp16":
        return missing(subject.cite("precision"))
    if kind == "fp32":
        return in_place(subject.cite("precision") + "; it has the range of bf16 and more digits")
    if kind == "bf16":
        return in_place(subject.cite("precision"))
    run = subject.run
    if run is not None and run.has("loss_scale"):
        scales = run.array("loss_scale")
        scales = scales[np.isfinite(scales)]
        column = f"column {run.word('loss_scale')}"
        if len(scales) and (scales > 1).any():
            return missing(f"the loss is scaled by {scales.max():,.0f}, as fp16 needs ({column})")
        return unknown(
            f"the loss is not scaled ({column}), so it is hardly fp16; which, is not told"
        )
    if said is not None:
        return unknown(f"{subject.cite('precision')} does not say what the rest is kept in")
    return unknown("nothing says in which number format the run computed")


def _kind(text: str) -> str | None:
    """Return the format that a setting names; None where it names another, or several."""
    named = {
        "bf16" if "b" in word else "fp32" if "32" in word else "fp16"
        for word in re.findall(r"b(?:rain)?f(?:loat)?-?16|(?:t?f|fp|float)?(?:16|32)|half", text)
    }
    return named.pop() if len(named) == 1 and "8" not in text else None
