"""Rule ``clip-saturation``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from stabcli.rules import CannotLook, Finding, finding, rule
from stabcli.run import Run
from stabcli.series import after_clipping, signals, stretches


@rule(needs=("grad_norm",), presets=("default",), since="0.1.0", judges=False)
def clip_saturation(
    run: Run, *, share: float = 0.5, before: float = 0.1, window: int = 300
) -> Iterator[Finding]:
    """Clipping, once rare, cuts most of the gradients.

    ## What it finds
    Stretches in which more than ``share`` of the ``window`` rows before had a gradient norm above
    the clip, where in the first half of the run less than ``before`` had: a warning.

    ## Why it matters
    Where every gradient is cut to one length the update no longer knows how large it should be:
    the clip has become the learning rate. It comes before a divergence, or hides one.

    ## What to do
    Look at what makes the gradients grow: weight decay, the learning rate, attention logits.
    Raising the clip only hides it.

    ## When it errs
    A clip below the usual norm cuts all rows from the start, which is a choice and not told.

    ## Settings
    share: Share of rows above the clip.
    before: Share above it in the first half of the run.
    window: Rows in which the share is taken.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_clipping.jsonl --rule clip-saturation --format brief
    warning   clip-saturation      attempt 0  step 1312..2000  grad_norm 2.046, expected 1

    ## Sources
    - Share of clipped steps as a sign of trouble: of six healthy runs of 130M to 1.2B parameters
      none clipped more than 0.5 % of its steps.
    """
    clip = run.fact("grad_clip")
    if clip is None or clip <= 0:
        raise CannotLook("the clip of the gradient norm is unknown")
    if after_clipping(run) is not None:
        raise CannotLook("the gradient norm was logged after clipping")
    looked = False
    for raw in signals(run, "grad_norm"):
        signal = raw.finite()
        if len(signal) < 2 * window:
            continue
        looked = True
        above = (signal.values > clip).astype(float)
        half = len(above) // 2
        if above[:half].mean() >= before:
            continue
        recent = pl.Series(above).rolling_mean(window).to_numpy()
        with np.errstate(invalid="ignore"):
            saturated = recent > share
        saturated[:half] = False
        for first, last in stretches(saturated, gap=window):
            begun = max(0, first - int(share * window))
            yield finding(
                run,
                metric="grad_norm",
                rows=(int(signal.rows[begun]), int(signal.rows[last])),
                severity="warning",
                value=float(np.median(signal.values[begun : last + 1])),
                expected=clip,
                score=float(recent[first : last + 1].max()) / share,
            )
    if not looked:
        raise CannotLook(f"fewer than {2 * window} gradient norms in every attempt")
