"""Rule ``goodput``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.published import Judged
from stabcli.rules import Finding, published, rule
from stabcli.run import Run


@rule(presets=("goodput",), since="0.1.0", judges=False)
def goodput(run: Run, *, deviations: float = 3.0, least_seconds: float = 1.0) -> Iterator[Finding]:
    """ml-goodput-measurement would count the step as deviating: beyond median and 3 deviations.

    ## What it finds
    The share of rows whose step took longer than the median and ``deviations`` median absolute
    deviations, and at least ``least_seconds``: one notice for the run.

    ## Why it matters
    What lies beyond is what its badput is made of; the mean of what lies within is its ideal step.

    ## What to do
    See `stabcli cost-report`, which prices every row by the run's own usual pace.

    ## When it errs
    Half of all regular steps lie above the median, so that with little spread many are counted for
    next to nothing. Steps of less than a second are never counted.

    ## Settings
    deviations: Median absolute deviations above the median.
    least_seconds: Least time of a step that is counted.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_guards.jsonl --rule goodput --format brief
    notice    goodput              attempt 0  step 34..887  step_seconds 9

    ## Sources
    - AI-Hypercomputer/ml-goodput-measurement, src/goodput_utils.py at 57092cf: ideal step time.
    """

    def judge(x: np.ndarray) -> Judged:
        known = x[np.isfinite(x)]
        middle = float(np.median(known)) if len(known) else float("nan")
        limit = (
            middle + deviations * float(np.median(np.abs(known - middle))) if len(known) else middle
        )
        limit = max(limit, least_seconds)
        with np.errstate(invalid="ignore"):
            return Judged(x > limit, np.full(len(x), limit))

    yield from published(run, ("step_seconds",), judge, least=3, statistic=True)
