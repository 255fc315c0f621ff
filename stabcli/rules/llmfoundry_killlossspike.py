"""Rule ``llmfoundry-killlossspike``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from stabcli.published import Judged, in_a_row
from stabcli.published import window as before
from stabcli.rules import Finding, published, rule
from stabcli.run import Run


@rule(needs=("loss",), presets=("llmfoundry-killlossspike",), since="0.1.0")
def llmfoundry_killlossspike(
    run: Run,
    *,
    ratio: float = 2.0,
    patience: int = 4,
    window: int = 100,
    share: float = 0.05,
    cap: float = 10.0,
    faithful: bool = True,
) -> Iterator[Finding]:
    """llm-foundry would have stopped: loss twice the mean of its window five times in a row.

    ## What it finds
    More than ``patience`` losses in a row of at least ``ratio`` times the mean of the window
    before; the window is ``window`` losses, or ``share`` of the run where that is more, and has to
    be full. And, from two windows on, a window half of whose losses are above its cap: ``cap``, or
    the highest loss of the first window where that is lower.

    ## Why it matters
    It is what runs of this system were stopped, or spared, by: where it stays silent on a log,
    their guard would have been silent too.

    ## What to do
    There it logs by default; set to, it ends the run and advises a lower learning rate.

    ## When it errs
    Outliers enter the mean, and four may pass in a row. It has seen none of hundreds of planted
    single rows and none of the levels that rose by 80 %. A NaN is no outlier and blinds it for a
    window.

    ## Settings
    ratio: Multiple of the mean.
    patience: Losses in a row that may pass.
    window: Least number of losses in the window.
    share: Share of the run that the window holds.
    cap: Highest loss that is not high.
    faithful: Whether values that are not finite enter the windows, as they do there.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_7b_spike.jsonl --rule llmfoundry-killlossspike --format brief
    error     llmfoundry-killlossspike attempt 0  step 121225..125000  loss 2.314, expected 1.913

    ## Sources
    - mosaicml/llm-foundry, llmfoundry/callbacks/kill_loss_spike_callback.py at 8c8dd48.
    """

    def judge(x: np.ndarray) -> Judged:
        width = max(window, int(share * len(x)))
        mean, _ = before(x, width, width)
        limit = ratio * mean
        with np.errstate(invalid="ignore"):
            fired = in_a_row(x >= limit) > patience
            if len(x) >= 2 * width:
                highest = min(cap, float(np.nanmax(x[:width])))
                high = pl.Series(x > highest, dtype=pl.Float64).rolling_mean(width)
                many = high.fill_null(0.0).to_numpy() >= 0.5
                many[: 2 * width] = False
                limit = np.where(many & ~fired, highest, limit)
                fired |= many
        return Judged(fired, limit)

    yield from published(
        run, ("loss",), judge, least=window + patience + 1, faithful=faithful, severity="error"
    )
