"""Rule ``smdebug-overfit``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from stabcli.published import Judged
from stabcli.rules import Finding, published, rule
from stabcli.run import Run


@rule(needs=("loss", "val_loss"), presets=("smdebug",), since="0.1.0")
def smdebug_overfit(run: Run, *, ratio: float = 0.1, join: int = 1) -> Iterator[Finding]:
    """SageMaker Debugger would have called it overfitting: validation loss 10 % above training loss.

    ## What it finds
    Evaluations more than ``ratio`` of the training loss of the same row, or the last before it,
    above that.

    ## Why it matters
    A gap that opens is learnt by heart.

    ## What to do
    There the job may be stopped by an action of the user.

    ## When it errs
    A single noisy evaluation is enough, and a held-out set that is harder by nature fires from the
    start.

    ## Settings
    ratio: Gap relative to the training loss.
    join: Evaluations between two that fire which still belong to one finding.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_overfit.jsonl --rule smdebug-overfit --format brief
    warning   smdebug-overfit      attempt 0  step 700..1200  val_loss 2.896, expected 2.245

    ## Sources
    - awsdocs/amazon-sagemaker-developer-guide, doc_source/debugger-built-in-rules.md at a869fa5:
      Overfit, ratio_threshold 0.1, patience 1.
    """
    columns = run.frame.select("attempt", "loss", "val_loss")
    before = columns.select(pl.col("loss").forward_fill().over("attempt"))["loss"]
    train = before.cast(pl.Float64).fill_null(np.nan).to_numpy()
    rows = iter(np.split(train[run.logged("val_loss")], _starts(run)))

    def judge(x: np.ndarray) -> Judged:
        limit = (1 + ratio) * next(rows)
        with np.errstate(invalid="ignore"):
            return Judged((x > limit) & (limit > 0), limit)

    yield from published(run, ("val_loss",), judge, least=1, join=join)


def _starts(run: Run) -> np.ndarray:
    """Return at which evaluation each attempt but the first begins."""
    attempts = run.frame["attempt"].to_numpy()[run.logged("val_loss")]
    return np.asarray(np.flatnonzero(np.diff(attempts)) + 1)
