"""Rule ``seed-throughput-drop``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from stabcli.errors import SettingError
from stabcli.rules import CannotLook, Finding, finding, rule
from stabcli.run import Run
from stabcli.series import ROUNDING, signals, stretches

METRICS = ("tokens_per_second", "tokens_per_second_per_gpu", "step_seconds")
"""What throughput is taken from, the first that an attempt logged."""


@rule(presets=("seed",), since="0.1.0")
def seed_throughput_drop(
    run: Run, *, drop: float = 0.30, window: int = 50, minimum: int = 20, join: int = 10
) -> Iterator[Finding]:
    """Throughput falls by more than 30 %.

    ## What it finds
    Rows whose tokens per second are below ``1 - drop`` of the median of the ``window`` rows
    before them; the rows at the start, with less than ``minimum`` before them, are not compared.
    An attempt that logged no tokens per second is judged by the throughput of one GPU, else by
    the inverse of the step time, and the finding names the one that was used.

    ## Why it matters
    The same tokens now cost more GPU time.

    ## What to do
    Check what wrote a checkpoint at that time, and the network.

    ## When it errs
    Rows that hold an evaluation or a checkpoint are slow and fire one by one. A sick node that
    costs 6 % for days never does. After ``window`` slow rows the drop is the new normal and the
    rule falls silent. ``throughput-drop`` of the default preset finds lasting drops from 5 %
    on, and leaves single slow rows to the costs.

    ## Settings
    drop: Relative fall below the median that must be exceeded.
    window: Rows before, over which the median is taken.
    minimum: Rows of history without which nothing is compared.
    join: Rows between two that fire which still belong to one finding.

    ## Example
    $ stabcli scan sample_logs/csv/slow_stretch.csv --rule seed-throughput-drop --format brief
    warning   seed-throughput-drop attempt 0  step 500..524  tokens_per_second 36,823, expected 62,787

    ## Sources
    - A fall of more than 30 %, check checkpoint writing and the network: the field's rule of
      thumb.
    - 6 % for one sick node: the chronicles of BLOOM 176B, 149 to 140 TFLOP/s.
    """
    if not 1 <= minimum <= window:
        raise SettingError(
            "seed-throughput-drop: window and minimum count rows: give 1 or more, and a minimum"
            " that is not above the window"
        )
    metrics = [m for m in METRICS if run.has(m)]
    if not metrics:
        raise CannotLook(f"the log has no {', '.join(METRICS)}")
    compared = False
    seen: set[int] = set()
    for metric in metrics:
        for raw in signals(run, metric, history=window):
            if raw.attempt in seen:
                continue
            seen.add(raw.attempt)
            signal = raw.finite()
            speed = np.concatenate([signal.inherited, signal.values])
            if metric == "step_seconds":
                speed = 1 / np.where(speed > 0, speed, np.nan)
            median = _median_before(speed, window, minimum)[len(signal.inherited) :]
            speed = speed[len(signal.inherited) :]
            compared = compared or bool((np.isfinite(median) & np.isfinite(speed)).any())
            share = 1 - drop
            slow = speed < share * median * (1 - ROUNDING)
            for first, last in stretches(slow, gap=join):
                inside = np.flatnonzero(slow[first : last + 1]) + first
                peak = int(inside[np.argmin(speed[inside] / median[inside])])
                now, usual = float(speed[peak]), float(median[peak])
                seconds = metric == "step_seconds"
                yield finding(
                    run,
                    metric=metric,
                    rows=(int(signal.rows[first]), int(signal.rows[last])),
                    peak=int(signal.rows[peak]),
                    severity="warning",
                    value=1 / now if seconds else now,
                    expected=1 / usual if seconds else usual,
                    score=share * usual / now if now > 0 else float("inf"),
                )
    if not compared:
        raise CannotLook(f"fewer than {minimum + 1} rows of throughput in every attempt")


def _median_before(values: np.ndarray, window: int, minimum: int) -> np.ndarray:
    """Return for each value the median of up to ``window`` known ones before it, else NaN."""
    known = np.flatnonzero(np.isfinite(values))
    rolled = pl.Series(values[known], dtype=pl.Float64).rolling_median(window, min_samples=minimum)
    median = np.full(len(values), np.nan)
    median[known] = rolled.shift(1).fill_null(np.nan).to_numpy()
    return median
