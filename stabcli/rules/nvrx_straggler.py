"""Rule ``nvrx-straggler``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.published import Judged
from stabcli.rules import CannotLook, Finding, published, rule
from stabcli.run import Run

METRICS = ("tokens_per_second", "tokens_per_second_per_gpu", "step_seconds")
"""What may tell the speed, the best first."""


@rule(presets=("nvrx-straggler",), since="0.1.0")
def nvrx_straggler(run: Run, *, share: float = 0.75, join: int = 10) -> Iterator[Finding]:
    """NVIDIA's resiliency extension would call it a straggler: below three quarters of the best speed.

    ## What it finds
    Rows whose speed is below ``share`` of the best that the run had before. The extension scores
    every rank by its own best time; a log of the whole run has the speed that the slowest rank
    allows.

    ## Why it matters
    One slow rank sets the pace of all.

    ## What to do
    There the rank is reported; compare the step times of ranks, and drain the node.

    ## When it errs
    The best of noisy speeds is high: the longer the run, the more rows are below.

    ## Settings
    share: Share of the best speed.
    join: Rows between two that fire which still belong to one finding.

    ## Example
    $ stabcli scan sample_logs/csv/slow_stretch.csv --rule nvrx-straggler --format brief
    warning   nvrx-straggler       attempt 0  step 500..650  tokens_per_second 36,563, expected 50,945

    ## Sources
    - NVIDIA/nvidia-resiliency-ext, straggler/reporting.py at d8686d9: individual performance
      score.
    """
    metric = next((m for m in METRICS if run.has(m)), None)
    if metric is None:
        raise CannotLook("the log has no tokens_per_second and no step_seconds")

    def judge(x: np.ndarray) -> Judged:
        with np.errstate(invalid="ignore", divide="ignore"):
            good = np.isfinite(x) & (x > 0)
            speed = np.where(good, 1 / x if metric == "step_seconds" else x, np.nan)
            best = np.fmax.accumulate(speed)
            limit = 1 / (share * best) if metric == "step_seconds" else share * best
            return Judged(speed < share * best, limit)

    yield from published(run, (metric,), judge, least=2, join=join, falls=metric != "step_seconds")
