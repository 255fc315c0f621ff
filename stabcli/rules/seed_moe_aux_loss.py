"""Rule ``seed-moe-aux-loss``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.rules import CannotLook, Finding, finding, rule
from stabcli.run import Run
from stabcli.series import signals, stretches


@rule(needs=("aux_loss",), presets=("seed",), since="0.1.0")
def seed_moe_aux_loss(run: Run, *, threshold: float = 0.1, join: int = 10) -> Iterator[Finding]:
    """Load-balancing loss of a mixture of experts is above 0.1.

    ## What it finds
    Rows whose load-balancing loss, as logged, is above ``threshold``.

    ## Why it matters
    The router sends most tokens to a few experts: routing collapse.

    ## What to do
    Look at the load of each expert. Raise the loss's coefficient or the capacity, or add a
    router z-loss, from a checkpoint before ``first``.

    ## When it errs
    The number depends on who logs it. Without its coefficient it is 1 when the load is perfectly
    balanced (Switch, Megatron), or the number of experts a token goes to (transformers): the
    rule then holds on every row. With the usual coefficient of 0.01 it is 0.01 when balanced and
    cannot reach 0.1 unless there are more than ten experts for each one used.
    ``moe-aux-loss`` of the default preset compares with the balanced value of the run.

    ## Settings
    threshold: Load-balancing loss that a row must exceed.
    join: Rows between two that fire which still belong to one finding.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_router.jsonl --rule seed-moe-aux-loss --format brief
    error     seed-moe-aux-loss    attempt 0  step 1..1200  aux_loss 3.031, expected 0.1

    ## Sources
    - Above 0.1 is collapse: the field's rule of thumb.
    - Balanced and collapsed values: the loss E * sum(f_i * P_i) of Fedus, Zoph and Shazeer
      (2021), Switch Transformers, and how Megatron-LM, OLMo-core and transformers log it.
    """
    looked = False
    for signal in signals(run, "aux_loss"):
        looked = looked or not np.isnan(signal.values).all()
        for first, last in stretches(signal.values > threshold, gap=join):
            peak = first + int(np.nanargmax(signal.values[first : last + 1]))
            yield finding(
                run,
                metric="aux_loss",
                rows=(int(signal.rows[first]), int(signal.rows[last])),
                peak=int(signal.rows[peak]),
                severity="error",
                value=signal.values[peak],
                expected=threshold,
                score=signal.values[peak] / threshold if threshold > 0 else None,
            )
    if not looked:
        raise CannotLook("every logged aux_loss is NaN")
