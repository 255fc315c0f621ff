"""Rule ``lightning-earlystop``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.published import Judged, in_a_row
from stabcli.rules import Finding, published, rule
from stabcli.run import Run


@rule(needs=("val_loss",), presets=("lightning-earlystop",), since="0.1.0")
def lightning_earlystop(
    run: Run, *, patience: int = 3, min_delta: float = 0.0, divergence: float = 0.0
) -> Iterator[Finding]:
    """Lightning would have stopped early: validation loss did not fall three times, or is not finite.

    ## What it finds
    Evaluations that are not finite, and the ``patience``-th in a row that is not more than
    ``min_delta`` below the best before. Where a threshold of ``divergence`` is chosen, evaluations
    above it as well: there is none by default, there or here.

    ## Why it matters
    It ends runs that have nothing more to learn, and those that broke.

    ## What to do
    There training stops.

    ## When it errs
    Near the end of any run the validation loss is flat: noise alone makes three in a row.

    ## Settings
    patience: Evaluations in a row without a gain.
    min_delta: Least gain that counts.
    divergence: Validation loss above which training stops at once; 0 for none.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_overfit.jsonl --rule lightning-earlystop --format brief
    warning   lightning-earlystop  attempt 0  step 850..1200  val_loss 2.896, expected 2.548

    ## Sources
    - Lightning-AI/pytorch-lightning, src/lightning/pytorch/callbacks/early_stopping.py at 7f0c343.
    """

    def judge(x: np.ndarray) -> Judged:
        broken = ~np.isfinite(x)
        best = np.fmin.accumulate(np.where(broken, np.inf, x))
        before = np.concatenate([[np.inf], best[:-1]])
        with np.errstate(invalid="ignore"):
            idle = ~(x < before - min_delta)
            far = (x > divergence) & (divergence > 0)
        return Judged(broken | far | (in_a_row(idle) >= patience), before)

    yield from published(run, ("val_loss",), judge, least=patience + 1, join=patience)
