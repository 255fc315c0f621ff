"""Rule ``wandb-watcher``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from stabcli.published import Detector, Judged
from stabcli.rules import Finding, published, rule
from stabcli.run import Run
from stabcli.series import signals


@rule(needs=("loss",), presets=("wandb-watcher",), since="0.1.0")
def wandb_watcher(
    run: Run,
    *,
    window: int = 100,
    high: float = 8.0,
    both: float = 6.0,
    clipped: float = 0.05,
    slow: float = 1.25,
    join: int = 10,
) -> Iterator[Finding]:
    """A hand-written watcher would have called: loss at 8 deviations, or loss and norm at 6 each.

    ## What it finds
    Rows whose log loss is ``high`` robust deviations from the median of the ``window`` before,
    either way, and rows where loss and gradient norm are both ``both`` deviations above theirs.
    More than ``clipped`` of the last 300 gradient norms above the clip, where that is known, and a
    median of the last 30 step times ``slow`` times that of the run.

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
    clipped: Share of 300 rows whose gradients were clipped.
    slow: Median of 30 step times as a multiple of that of the run.
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

    def often(x: np.ndarray) -> Judged:
        share = pl.Series(x > (clip or np.inf), dtype=pl.Float64).rolling_mean(300)
        return Judged(share.fill_null(0.0).to_numpy() > clipped, np.full(len(x), clip or np.nan))

    def late(x: np.ndarray) -> Judged:
        limit = np.full(len(x), slow * float(np.nanmedian(x)))
        middle = pl.Series(x).fill_nan(None).rolling_median(30).fill_null(np.nan).to_numpy()
        with np.errstate(invalid="ignore"):
            return Judged(middle > limit, limit)

    yield from published(run, ("loss",), judge, least=window + 1, join=join)
    clip = run.fact("grad_clip")
    if clip and run.has("grad_norm"):
        yield from _if_long(run, "grad_norm", often, 300, join)
    yield from _if_long(run, "step_seconds", late, 30, join)
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


def _if_long(run: Run, metric: str, judge: Detector, least: int, join: int) -> Iterator[Finding]:
    """Yield what is told of a metric beside the loss, where an attempt has enough of it."""
    if run.has(metric) and any(len(s) >= least for s in signals(run, metric)):
        yield from published(run, (metric,), judge, least=least, join=join)
