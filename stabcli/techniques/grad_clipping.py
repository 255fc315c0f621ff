"""Technique ``grad-clipping``."""

from __future__ import annotations

import numpy as np

from stabcli.run import Run
from stabcli.techniques import Judgement, Subject, in_place, missing, technique, unknown
from stabcli.units import number

USUAL = 1.0
"""Global norm at which most trainings clip."""
PINNED = 0.01
"""Share of the norms that stand at the largest of them where norms were cut before logging."""


@technique(
    guards=("grad-norm-run", "grad-norm-spike", "loss-spike", "loss-divergence"),
    effect="limits what follows from",
)
def grad_clipping(subject: Subject) -> Judgement | None:
    """Gradients are scaled down to a global norm of 1.0.

    ## Why it matters
    One bad batch then moves the weights no further than any other. A norm above 1 is no alarm by
    itself: clipping is there for it.

    ## What to do
    Clip the global norm at 1.0 (max_grad_norm, clip_grad, gradient_clip_val).

    ## How to log it
    Write grad_clip into the configuration beside the log, or give --fact grad_clip=1.0.

    ## Sources
    - Pascanu et al. 2013, arXiv:1211.5063
    - GPT-3 clips the global norm at 1.0: arXiv:2005.14165, appendix B
    """
    clip = subject.number("grad_clip")
    if clip == 0:
        return missing(subject.cite("grad_clip"))
    if clip is not None:
        return in_place(subject.cite("grad_clip") + _how(clip, subject.run))
    if subject.run is not None and (limit := _pinned(subject.run)) is not None:
        return in_place(
            f"norms are cut at {number(limit)} (column {subject.run.word('grad_norm')})"
        )
    beside = (
        ": a norm before clipping looks the same either way" if subject.has("grad_norm") else ""
    )
    return unknown(f"nothing says at which norm gradients are clipped{beside}")


def _how(clip: float, run: Run | None) -> str:
    """Say how a clip compares with the usual one, and with the norms that were logged."""
    said = "" if clip <= USUAL else f"; above the usual {number(USUAL)}"
    if run is None or not run.has("grad_norm"):
        return said
    norms = run.array("grad_norm")
    norms = norms[np.isfinite(norms)]
    over = int((norms > clip).sum())
    if not len(norms):
        return said
    return said + f"; {over:,} of {len(norms):,} logged norms are above it"


def _pinned(run: Run) -> float | None:
    """Return the value at which norms were cut before they were logged; None where none were."""
    if not run.has("grad_norm"):
        return None
    norms = run.array("grad_norm")
    norms = norms[np.isfinite(norms)]
    if not len(norms):
        return None
    top = float(norms.max())
    at_top = norms >= top * (1 - 1e-4)
    few = max(3, int(len(norms) * PINNED))
    return top if top > 0 and few <= at_top.sum() < len(norms) else None
