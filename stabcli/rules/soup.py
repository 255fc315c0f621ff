"""Rule ``soup``."""

from __future__ import annotations

from collections.abc import Iterator

from stabcli.published import runs_above
from stabcli.rules import Finding, published, rule
from stabcli.run import Run


@rule(needs=("loss",), presets=("soup",), since="0.1.0")
def soup(run: Run, *, threshold: float = 3.0, patience: int = 5) -> Iterator[Finding]:
    """Soup would have stopped: loss above 3 five times in a row.

    ## What it finds
    The ``patience``-th loss in a row above ``threshold``; one that is not finite begins anew.

    ## Why it matters
    It stops fine-tunes that blew up.

    ## What to do
    There the learning rate is halved and the run begins again, three times at most.

    ## When it errs
    Pretraining begins at 10 and fires at once. A NaN counts as quiet.

    ## Settings
    threshold: Loss that counts as high.
    patience: Rows in a row.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_divergence.jsonl --rule soup --format brief
    error     soup                 attempt 0  step 5..104  loss 4.086, expected 3
    error     soup                 attempt 0  step 110..112  loss 3.077, expected 3
    error     soup                 attempt 0  step 1062..1063  loss 3.034, expected 3
    error     soup                 attempt 0  step 1083..1200  loss 3.384, expected 3

    ## Sources
    - MakazhanAlpamys/Soup, src/soup_cli/monitoring/callback.py at 2428453.
    """
    yield from published(
        run,
        ("loss",),
        lambda x: runs_above(x, threshold, patience),
        least=patience,
        severity="error",
    )
