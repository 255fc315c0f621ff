"""Rule ``olmo-stability``."""

from __future__ import annotations

from collections.abc import Iterator

from stabcli.published import above_deviations
from stabcli.rules import Finding, published, rule
from stabcli.run import Run


@rule(needs=("loss",), presets=("olmo-stability",), since="0.1.0")
def olmo_stability(
    run: Run, *, window: int = 128, sigmas: float = 6.0, join: int = 10, faithful: bool = True
) -> Iterator[Finding]:
    """OLMo-core would have counted a spike: loss or gradient norm above mean and 6 deviations.

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
    $ stabcli scan sample_logs/jsonl/bad_batch.jsonl --rule olmo-stability --format brief
    warning   olmo-stability       attempt 0  step 600..602  loss 9.325, expected 2.368
    warning   olmo-stability       attempt 0  step 600  grad_norm 24.29, expected 3.743

    ## Sources
    - ``StabilityMonitorCallback`` of allenai/OLMo-core,
      src/olmo_core/train/callbacks/stability_monitor.py at fa6c501.
    """
    yield from published(
        run,
        ("loss", "grad_norm"),
        lambda x: above_deviations(x, width=window, least=window, sigmas=sigmas, floor=1e-10),
        least=window + 1,
        join=join,
        faithful=faithful,
    )
