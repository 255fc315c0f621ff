"""Rule ``smdebug-overtraining``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.published import Judged, in_a_row
from stabcli.rules import Finding, published, rule
from stabcli.run import Run


@rule(needs=("val_loss",), presets=("smdebug",), since="0.1.0")
def smdebug_overtraining(run: Run, *, patience: int = 10, delta: float = 0.01) -> Iterator[Finding]:
    """SageMaker Debugger would have called it overtraining: ten evaluations without a gain of 0.01.

    ## What it finds
    The ``patience``-th evaluation in a row that is not at least ``delta`` below the best before.

    ## Why it matters
    What is trained after that is paid for and not needed.

    ## What to do
    There the job may be stopped by an action of the user.

    ## When it errs
    At the end of a long run gains between evaluations are below 0.01 though they add up.

    ## Settings
    patience: Evaluations in a row without a gain.
    delta: Least gain in the unit of the loss.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_overfit.jsonl --rule smdebug-overtraining --format brief
    warning   smdebug-overtraining attempt 0  step 1100..1200  val_loss 2.896, expected 2.548

    ## Sources
    - awsdocs/amazon-sagemaker-developer-guide, doc_source/debugger-built-in-rules.md at a869fa5:
      Overtraining, patience_validation 10, delta 0.01.
    """

    def judge(x: np.ndarray) -> Judged:
        best = np.fmin.accumulate(x)
        before = np.concatenate([[np.inf], best[:-1]])
        with np.errstate(invalid="ignore"):
            idle = ~(x <= before - delta)
        idle[0] = False
        return Judged(in_a_row(idle) >= patience, before)

    yield from published(run, ("val_loss",), judge, least=patience + 1, join=patience)
