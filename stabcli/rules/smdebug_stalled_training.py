"""Rule ``smdebug-stalled-training``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.published import Judged
from stabcli.rules import CannotLook, Finding, published, rule
from stabcli.run import Run


@rule(presets=("smdebug",), since="0.1.0")
def smdebug_stalled_training(run: Run, *, seconds: float = 1800.0) -> Iterator[Finding]:
    """SageMaker Debugger would have called it stalled: 1,800 seconds without a step.

    ## What it finds
    Rows more than ``seconds`` of wall clock, or of elapsed time, after the row before, in one
    attempt.

    ## Why it matters
    A hung job is paid for like any other.

    ## What to do
    There the job may be stopped by an action of the user.

    ## When it errs
    A log with a row an hour is stalled all the time.

    ## Settings
    seconds: Time without a row.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_standstill.jsonl --rule smdebug-stalled-training --format brief
    error     smdebug-stalled-training attempt 0  step 401  wall_time 18,002, expected 1,800

    ## Sources
    - awsdocs/amazon-sagemaker-developer-guide, doc_source/debugger-built-in-rules.md at a869fa5:
      StalledTrainingRule, threshold 1800.
    """
    metric = next((m for m in ("wall_time", "elapsed_seconds") if run.has(m)), None)
    if metric is None:
        raise CannotLook("the log has no wall_time and no elapsed_seconds")

    def judge(x: np.ndarray) -> Judged:
        limit = np.concatenate([[np.nan], x[:-1] + seconds])
        with np.errstate(invalid="ignore"):
            return Judged(x > limit, limit)

    yield from published(run, (metric,), judge, least=2, join=0, severity="error", gaps=True)
