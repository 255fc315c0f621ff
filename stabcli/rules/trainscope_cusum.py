"""Rule ``trainscope-cusum``."""

from __future__ import annotations

from collections.abc import Iterator

from stabcli.published import cumulative_sum
from stabcli.rules import Finding, published, rule
from stabcli.run import Run


@rule(needs=("loss",), presets=("trainscope-cusum",), since="0.1.0")
def trainscope_cusum(
    run: Run,
    *,
    window: int = 200,
    warm: int = 30,
    slack: float = 1.0,
    decision: float = 6.0,
    join: int = 10,
) -> Iterator[Finding]:
    """Trainscope would have taken a snapshot: cumulative sum beyond 6 deviations, up or down.

    ## What it finds
    Rows at which Page's sum of deviations from the median of the ``window`` losses before, less
    ``slack`` each, passes ``decision``, upwards or downwards, from ``warm`` losses on.

    ## Why it matters
    It is what runs of this system were stopped, or spared, by: where it stays silent on a log,
    their guard would have been silent too.

    ## What to do
    There tensors and random states are written out.

    ## When it errs
    Both ways: a loss that falls fires as well. It fired in 51 of 81 healthy runs and in a third of
    all clean stretches of 90 rows.

    ## Settings
    window: Losses whose median and deviation are taken.
    warm: Losses without which it does not look.
    slack: Deviations that each loss is forgiven.
    decision: Sum of deviations that fires.
    join: Rows between two that fire which still belong to one finding.

    ## Example
    $ stabcli scan sample_logs/jsonl/bad_batch.jsonl --rule trainscope-cusum --format brief
    warning   trainscope-cusum     attempt 0  step 600..603  loss 9.325, expected 1.892

    ## Sources
    - trainscope 1.8.1 (PyPI), core/detectors: median and MAD of 200, k 1.0, h 6.0, 30 to begin
      with; the MAD is taken here about the medians of the time.
    """
    yield from published(
        run,
        ("loss",),
        lambda x: cumulative_sum(x, width=window, warm=warm, slack=slack, decision=decision),
        least=warm + 1,
        join=join,
    )
