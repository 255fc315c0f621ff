"""Rule ``axolotl-watchdog``."""

from __future__ import annotations

from collections.abc import Iterator

from stabcli.published import runs_above
from stabcli.rules import Finding, published, rule
from stabcli.run import Run


@rule(needs=("loss",), presets=("axolotl-watchdog",), since="0.1.0")
def axolotl_watchdog(
    run: Run, *, threshold: float = 5.0, patience: int = 3, faithful: bool = True
) -> Iterator[Finding]:
    """Axolotl would have stopped: loss above a threshold three times in a row.

    ## What it finds
    The ``patience``-th look in a row at a loss above ``threshold``. The trainer looks at the end
    of every step, at whatever was logged last: with a row every k steps one row is looked at k
    times. ``faithful`` false looks once a row. A loss that is not finite begins anew.

    ## Why it matters
    It stops fine-tunes that blew up, and none that only got worse.

    ## What to do
    There training stops.

    ## When it errs
    The threshold has no published default; 5 and 15 stand in its examples. At 5 all pretraining
    from nothing fires from the first rows, at 15 nothing ever does. A NaN counts as quiet.

    ## Settings
    threshold: Loss above which a look counts.
    patience: Looks in a row.
    faithful: Whether one row is looked at in every step until the next.

    ## Example
    $ stabcli scan sample_logs/jsonl/bad_batch.jsonl --rule axolotl-watchdog --format brief
    error     axolotl-watchdog     attempt 0  step 3..16  loss 5.48, expected 5
    error     axolotl-watchdog     attempt 0  step 602..603  loss 7.503, expected 5

    ## Sources
    - ``LossWatchDogCallback`` of axolotl-ai-cloud/axolotl, src/axolotl/utils/callbacks/__init__.py
      at 067b021: ``loss_watchdog_threshold``, ``loss_watchdog_patience`` 3.
    """
    looks = (run.log_interval or 1) if faithful else 1
    rows = max(1, -(-patience // looks))
    yield from published(
        run, ("loss",), lambda x: runs_above(x, threshold, rows), least=rows, severity="error"
    )
