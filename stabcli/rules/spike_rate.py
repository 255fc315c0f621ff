"""Rule ``spike-rate``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from stabcli.rules import STATISTIC, CannotLook, Finding, finding, rule
from stabcli.run import Run
from stabcli.series import signals, warmup_end
from stabcli.units import Step

OLMO2 = (1000, 7.0)
"""Rows and standard deviations of OLMo 2's count of spikes."""


@rule(needs=("loss",), presets=("default",), since="0.1.0", judges=False)
def spike_rate(
    run: Run, *, window: int = 128, sigmas: float = 6.0, rate: float = 0.001, least: int = 3
) -> Iterator[Finding]:
    """Spikes of loss or gradient norm are frequent; a statistic, not an alarm.

    ## What it finds
    The share of rows after warm-up whose loss, or gradient norm, is more than ``sigmas`` plain
    standard deviations above the mean of the ``window`` rows before: one notice for each of the
    two where it is above ``rate`` and they are ``least`` events, ten rows apart, or more. Its tags
    give that share, and where an attempt is long enough, that of OLMo 2 (``olmo2-rate``): more than
    7 deviations above the mean of 1,000 rows.

    ## Why it matters
    Every spike may heal and the run still be on its way to one that does not: a rate that grows
    is how OLMo's authors compare recipes.

    ## What to do
    Compare with other runs of the recipe. Lower the learning rate, add QK-norm or z-loss, or
    filter repeated n-grams from the data.

    ## When it errs
    Mean and deviation hold the spikes before: of several in one window only the first counts.
    Uneven batches have a high rate by nature: of 38 public runs that are long enough 9 have one.
    It is never more than a notice for that reason.

    ## Settings
    window: Rows before that give mean and deviation.
    sigmas: Standard deviations above the mean.
    rate: Share of rows for a notice.
    least: Events for a notice.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_spikes.jsonl --rule spike-rate --format brief
    notice    spike-rate           attempt 0  step 300..1300  loss 5.324
    notice    spike-rate           attempt 0  step 300..1300  grad_norm 2.333

    ## Sources
    - SpikeScore, 128 steps and 6 standard deviations: StabilityMonitorCallback of OLMo-core;
      1,000 and 7: the paper of OLMo 2, as others cite it.
    """
    looked = False
    warm = warmup_end(run)
    for metric in ("loss", "grad_norm"):
        if not run.has(metric):
            continue
        ours = _rated(run, metric, window, sigmas, warm)
        if ours is None:
            continue
        looked = True
        at, tops, total = ours
        if total and len(at) >= rate * total and _events(at) >= least:
            share = 100 * len(at) / total
            peak = int(np.argmax(tops))
            tags: tuple[str, ...] = (STATISTIC, f"rate-{share:.2g}%")
            if (theirs := _rated(run, metric, *OLMO2, warm)) is not None and theirs[2]:
                tags += (f"olmo2-rate-{100 * len(theirs[0]) / theirs[2]:.2g}%",)
            yield finding(
                run,
                metric=metric,
                rows=(int(at[0]), int(at[-1])),
                peak=int(at[peak]),
                severity="notice",
                value=float(tops[peak]),
                score=share / 100 / rate,
                tags=tags,
            )
    if not looked:
        raise CannotLook(f"no attempt has more than {window} rows")


def _rated(
    run: Run, metric: str, window: int, sigmas: float, warm: Step
) -> tuple[np.ndarray, np.ndarray, int] | None:
    """Return the rows that stand out, their values, and how many were looked at."""
    rows: list[np.ndarray] = []
    values: list[np.ndarray] = []
    total = 0
    for raw in signals(run, metric):
        signal = raw.finite()
        if len(signal) <= window:
            continue
        x = pl.Series(signal.values)
        mean = x.rolling_mean(window).to_numpy()[:-1]
        sigma = x.rolling_std(window, ddof=0).to_numpy()[:-1]
        with np.errstate(invalid="ignore"):
            high = (sigma > 1e-10) & (signal.values[1:] > mean + sigmas * sigma)
        high &= signal.steps[1:] > warm
        total += int((signal.steps[window:] > warm).sum())
        rows.append(signal.rows[1:][high])
        values.append(signal.values[1:][high])
    if not rows:
        return None
    return np.concatenate(rows), np.concatenate(values), total


def _events(at: np.ndarray) -> int:
    """Count the events among rows: those ten rows apart from the one before."""
    return 1 + int((np.diff(at) > 10).sum()) if len(at) else 0
