"""Rule ``lightning-spike``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.published import Judged, finite_only
from stabcli.published import window as before
from stabcli.rules import Finding, published, rule
from stabcli.run import Run


@rule(needs=("loss",), presets=("lightning-spike",), since="0.1.0")
def lightning_spike(
    run: Run, *, window: int = 10, ratio: float = 2.0, join: int = 10
) -> Iterator[Finding]:
    """Lightning would have raised: loss three times the mean of the last ten, or not finite.

    ## What it finds
    Rows whose loss is not finite, or is above the row before and differs from the mean of the
    ``window`` losses before by at least ``ratio`` times that mean: at 2 that is three times the
    mean.

    ## Why it matters
    It is what runs of this system were stopped, or spared, by: where it stays silent on a log,
    their guard would have been silent too.

    ## What to do
    There an exception is raised, and the batch and the one before are written to
    ``skip_batches.json``.

    ## When it errs
    It sounds like twice and is three times. Spikes enter the mean.

    ## Settings
    window: Losses in the mean; fewer at the start.
    ratio: Distance from the mean in units of the mean.
    join: Rows between two that fire which still belong to one finding.

    ## Example
    $ stabcli scan sample_logs/jsonl/bad_batch.jsonl --rule lightning-spike --format brief
    error     lightning-spike      attempt 0  step 600  loss 9.325, expected 5.294

    ## Sources
    - ``SpikeDetection`` of Lightning-AI/pytorch-lightning, src/lightning/fabric/utilities/spike.py
      at 7f0c343: window 10, rtol 2.0.
    """

    def judge(x: np.ndarray) -> Judged:
        mean, _ = before(x, window, 1)
        with np.errstate(invalid="ignore"):
            rises = np.concatenate([[False], x[1:] > x[:-1]])
            far = np.abs(x - mean) >= ratio * np.abs(mean)
        return Judged(rises & far, mean + ratio * np.abs(mean))

    yield from published(run, ("loss",), finite_only(judge), least=2, join=join, severity="error")
