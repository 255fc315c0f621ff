"""Rule ``olmo-skipstep``."""

from __future__ import annotations

from collections.abc import Iterator

from stabcli.published import not_within_deviations
from stabcli.rules import Finding, published, rule
from stabcli.run import Run


@rule(needs=("loss",), presets=("olmo-skipstep",), since="0.1.0")
def olmo_skipstep(
    run: Run,
    *,
    window: int = 128,
    least: int = 64,
    sigmas: float = 6.0,
    join: int = 10,
    faithful: bool = True,
) -> Iterator[Finding]:
    """OLMo-core would have skipped the step: loss or gradient norm above mean and 6 deviations.

    ## What it finds
    Rows whose loss, or gradient norm, is not at most the mean and ``sigmas`` deviations (sample
    deviation) of the ``window`` before, from ``least`` on. A NaN is not, and makes all of the
    window after it so: a single one stops every update for that long. ``faithful`` false keeps it
    out of the window.

    ## Why it matters
    It is what runs of this system were stopped, or spared, by: where it stays silent on a log,
    their guard would have been silent too.

    ## What to do
    There the update is multiplied by 0, and the run goes on.

    ## When it errs
    What was skipped enters the window all the same, and hides what follows. While the loss still
    falls fast, the deviation is that of the fall.

    ## Settings
    window: Rows before that give mean and deviation.
    least: Rows from which anything is skipped.
    sigmas: Deviations above the mean.
    join: Rows between two that fire which still belong to one finding.
    faithful: Whether values that are not finite enter the windows, as they do there.

    ## Example
    $ stabcli scan sample_logs/jsonl/bad_batch.jsonl --rule olmo-skipstep --format brief
    warning   olmo-skipstep        attempt 0  step 600..602  loss 9.325, expected 2.37
    warning   olmo-skipstep        attempt 0  step 600  grad_norm 24.29, expected 3.75

    ## Sources
    - allenai/OLMo-core, src/olmo_core/optim/skip_step_optimizer.py at fa6c501.
    """
    yield from published(
        run,
        ("loss", "grad_norm"),
        lambda x: not_within_deviations(
            x, width=window, least=least, sigmas=sigmas, floor=0.0, sample=True
        ),
        least=least + 1,
        join=join,
        faithful=faithful,
    )
