"""Rule ``wandb-watcher``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from stabcli.published import Judged
from stabcli.rules import Finding, published, rule
from stabcli.run import Run


@rule(needs=("loss",), presets=("wandb-watcher",), since="0.1.0")
def wandb_watcher(
    run: Run, *, window: int = 100, high: float = 8.0, both: float = 6.0, join: int = 10
) -> Iterator[Finding]:
    """A hand-written watcher would have called: loss at 8 deviations, or loss and norm at 6 each.

    ## What it finds
    Rows whose log loss is ``high`` robust deviations from the median of the ``window`` before,
    either way, and rows where loss and gradient norm are both ``both`` deviations above theirs.
    Its lines on clipping and on slow steps are not told here.

    ## Why it matters
    It is what people write for themselves, and the better of such.

    ## What to do
    There a line is printed.

    ## When it errs
    Both ways and without a floor: losses of few digits have no deviation, so that it fired 59
    times in 32 of 81 healthy runs.

    ## Settings
    window: Rows before that give median and deviation.
    high: Deviations of the loss alone.
    both: Deviations of loss and gradient norm together.
    join: Rows between two that fire which still belong to one finding.

    ## Example
    $ stabcli scan sample_logs/jsonl/bad_batch.jsonl --rule wandb-watcher --format brief
    warning   wandb-watcher        attempt 0  step 600..603  loss 9.325, expected 1.825

    ## Sources
    - A script found in public training code, calibrated by its author on six runs of 130M to 1.2B
      parameters.
    """

    def away(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        u = np.log(np.maximum(np.where(np.isfinite(x), x, np.nan), 1e-12))
        before = pl.Series(u).fill_nan(None).shift(1)
        middle = before.rolling_median(window, min_samples=window).fill_null(np.nan).to_numpy()
        off = pl.Series(np.abs(u - middle)).fill_nan(None).shift(1)
        spread = off.rolling_median(window, min_samples=window // 2).fill_null(np.nan).to_numpy()
        with np.errstate(invalid="ignore", divide="ignore"):
            return 0.6745 * (u - middle) / spread, np.exp(middle)

    def judge(x: np.ndarray) -> Judged:
        z, level = away(x)
        with np.errstate(invalid="ignore"):
            return Judged(np.abs(z) > high, level)

    yield from published(run, ("loss",), judge, least=window + 1, join=join)
    if not run.has("grad_norm"):
        return
    norm, _ = away(run.array("grad_norm"))
    loss, level = away(run.array("loss"))
    rows = np.flatnonzero(run.logged("loss"))
    fired = ((norm > both) & (loss > both) & ~(np.abs(loss) > high))[rows]
    starts = np.flatnonzero(np.diff(run.frame["attempt"].to_numpy()[rows])) + 1
    parts = iter(zip(np.split(fired, starts), np.split(level[rows], starts), strict=True))
    yield from published(
        run, ("loss",), lambda _: Judged(*next(parts)), least=0, join=join, severity="error"
    )
