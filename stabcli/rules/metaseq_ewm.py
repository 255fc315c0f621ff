"""Rule ``metaseq-ewm``."""

from __future__ import annotations

from collections.abc import Iterator

from stabcli.published import above_average
from stabcli.rules import CannotLook, Finding, published, rule
from stabcli.run import Run


@rule(needs=("loss",), presets=("metaseq-ewm",), since="0.1.0")
def metaseq_ewm(
    run: Run, *, ratio: float = 0.0, span: int = 9, join: int = 10
) -> Iterator[Finding]:
    """Metaseq would have skipped the batch: loss above a ratio, of the user's choice, to its mean.

    ## What it finds
    Rows whose loss is above ``ratio`` times the exponentially weighted mean of the losses before
    that did not fire, with a span of ``span`` losses. There is no published ratio: 0 does not
    look.

    ## Why it matters
    It is what runs of this system were stopped, or spared, by: where it stays silent on a log,
    their guard would have been silent too.

    ## What to do
    There the batch is skipped.

    ## When it errs
    As shipped it is off in a way that freezes the mean at the first loss.

    ## Settings
    ratio: Multiple of the mean; 0 is off.
    span: Span of the mean: it keeps 1 - 2 / (span + 1) of itself.
    join: Rows between two that fire which still belong to one finding.

    ## Example
    $ stabcli scan sample_logs/jsonl/bad_batch.jsonl --rule metaseq-ewm --set metaseq-ewm.ratio=1.5 --format brief
    warning   metaseq-ewm          attempt 0  step 600..603  loss 9.325, expected 2.636

    ## Sources
    - facebookresearch/metaseq, metaseq/trainer.py at f7ffa5f: ``ewm_ratio_to_skip_batch``.
    """
    if ratio <= 0:
        raise CannotLook("no ratio was published: choose one with --set metaseq-ewm.ratio=1.3")
    yield from published(
        run,
        ("loss",),
        lambda x: above_average(x, keep=1 - 2 / (span + 1), ratio=ratio, warm=1, nonfinite=False),
        least=2,
        join=join,
    )
