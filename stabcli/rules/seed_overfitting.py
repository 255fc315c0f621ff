"""Rule ``seed-overfitting``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
from numpy.lib.stride_tricks import sliding_window_view

from stabcli.errors import SettingError
from stabcli.rules import CannotLook, Finding, finding, rule
from stabcli.run import Run
from stabcli.series import Signal, signals, slopes, stretches


@rule(needs=("loss", "val_loss"), presets=("seed",), since="0.1.0")
def seed_overfitting(run: Run, *, evaluations: int = 5, join: int = 1) -> Iterator[Finding]:
    """Training loss falls while validation loss rises.

    ## What it finds
    Evaluations at which, over the last ``evaluations`` of them, the Theil-Sen slope of the
    validation loss is above 0 and that of the training loss below 0. The training loss at an
    evaluation is the median of the losses logged since the evaluation before it.

    ## Why it matters
    What the model learns no longer helps on data it has not seen: overfitting, or, where a
    reward is trained on, reward hacking.

    ## What to do
    Go back to the checkpoint with the lowest validation loss; stop early, add data, or audit
    samples.

    ## When it errs
    Any rise counts, however small: while a validation loss stands on its floor, half of all
    windows rise by noise. Fine-tuning for several epochs does this by design. With fewer than
    ``evaluations`` evaluations nothing is known. ``overfitting`` of the default preset also
    asks for a rise of 1 %.

    ## Settings
    evaluations: Evaluations over which both slopes are taken.
    join: Evaluations between two that fire which still belong to one finding.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_overfit.jsonl --rule seed-overfitting --format brief
    warning   seed-overfitting     attempt 0  step 800..1200  val_loss 2.896, expected 2.548

    ## Sources
    - Training loss down and validation loss up: the field's rule of thumb.
    - The slope: Sen (1968), Estimates of the regression coefficient based on Kendall's tau.
    """
    if evaluations < 2:
        raise SettingError(
            f"seed-overfitting.evaluations: {evaluations} evaluations have no slope: give 2 or more"
        )
    losses = {s.attempt: s.finite() for s in signals(run, "loss")}
    looked = False
    steps, held_out, trained = np.empty(0, np.int64), np.empty(0), np.empty(0)
    for raw in signals(run, "val_loss"):
        signal = raw.finite()
        kept = int(np.searchsorted(steps, raw.steps[0]))
        steps = np.concatenate([steps[:kept], signal.steps])
        held_out = np.concatenate([held_out[:kept], signal.values])
        trained = np.concatenate([trained[:kept], _trained(losses.get(raw.attempt), signal)])
        if len(steps) < evaluations:
            continue
        down = np.full(len(steps), np.nan)
        down[evaluations - 1 :] = slopes(sliding_window_view(trained, evaluations))
        up = np.full(len(steps), np.nan)
        up[evaluations - 1 :] = slopes(sliding_window_view(held_out, evaluations))
        looked = looked or bool((~np.isnan(down[kept:])).any())
        fired = ((down < 0) & (up > 0))[kept:]
        for first, last in stretches(fired, gap=join):
            peak = first + int(np.argmax(signal.values[first : last + 1]))
            start = max(0, kept + first - evaluations + 1)
            yield finding(
                run,
                metric="val_loss",
                rows=(int(signal.rows[first]), int(signal.rows[last])),
                peak=int(signal.rows[peak]),
                severity="warning",
                value=signal.values[peak],
                expected=held_out[start : kept + first + 1].min(),
            )
    if not looked:
        raise CannotLook(f"fewer than {evaluations} evaluations with training losses between them")


def _trained(loss: Signal | None, evaluations: Signal) -> np.ndarray:
    """Return for each evaluation the median training loss since the one before; NaN for none."""
    medians = np.full(len(evaluations), np.nan)
    if loss is None:
        return medians
    at = np.searchsorted(evaluations.rows, loss.rows)
    table = pl.DataFrame({"at": at, "loss": loss.values}).filter(pl.col("at") < len(medians))
    found = table.group_by("at").agg(pl.col("loss").median())
    medians[found["at"].to_numpy()] = found["loss"].to_numpy()
    return medians
