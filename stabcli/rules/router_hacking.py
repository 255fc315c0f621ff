"""Rule ``router-hacking``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.levels import balanced_aux_loss, lasting, median_error, noise, trailing
from stabcli.rules import CannotLook, Finding, finding, rule
from stabcli.run import Run
from stabcli.series import signals


@rule(needs=("aux_loss",), presets=("default",), since="0.1.0")
def router_hacking(
    run: Run, *, below: float = 0.97, rows: int = 20, sigmas: float = 4.0
) -> Iterator[Finding]:
    """Load-balancing loss falls below what balanced routing gives: the router games it.

    ## What it finds
    Medians of ``rows`` rows of the auxiliary loss below ``below`` times the balanced value for
    ``rows`` rows, further than ``sigmas`` standard errors. It looks only where the balanced value
    is known: the coefficient is a fact of the run, or the loss starts near 1, as in Megatron-LM.

    ## Why it matters
    With softmax scores the loss has its minimum where routing is balanced. Below that the router
    lowers the loss without balancing, by making all its scores small.

    ## What to do
    Normalise the scores over the experts before the loss, and check the load of each expert.

    ## When it errs
    A loss summed or averaged over layers and scaled by an unknown factor may start near 1 by
    chance.

    ## Settings
    below: Share of the balanced value.
    rows: Rows whose median is taken, and that it must last.
    sigmas: Standard errors of that median which it must lie below.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_router.jsonl --rule router-hacking --format brief
    warning   router-hacking       attempt 0  step 509..709  aux_loss 0.8989, expected 1

    ## Sources
    - Sigmoid scores that undercut the auxiliary loss: Megatron-LM, issue 1545.
    """
    parts = [s.finite() for s in signals(run, "aux_loss")]
    values = np.concatenate([s.values[s.values > 0] for s in parts])
    if not len(values):
        raise CannotLook("aux_loss is 0 throughout: load balancing by this loss is switched off")
    if len(values) < 2 * rows:
        raise CannotLook(f"fewer than {2 * rows} logged values of aux_loss")
    early = float(np.median(values[:200]))
    balanced, known = balanced_aux_loss(early, run.fact("aux_loss_coefficient"), run.fact("top_k"))
    if not known:
        raise CannotLook(
            "the balanced value of aux_loss is not known: give aux_loss_coefficient and top_k"
        )
    for part in parts:
        keep = part.values > 0
        at, share = part.rows[keep], part.values[keep] / balanced
        if len(share) < 2 * rows:
            continue
        level = trailing(share, rows)
        limit = min(below, 1.0 - sigmas * median_error(noise(share), rows))
        with np.errstate(invalid="ignore"):
            low = level < limit
        for first, last in lasting(low, rows):
            peak = first + int(np.argmin(level[first : last + 1]))
            yield finding(
                run,
                metric="aux_loss",
                rows=(int(at[first]), int(at[last])),
                peak=int(at[peak]),
                severity="warning",
                value=float(level[peak] * balanced),
                expected=balanced,
                score=float((1.0 - level[peak]) / (1.0 - limit)),
            )
