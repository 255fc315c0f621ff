"""Technique ``z-loss``."""

from __future__ import annotations

import numpy as np

from stabcli.techniques import Judgement, Subject, in_place, missing, technique, unknown


@technique(kinds=("pretraining",), guards=("loss-divergence",), effect="might have prevented")
def z_loss(subject: Subject) -> Judgement | None:
    """The output logits are kept from drifting by a z-loss.

    ## Why it matters
    Softmax does not care how large logits are, so that they can drift until numbers break. A
    small weight on the squared log-partition holds them. Many models do well without it.

    ## What to do
    Add 1e-4 times the squared log-partition to the loss, where logits drift or the loss diverges late.

    ## How to log it
    Log z_loss beside the loss, or give --fact z_loss_weight=1e-4.

    ## Sources
    - PaLM uses a weight of 1e-4: arXiv:2204.02311, section 5
    - Wortsman et al. 2023, on divergence of output logits: arXiv:2309.14322
    """
    weight = subject.number("z_loss_weight")
    if weight is not None:
        return (in_place if weight else missing)(subject.cite("z_loss_weight"))
    run = subject.run
    if run is not None and run.has("z_loss"):
        column = run.word("z_loss")
        values = run.array("z_loss")
        if "router" in column.lower() or "moe" in column.lower():
            return unknown(f"the z-loss that is logged is the router's (column {column})")
        if np.isfinite(values).any() and (values[np.isfinite(values)] != 0).any():
            return in_place(f"logged (column {column}); its weight is not told")
    return unknown("nothing says whether there is one; some models train well without")
