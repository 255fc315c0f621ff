"""Rule ``nonfinite``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.rules import CannotLook, Finding, Severity, finding, rule
from stabcli.run import LeftOut, Run
from stabcli.series import Signal, signals, stretches

TRAINED_ON = ("loss", "objective_loss", "loss_max")
"""Metrics whose NaN means that the weights are, or are about to be, NaN."""
MODEL = ("val_loss", "aux_loss", "z_loss", "entropy", "token_entropy", "kl")
"""Other metrics computed from the model itself: NaN there is an error."""

SCATTERED = "scattered"
"""Tag of a finding whose non-finite values lie all over it."""


@rule(presets=("default",), since="0.1.0", judges=False)
def nonfinite(run: Run, *, skips: int = 2, join: int = 10, many: int = 20) -> Iterator[Finding]:
    """A logged value is NaN or infinite.

    ## What it finds
    Rows in which any logged column is NaN or infinite. A loss that is not finite is critical. A
    gradient norm that is not finite for at most ``skips`` rows in a row, while the loss stays
    finite, is a warning: a loss scaler skips such steps. Longer it is an error, and critical
    where it never ends. Validation loss, entropy and other values of the model are errors;
    any other column is a warning.

    ## Why it matters
    Once a NaN has reached the weights every later step is wasted, and every checkpoint saved
    since is void.

    ## What to do
    Stop at once. Roll back to the newest checkpoint before the first such row, skip the batches
    around it, and replay that batch to see whether the data or the number format did it.

    ## When it errs
    Columns that are undefined by nature (a standard deviation of one value, an explained
    variance of a constant) are NaN without harm; they are warnings only. A trainer that hides
    its NaN is the business of ``hidden-nonfinite``.

    ## Settings
    skips: Rows in a row that a loss scaler may skip with a non-finite gradient norm.
    join: Rows between two non-finite values that still belong to one finding.
    many: Stretches of one column beyond which they are one finding, tagged as scattered.

    ## Example
    $ stabcli scan sample_logs/csv/diverged_metrics.csv --rule nonfinite --format brief
    critical  nonfinite            attempt 0  step 94..299  loss NaN
    critical  nonfinite            attempt 0  step 94..299  grad_norm NaN
    error     nonfinite            attempt 0  step 99..299  val_loss NaN

    ## Sources
    - Any NaN or infinity stops the run: torchtitan, OLMo-core, composer's NaNMonitor do the same
      while training.
    - Loss scaling skips steps with non-finite gradients: Micikevicius et al. (2018), Mixed
      Precision Training, section 3.2.
    """
    metrics = [m for m in run.measurements if run.has(m)]
    if not metrics and not run.left_out:
        raise CannotLook("nothing was measured")
    for metric in metrics:
        if run.frame[metric].is_finite().all():
            continue
        for signal in signals(run, metric):
            bad = ~np.isfinite(signal.values)
            if metric == "loss" and "hidden" in run.frame.columns:
                bad &= ~run.frame["hidden"].to_numpy()[signal.rows]
            spans = stretches(bad, gap=join)
            scattered = len(spans) > many
            if scattered:
                spans = [(spans[0][0], spans[-1][1])]
            for first, last in spans:
                yield finding(
                    run,
                    metric=metric,
                    rows=(int(signal.rows[first]), int(signal.rows[last])),
                    peak=int(signal.rows[first]),
                    severity=_severity(signal, bad, first, last, skips),
                    value=float(signal.values[first]),
                    tags=(SCATTERED, f"{int(bad.sum())}-rows") if scattered else (),
                )
    yield from (found for column in run.left_out for found in _searched(column))


def _severity(signal: Signal, bad: np.ndarray, first: int, last: int, skips: int) -> Severity:
    if signal.metric in TRAINED_ON:
        return "critical"
    if signal.metric in MODEL:
        return "error"
    if signal.metric != "grad_norm":
        return "warning"
    longest = max(b - a + 1 for a, b in stretches(bad[first : last + 1]))
    if longest <= skips:
        return "warning"
    return "critical" if last == len(signal) - 1 else "error"


def _searched(column: LeftOut) -> Iterator[Finding]:
    """Tell of a column that was too wide to keep but was searched while reading."""
    if column.first is None or column.last is None:
        return
    same = column.first[0] == column.last[0]
    yield Finding(
        metric=column.name,
        severity="warning",
        attempt=column.first[0],
        first=column.first[1],
        last=column.last[1] if same else column.first[1],
        peak=column.first[1],
        value=float("nan"),
        expected=None,
        score=None,
    )
