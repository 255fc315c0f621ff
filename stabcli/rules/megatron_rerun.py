"""Rule ``megatron-rerun``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.published import Judged, finite_only
from stabcli.rules import Finding, published, rule
from stabcli.run import Run


@rule(needs=("loss",), presets=("megatron-rerun",), since="0.1.0")
def megatron_rerun(
    run: Run, *, ratio: float = 10.0, first: int = 100, join: int = 10
) -> Iterator[Finding]:
    """Megatron-LM would have run the step again: loss not finite, or ten times the highest of the first.

    ## What it finds
    Rows whose loss is not finite, or at least ``ratio`` times the highest of the ``first`` losses
    of the attempt.

    ## Why it matters
    It is there to tell a broken device from a broken batch.

    ## What to do
    There the step is run again on the same device, then on another, and the result is compared.

    ## When it errs
    The highest of the first losses is that of a random guess, about 11: a loss must be 110. It
    finds silent data corruption and no instability.

    ## Settings
    ratio: Multiple of the highest.
    first: Losses whose highest is taken.
    join: Rows between two that fire which still belong to one finding.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_guards.jsonl --rule megatron-rerun --format brief
    error     megatron-rerun       attempt 0  step 500..502  loss 62.83, expected 42.24

    ## Sources
    - NVIDIA/Megatron-LM, megatron/core/rerun_state_machine.py and pretrain_gpt.py at d98e8a6.
    """

    def judge(x: np.ndarray) -> Judged:
        limit = ratio * float(np.max(np.abs(x[:first]))) if len(x) else 0.0
        late = np.arange(len(x)) >= first
        return Judged(late & (np.abs(x) >= limit), np.full(len(x), limit))

    yield from published(run, ("loss",), finite_only(judge), least=2, join=join, severity="error")
