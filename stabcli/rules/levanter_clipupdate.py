"""Rule ``levanter-clipupdate``."""

from __future__ import annotations

from collections.abc import Iterator

from stabcli.metrics import normalise
from stabcli.published import above_deviations
from stabcli.rules import CannotLook, Finding, published, rule
from stabcli.run import Run

NAME = "update_norm"
"""Last word of the column that holds the norm of an update."""


@rule(presets=("levanter-clipupdate",), since="0.1.0")
def levanter_clipupdate(
    run: Run, *, window: int = 128, sigmas: float = 3.0, join: int = 10
) -> Iterator[Finding]:
    """Levanter would have clipped the update: its norm above mean and 3 deviations.

    ## What it finds
    Rows whose update norm, in a column that is called so, is above the mean and ``sigmas``
    population deviations of the ``window`` before.

    ## Why it matters
    It is a clip that acts on what the optimizer makes of a gradient.

    ## What to do
    There the update is scaled down to the limit.

    ## When it errs
    Three deviations are passed by chance in every thousand rows. In Marin's 32B run neither this
    nor skipped steps kept the loss from spiking.

    ## Settings
    window: Rows before that give mean and deviation.
    sigmas: Deviations above the mean.
    join: Rows between two that fire which still belong to one finding.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_guards.jsonl --rule levanter-clipupdate --format brief
    notice    levanter-clipupdate  attempt 0  step 272  update_norm 0.06745, expected 0.06444
    notice    levanter-clipupdate  attempt 0  step 600..603  update_norm 0.2278, expected 0.06319
    notice    levanter-clipupdate  attempt 0  step 741  update_norm 0.06871, expected 0.06379

    ## Sources
    - stanford-crfm/levanter, src/levanter/optim/clip_update_norm.py at 9263f81.
    - marin-community/marin, docs/reports/marin-32b-retro.md at 0394c6b.
    """
    names = tuple(
        m for m in run.measurements if run.has(m) and normalise(m).rpartition("/")[2].endswith(NAME)
    )
    if not names:
        raise CannotLook(f"the log has no {NAME}")
    yield from published(
        run,
        names,
        lambda x: above_deviations(x, width=window, least=window, sigmas=sigmas, floor=0.0),
        least=window + 1,
        join=join,
        severity="notice",
    )
