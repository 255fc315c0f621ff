"""Rule ``smdebug-loss-not-decreasing``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.published import Judged
from stabcli.rules import Finding, published, rule
from stabcli.run import Run


@rule(needs=("loss",), presets=("smdebug",), since="0.1.0")
def smdebug_loss_not_decreasing(
    run: Run, *, rows: int = 10, percent: float = 0.1, join: int = 10
) -> Iterator[Finding]:
    """SageMaker Debugger would have called the loss not decreasing: less than 0.1 % in 10 rows.

    ## What it finds
    Every ``rows``-th row whose loss is not at least ``percent`` per cent below that of ``rows``
    rows before.

    ## Why it matters
    A loss that no longer falls is a run that no longer learns.

    ## What to do
    There the job may be stopped by an action of the user.

    ## When it errs
    It knows no noise: late in any run every second comparison fires.

    ## Settings
    rows: Rows between two that are compared.
    percent: Least fall in per cent.
    join: Rows between two that fire which still belong to one finding.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_broken.jsonl --rule smdebug-loss-not-decreasing --format brief
    notice    smdebug-loss-not-decreasing attempt 0  step 40..300  loss 10.86, expected 10.82
    notice    smdebug-loss-not-decreasing attempt 0  step 330..370  loss 10.85, expected 10.82
    notice    smdebug-loss-not-decreasing attempt 0  step 400  loss 10.83, expected 10.8

    ## Sources
    - awsdocs/amazon-sagemaker-developer-guide, doc_source/debugger-built-in-rules.md at a869fa5:
      LossNotDecreasing, num_steps 10, diff_percent 0.1.
    """

    def judge(x: np.ndarray) -> Judged:
        limit = np.full(len(x), np.nan)
        limit[rows:] = x[:-rows] - percent / 100 * np.abs(x[:-rows])
        with np.errstate(invalid="ignore"):
            fired = (x > limit) & (np.arange(len(x)) % rows == rows - 1)
        return Judged(fired, limit)

    yield from published(run, ("loss",), judge, least=2 * rows, join=join + rows, severity="notice")
