"""Rule ``trainscope-z``."""

from __future__ import annotations

from collections.abc import Iterator

from stabcli.published import all_so_far
from stabcli.rules import Finding, published, rule
from stabcli.run import Run


@rule(needs=("loss",), presets=("trainscope-z",), since="0.1.0")
def trainscope_z(
    run: Run, *, sigmas: float = 3.5, warm: int = 30, join: int = 10, faithful: bool = True
) -> Iterator[Finding]:
    """Trainscope would have taken a snapshot: 3.5 deviations of all losses so far, up or down.

    ## What it finds
    Rows whose loss is ``sigmas`` deviations from the mean of all losses before, either way, from
    ``warm`` losses on.

    ## Why it matters
    It is what runs of this system were stopped, or spared, by: where it stays silent on a log,
    their guard would have been silent too.

    ## What to do
    There tensors and random states are written out.

    ## When it errs
    The fall at the start is part of the deviation for good, so that late spikes drown in it. One
    NaN blinds it for the rest of the run.

    ## Settings
    sigmas: Deviations.
    warm: Losses without which it does not look.
    join: Rows between two that fire which still belong to one finding.
    faithful: Whether values that are not finite enter the windows, as they do there.

    ## Example
    $ stabcli scan sample_logs/jsonl/bad_batch.jsonl --rule trainscope-z --format brief
    warning   trainscope-z         attempt 0  step 600..603  loss 9.325, expected 5.063

    ## Sources
    - trainscope 1.8.1 (PyPI), core/detectors: running mean and deviation, z 3.5.
    """
    yield from published(
        run,
        ("loss",),
        lambda x: all_so_far(x, warm=warm, sigmas=sigmas),
        least=warm + 1,
        join=join,
        faithful=faithful,
    )
