"""Rule ``smdebug-step-outlier``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.published import Judged
from stabcli.rules import Finding, published, rule
from stabcli.run import Run


@rule(needs=("step_seconds",), presets=("smdebug",), since="0.1.0")
def smdebug_step_outlier(
    run: Run, *, sigmas: float = 5.0, ignored: int = 10, join: int = 10
) -> Iterator[Finding]:
    """SageMaker Debugger would have called it a step outlier: 5 deviations above the mean.

    ## What it finds
    Rows whose step took longer than the mean and ``sigmas`` deviations of all steps but the first
    ``ignored``.

    ## Why it matters
    Steps that stand out are waits: for data, for storage, for another rank.

    ## What to do
    There it is a line of a report.

    ## When it errs
    Outliers are part of mean and deviation: where there are many, none stands out.

    ## Settings
    sigmas: Deviations above the mean.
    ignored: Rows at the start that are left out.
    join: Rows between two that fire which still belong to one finding.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_guards.jsonl --rule smdebug-step-outlier --format brief
    warning   smdebug-step-outlier attempt 0  step 850  step_seconds 9, expected 3.185

    ## Sources
    - awsdocs/amazon-sagemaker-developer-guide, doc_source/debugger-built-in-rules.md at a869fa5:
      StepOutlier, stddev 5, ignored outliers 10.
    """

    def judge(x: np.ndarray) -> Judged:
        known = x[ignored:][np.isfinite(x[ignored:])]
        limit = float(known.mean() + sigmas * known.std()) if len(known) else float("nan")
        late = np.arange(len(x)) >= ignored
        with np.errstate(invalid="ignore"):
            return Judged(late & (x > limit), np.full(len(x), limit))

    yield from published(run, ("step_seconds",), judge, least=ignored + 2, join=join)
