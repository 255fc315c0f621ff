"""Rule ``arc``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.published import Judged
from stabcli.published import window as before
from stabcli.rules import Finding, published, rule
from stabcli.run import Run


@rule(needs=("loss",), presets=("arc",), since="0.1.0")
def arc(
    run: Run, *, ratio: float = 10.0, window: int = 5, join: int = 10, faithful: bool = True
) -> Iterator[Finding]:
    """arc-training would have rolled back: loss above ten times the mean of the last five.

    ## What it finds
    Rows whose loss is above ``ratio`` times the plain mean of the ``window`` losses before.

    ## Why it matters
    It is what runs of this system were stopped, or spared, by: where it stays silent on a log,
    their guard would have been silent too.

    ## What to do
    There the run goes back to a checkpoint by itself.

    ## When it errs
    A loss of 2 must leap to 20: no published divergence of a language model did. A NaN in the
    window blinds it until it has left.

    ## Settings
    ratio: Multiple of the mean.
    window: Losses in the mean.
    join: Rows between two that fire which still belong to one finding.
    faithful: Whether values that are not finite enter the windows, as they do there.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_guards.jsonl --rule arc --format brief
    error     arc                  attempt 0  step 500  loss 62.83, expected 25.07

    ## Sources
    - arc-training 5.2.0.post1 (PyPI), default detector; its calibrated one is not told apart here.
    """

    def judge(x: np.ndarray) -> Judged:
        mean, _ = before(x, window, window)
        limit = ratio * mean
        with np.errstate(invalid="ignore"):
            return Judged(x > limit, limit)

    yield from published(
        run, ("loss",), judge, least=window + 1, join=join, faithful=faithful, severity="error"
    )
