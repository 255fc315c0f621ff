"""Rule ``attention-logits``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.levels import trailing
from stabcli.metrics import normalise
from stabcli.rules import CannotLook, Finding, Severity, finding, rule
from stabcli.run import Run
from stabcli.series import signals, stretches

NAMES = ("max_attention_logit", "max_attention_logits", "max_attn_logit", "attn_logits_max")
"""What the largest attention logit of a row is called, without a leading folder."""


@rule(presets=("default",), since="0.1.0")
def attention_logits(
    run: Run, *, limit: float = 100.0, rows: int = 3, growth: float = 2.0, share: float = 0.05
) -> Iterator[Finding]:
    """Attention logits grow beyond what softmax can weigh.

    ## What it finds
    In a column named like ``max_attention_logit``: ``rows`` or more rows in a row above
    ``limit``, a warning; and a median of 16 rows that grew by ``growth`` over ``share`` of the
    run, above a quarter of ``limit``, a notice.

    ## Why it matters
    A logit of 100 makes the softmax a choice of one token: entropy of attention collapses, its
    gradient vanishes, and the loss diverges some hundred steps later.

    ## What to do
    Clip the logits (QK-clip) or normalise queries and keys (QK-norm); lower the learning rate
    until then.

    ## When it errs
    Logs differ in whether the scale 1/sqrt(d) is in the logits; where it is not, set ``limit`` to
    100 sqrt(d).

    ## Settings
    limit: Largest logit that is healthy.
    rows: Rows in a row above it.
    growth: Growth of the median for a notice.
    share: Share of the run over which it grew.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_attention.jsonl --rule attention-logits --format brief
    warning   attention-logits     attempt 0  step 823..1000  max_attention_logit 166, expected 100

    ## Sources
    - The limit of 100: ``qk_clip_threshold`` of Megatron-LM, after Kimi K2's QK-clip.
    """
    names = [m for m in run.measurements if run.has(m) and normalise(m).rpartition("/")[2] in NAMES]
    if not names:
        raise CannotLook(f"the log has no {NAMES[0]}")
    for name in names:
        for raw in signals(run, name):
            signal = raw.finite()
            x = signal.values
            told = np.zeros(len(x), bool)
            for first, last in stretches(x > limit, gap=2 * rows):
                if int((x[first : last + 1] > limit).sum()) >= rows:
                    told[first:] = True
                    yield _finding(run, name, signal.rows, x, (first, last), limit, "warning")
            level = trailing(x, 16)
            back = max(16, int(share * len(x)))
            grown = np.zeros(len(x), bool)
            with np.errstate(invalid="ignore"):
                grown[back:] = (level[back:] >= growth * level[:-back]) & (level[back:] > limit / 4)
            for first, last in stretches(grown & ~told, gap=back)[:1]:
                base = float(level[first - back])
                yield _finding(run, name, signal.rows, x, (first, last), base, "notice")


def _finding(
    run: Run,
    name: str,
    rows: np.ndarray,
    x: np.ndarray,
    span: tuple[int, int],
    expected: float,
    severity: Severity,
) -> Finding:
    first, last = span
    peak = first + int(np.argmax(x[first : last + 1]))
    return finding(
        run,
        metric=name,
        rows=(int(rows[first]), int(rows[last])),
        peak=int(rows[peak]),
        severity=severity,
        value=float(x[peak]),
        expected=expected,
        score=float(x[peak]) / expected,
    )
