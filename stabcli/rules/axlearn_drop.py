"""Rule ``axlearn-drop``."""

from __future__ import annotations

from collections.abc import Iterator

from stabcli.published import above_average
from stabcli.rules import Finding, published, rule
from stabcli.run import Run


@rule(needs=("grad_norm",), presets=("axlearn-drop",), since="0.1.0")
def axlearn_drop(
    run: Run, *, ratio: float = 20.0, keep: float = 0.99, warm: int = 1, join: int = 10
) -> Iterator[Finding]:
    """Axlearn would have dropped the update: gradient norm 20 times its moving average, or not finite.

    ## What it finds
    Rows whose gradient norm is not finite, or above ``ratio`` times the exponential average of the
    norms of the updates before that were not dropped.

    ## Why it matters
    It is what runs of this system were stopped, or spared, by: where it stays silent on a log,
    their guard would have been silent too.

    ## What to do
    There the update is dropped with all its state, and the run goes on.

    ## When it errs
    Norms of the first steps are high, and the average begins with them: until it has come down
    nothing fires. Its other form, mean and 20 deviations after 500 updates, is not told here.

    ## Settings
    ratio: Multiple of the average; 20, 40 and 100 are in use.
    keep: Share of the average that stays from row to row.
    warm: Rows that only make the average.
    join: Rows between two that fire which still belong to one finding.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_gradients.jsonl --rule axlearn-drop --format brief
    warning   axlearn-drop         attempt 0  step 700..739  grad_norm 18.14, expected 7.048

    ## Sources
    - ``skip_and_clip_by_global_norm`` of apple/axlearn, axlearn/common/optimizers.py at 34aed43.
    """
    yield from published(
        run,
        ("grad_norm",),
        lambda x: above_average(x, keep=keep, ratio=ratio, warm=warm),
        least=warm + 1,
        join=join,
    )
