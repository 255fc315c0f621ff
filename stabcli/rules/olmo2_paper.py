"""Rule ``olmo2-paper``."""

from __future__ import annotations

from collections.abc import Iterator

from stabcli.published import above_deviations
from stabcli.rules import Finding, published, rule
from stabcli.run import Run


@rule(needs=("loss",), presets=("olmo2-paper",), since="0.1.0")
def olmo2_paper(
    run: Run, *, window: int = 1000, sigmas: float = 7.0, join: int = 10, faithful: bool = True
) -> Iterator[Finding]:
    """OLMo 2 would have counted a spike: loss or gradient norm above mean and 7 deviations.

    ## What it finds
    Rows whose loss, or gradient norm, is above the mean and ``sigmas`` population deviations of
    the ``window`` before, once that is full.

    ## Why it matters
    Its authors compare recipes by how often it happens.

    ## What to do
    There it is a count in the log and nothing is done.

    ## When it errs
    Needs a full window of logged rows. Spikes stay in it: after one, those that follow go unseen
    for as long. A NaN blinds it for a window.

    ## Settings
    window: Rows before that give mean and deviation.
    sigmas: Deviations above the mean.
    join: Rows between two that fire which still belong to one finding.
    faithful: Whether values that are not finite enter the windows, as they do there.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_spikes.jsonl --rule olmo2-paper --format brief
    warning   olmo2-paper          attempt 0  step 1050  loss 4.952, expected 4.217
    warning   olmo2-paper          attempt 0  step 1050  grad_norm 2.169, expected 1.39
    warning   olmo2-paper          attempt 0  step 1300  loss 5.324, expected 3.558
    warning   olmo2-paper          attempt 0  step 1300  grad_norm 1.534, expected 1.211

    ## Sources
    - OLMo 2, arXiv 2501.00656, spike score: taken from what others write of it, not from the paper
      itself.
    """
    yield from published(
        run,
        ("loss", "grad_norm"),
        lambda x: above_deviations(x, width=window, least=window, sigmas=sigmas, floor=1e-10),
        least=window + 1,
        join=join,
        faithful=faithful,
    )
