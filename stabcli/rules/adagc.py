"""Rule ``adagc``."""

from __future__ import annotations

from collections.abc import Iterator

from stabcli.published import above_average
from stabcli.rules import Finding, published, rule
from stabcli.run import Run


@rule(needs=("grad_norm",), presets=("adagc",), since="0.1.0", judges=False)
def adagc(
    run: Run, *, ratio: float = 1.05, keep: float = 0.98, warm: int = 100
) -> Iterator[Finding]:
    """AdaGC would have clipped: gradient norm above 1.05 times its moving average.

    ## What it finds
    The share of rows whose gradient norm is above ``ratio`` times the exponential average of the
    norms before, each clipped to that limit, after ``warm`` rows: one notice for the run. The
    method keeps an average for every tensor; a log has only the norm of all of them, which this
    stands for.

    ## Why it matters
    It is a clip and no alarm: a high share is normal. Where it rises, gradients grow.

    ## What to do
    Nothing because of it alone; compare the share with that of other runs.

    ## When it errs
    It is true of a large part of all rows of any run: a norm is above 1.05 times its average as
    often as noise takes it there.

    ## Settings
    ratio: Multiple of the average above which a norm is clipped.
    keep: Share of the average that stays from row to row.
    warm: Rows that only make the average.

    ## Example
    $ stabcli scan sample_logs/jsonl/bad_batch.jsonl --rule adagc --format brief
    notice    adagc                attempt 0  step 150..1000  grad_norm 24.29

    ## Sources
    - AdaGC, arXiv 2502.11034: relative threshold 1.05, momentum 0.98, global clipping in the first
      100 steps.
    """
    yield from published(
        run,
        ("grad_norm",),
        lambda x: above_average(
            x, keep=keep, ratio=ratio, warm=warm, learns="clipped", nonfinite=False
        ),
        least=warm + 1,
        statistic=True,
    )
