"""Rule ``qk-clip``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.metrics import normalise
from stabcli.published import Judged
from stabcli.rules import CannotLook, Finding, published, rule
from stabcli.run import Run

NAMES = ("max_attention_logit", "max_attention_logits", "max_attn_logit", "attn_logits_max")
"""What the largest attention logit of a row is called, without a leading folder."""


@rule(presets=("qk-clip",), since="0.1.0")
def qk_clip(run: Run, *, limit: float = 100.0, join: int = 10) -> Iterator[Finding]:
    """Megatron-LM would have clipped queries and keys: attention logit above 100.

    ## What it finds
    Rows whose largest attention logit, in a column that is called so, is above ``limit``.

    ## Why it matters
    A softmax over such logits chooses one token, and its gradient vanishes.

    ## What to do
    There the weights of queries and keys are scaled down for that head.

    ## When it errs
    Whether the logits are scaled by the root of the head size before they are logged differs.

    ## Settings
    limit: Largest attention logit.
    join: Rows between two that fire which still belong to one finding.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_attention.jsonl --rule qk-clip --format brief
    warning   qk-clip              attempt 0  step 814..1000  max_attention_logit 166, expected 100

    ## Sources
    - NVIDIA/Megatron-LM: ``qk_clip_threshold`` 100, after Kimi K2.
    """
    names = tuple(
        m for m in run.measurements if run.has(m) and normalise(m).rpartition("/")[2] in NAMES
    )
    if not names:
        raise CannotLook(f"the log has no {NAMES[0]}")

    def judge(x: np.ndarray) -> Judged:
        with np.errstate(invalid="ignore"):
            return Judged(x > limit, np.full(len(x), limit))

    yield from published(run, names, judge, least=1, join=join)
