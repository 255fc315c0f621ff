"""Rule ``repeated-data``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.levels import SIGMA_PER_MAD, median_error
from stabcli.rules import CannotLook, Finding, finding, rule
from stabcli.run import Run
from stabcli.series import MINIMUM, Signal, signals


@rule(needs=("loss",), presets=("default",), since="0.1.0")
def repeated_data(
    run: Run, *, sigmas: float = 4.0, lower: float = 0.01, differs: float = 0.05
) -> Iterator[Finding]:
    """After a restart the loss is too good: the data was seen before.

    ## What it finds
    Over the steps that a restart redid, the median difference of the losses is ``lower`` (of the
    loss) in favour of the second time, and ``sigmas`` robust standard errors. Left out are
    restarts from a loss that had gone bad, and those whose learning rate was changed by more than
    ``differs``.

    ## Why it matters
    A data loader that starts over feeds what the weights already know. The loss looks good, and
    steps up when unseen data begins; the run has trained twice on a part and not at all on
    another.

    ## What to do
    Restore the position of the data loader with the checkpoint, or skip the batches already seen.

    ## When it errs
    A change made along with the restart, such as another batch size, has the same effect.

    ## Settings
    sigmas: Least difference in robust standard errors.
    lower: Least difference relative to the loss.
    differs: Relative difference of the learning rate beyond which attempts are not compared.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_repeated_data.jsonl --rule repeated-data --format brief
    warning   repeated-data        attempt 1  step 501..620  loss 2.242, expected 2.489

    ## Sources
    - Loss too low after a resume, then a step up: training-loss-patterns.md of ml-engineering
      (stas00).
    """
    parts = [s.finite() for s in signals(run, "loss")]
    rates = (
        {s.attempt: s.finite() for s in signals(run, "learning_rate")}
        if run.has("learning_rate")
        else {}
    )
    looked = False
    for at, signal in enumerate(parts):
        first = int(signal.steps[0]) if len(signal) else -1
        parent = next((p for p in reversed(parts[:at]) if len(p) and p.steps[0] < first), None)
        if parent is None:
            continue
        _, mine, theirs = np.intersect1d(signal.steps, parent.steps, return_indices=True)
        if len(mine) < MINIMUM:
            continue
        looked = True
        if _rates_differ(rates, signal, parent, differs):
            continue
        gain = parent.values[theirs] - signal.values[mine]
        usual = float(np.median(gain))
        error = median_error(SIGMA_PER_MAD * float(np.median(np.abs(gain - usual))), len(gain))
        level = float(np.median(parent.values[theirs]))
        if usual < max(lower * abs(level), sigmas * error) or _sick(signal, level, lower):
            continue
        yield finding(
            run,
            metric="loss",
            rows=(int(signal.rows[mine[0]]), int(signal.rows[mine[-1]])),
            severity="warning",
            value=float(np.median(signal.values[mine])),
            expected=level,
            score=usual / max(lower * abs(level), sigmas * error),
            tags=("resume",),
        )
    if not looked:
        raise CannotLook(f"no restart redid {MINIMUM} logged steps")


def _sick(signal: Signal, level: float, lower: float) -> bool:
    """Say whether the loss had already risen when the run was taken back."""
    before = signal.inherited
    return len(before) >= MINIMUM and level > float(np.median(before)) * (1 + lower)


def _rates_differ(rates: dict[int, Signal], signal: Signal, parent: Signal, differs: float) -> bool:
    mine, theirs = rates.get(signal.attempt), rates.get(parent.attempt)
    if mine is None or theirs is None:
        return False
    _, i, j = np.intersect1d(mine.steps, theirs.steps, return_indices=True)
    if not len(i):
        return False
    off = np.abs(mine.values[i] - theirs.values[j]) > differs * np.abs(theirs.values[j])
    return bool(off.mean() > 0.2)
