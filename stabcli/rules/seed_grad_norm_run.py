"""Rule ``seed-grad-norm-run``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.errors import SettingError
from stabcli.rules import CannotLook, Finding, finding, rule
from stabcli.run import Run
from stabcli.series import after_clipping, signals, stretches


@rule(needs=("grad_norm",), presets=("seed",), since="0.1.0")
def seed_grad_norm_run(
    run: Run, *, threshold: float = 10.0, rows: int = 3, join: int = 10
) -> Iterator[Finding]:
    """Gradient norm is above 10 for three logged rows in a row.

    ## What it finds
    ``rows`` or more consecutive logged rows of one attempt whose gradient norm, before clipping,
    is above ``threshold``. Infinity is above it; NaN is not, and ends the row of rows.

    ## Why it matters
    One large gradient can be one bad batch; three in a row are a bad shard or an explosion.

    ## What to do
    Halve the learning rate and skip the shard.

    ## When it errs
    It is about logged rows: at a logging interval of 10 the three span 20 steps or more. In
    healthy runs it fired on 26 rows of 4 of 45, all in the first steps of a fine-tune. Where
    the norm is logged before fp16's loss scale is taken out, it lies between 1e4 and 1e6 and
    the rule holds always. ``grad-norm-run`` of the default preset wants the norm to stand above
    the run's own level as well.

    ## Settings
    threshold: Gradient norm that each row must exceed.
    rows: Consecutive logged rows that must exceed it.
    join: Rows between two such stretches which still belong to one finding.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_gradients.jsonl --rule seed-grad-norm-run --format brief
    error     seed-grad-norm-run   attempt 0  step 700..739  grad_norm 18.14, expected 10

    ## Sources
    - Above 10 three times in a row, halve the learning rate and skip the shard: the field's
      rule of thumb.
    - How often it errs: measured on 45 public runs that converged; the norms of scaled gradients
      are those of BigScience's 104B runs.
    """
    if rows < 1:
        raise SettingError(f"seed-grad-norm-run.rows: {rows} is no number of rows: give 1 or more")
    clip = after_clipping(run)
    if clip is not None and clip <= threshold:
        raise CannotLook(f"grad_norm is logged after clipping to {clip:g}: the norm is not known")
    looked = False
    for signal in signals(run, "grad_norm"):
        looked = looked or int((~np.isnan(signal.values)).sum()) >= rows
        held = np.zeros(len(signal), bool)
        for first, last in stretches(signal.values > threshold):
            held[first : last + 1] = last - first + 1 >= rows
        for first, last in stretches(held, gap=join):
            inside = np.flatnonzero(held[first : last + 1]) + first
            peak = int(inside[np.argmax(signal.values[inside])])
            yield finding(
                run,
                metric="grad_norm",
                rows=(int(signal.rows[first]), int(signal.rows[last])),
                peak=int(signal.rows[peak]),
                severity="error",
                value=signal.values[peak],
                expected=threshold,
                score=signal.values[peak] / threshold,
            )
    if not looked:
        raise CannotLook(f"fewer than {rows} logged gradient norms in every attempt")
