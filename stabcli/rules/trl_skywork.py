"""Rule ``trl-skywork``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.published import Judged
from stabcli.rules import Finding, published, rule
from stabcli.run import Run


@rule(needs=("entropy",), presets=("trl-skywork",), since="0.1.0")
def trl_skywork(run: Run, *, target: float = 0.2, join: int = 10) -> Iterator[Finding]:
    """TRL would have raised its entropy bonus: entropy of the policy below 0.2.

    ## What it finds
    Rows whose entropy is below ``target`` nats a token.

    ## Why it matters
    A policy without entropy no longer explores.

    ## What to do
    There the coefficient of the entropy grows by 0.005 in every such step.

    ## When it errs
    Trainers that log the entropy of a whole response are never below; many reasoning models live
    near 0.2.

    ## Settings
    target: Entropy below which it is low.
    join: Rows between two that fire which still belong to one finding.

    ## Example
    $ stabcli scan sample_logs/jsonl/entropy_collapse.jsonl --rule trl-skywork --format brief
    warning   trl-skywork          attempt 0  step 173..400  entropy 0.0169, expected 0.2

    ## Sources
    - huggingface/trl, trl/trainer/grpo_config.py at f2cd577, after Skywork-OR1.
    """

    def judge(x: np.ndarray) -> Judged:
        with np.errstate(invalid="ignore"):
            return Judged(x < target, np.full(len(x), target))

    yield from published(run, ("entropy",), judge, least=1, join=join, falls=True)
