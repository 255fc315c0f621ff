"""Rule ``repeated-data``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.levels import SIGMA_PER_MAD, median_error, noise
from stabcli.rules import CannotLook, Finding, finding, rule
from stabcli.run import Run
from stabcli.series import MINIMUM, Signal, signals, slope


@rule(needs=("loss",), presets=("default",), since="0.1.0")
def repeated_data(
    run: Run, *, sigmas: float = 4.0, lower: float = 0.01, differs: float = 0.05, rows: int = 50
) -> Iterator[Finding]:
    """After a restart the loss is too good: the data was seen before.

    ## What it finds
    Over the steps that a restart redid, the median difference of the losses is ``lower`` (of the
    loss) in favour of the second time, and ``sigmas`` robust standard errors. Left out are
    restarts from a loss that had gone bad, and those whose learning rate was changed by more than
    ``differs``: a warning. Or, whether steps were redone or not, the loss falls by as much at the
    restart, median of ``rows`` rows against those before, below what its slope explains, and steps
    up by as much where the data that the weights had seen runs out: as many steps after the restart
    as the run had done before it. An error, tagged ``unseen-again``: nothing else keeps that date.

    ## Why it matters
    A data loader that starts over feeds what the weights already know. The loss looks good, and
    steps up when unseen data begins; the run has trained twice on a part and not at all on
    another.

    ## What to do
    Restore the position of the data loader with the checkpoint, or skip the batches already seen.

    ## When it errs
    A change made along with the restart, such as another batch size, has the same effect. Where
    the data loader goes back to the start of an epoch that began later than the run, or by
    another number of steps, the step up comes at another place and is not taken for it.

    ## Settings
    sigmas: Least difference in robust standard errors.
    lower: Least difference relative to the loss.
    differs: Relative difference of the learning rate beyond which attempts are not compared.
    rows: Rows of each median on both sides of the restart and of the step up.

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
        least = max(lower * abs(level), sigmas * error)
        if not 0 < least <= usual or _sick(signal, level, lower):
            continue
        yield finding(
            run,
            metric="loss",
            rows=(int(signal.rows[mine[0]]), int(signal.rows[mine[-1]])),
            severity="warning",
            value=float(np.median(signal.values[mine])),
            expected=level,
            score=usual / least,
            tags=("resume",),
        )
    for signal in parts:
        where = _date(signal, parts, rows)
        if where is None:
            continue
        looked = True
        begun = _begun(signal, where, rows, sigmas, lower)
        if begun is None:
            continue
        at, value, expected, score = begun
        yield finding(
            run,
            metric="loss",
            rows=(int(signal.rows[0]), int(signal.rows[at - 1])),
            severity="error",
            value=value,
            expected=expected,
            score=score,
            tags=("resume", "unseen-again"),
        )
    if not looked:
        why = f"no restart redid {MINIMUM} logged steps"
        if any(s.resumed for s in parts):
            why += f" or has {rows} rows on both sides of where data that was seen would run out"
        raise CannotLook(why)


def _date(signal: Signal, parts: list[Signal], rows: int) -> int | None:
    """Return the index of the first unseen data, had the loader started over; None if not logged."""
    if not signal.resumed or len(signal.inherited) < rows:
        return None
    seen = int(signal.steps[0]) - min(int(p.steps[0]) for p in parts if len(p))
    at = int(np.searchsorted(signal.steps, int(signal.steps[0]) + seen))
    reach = max(MINIMUM, at // 20)
    return at if at - reach >= rows and at + reach + rows <= len(signal) else None


def _begun(
    signal: Signal, where: int, rows: int, sigmas: float, lower: float
) -> tuple[int, float, float, float] | None:
    """Find a loss too low since a restart that steps up near ``where``.

    Returns:
        Index of the first row after the step, level until then, level expected, score.
    """
    before, x = signal.inherited[-rows:], signal.values
    falling = min(0.0, slope(np.arange(rows, dtype=float), before)) * rows
    expected = float(np.median(before)) + falling
    value = float(np.median(x[:rows]))
    wander = sigmas * median_error(max(noise(before), noise(x)), rows, rows)
    least = max(lower * abs(expected), wander)
    if not 0 < least <= expected - value:
        return None
    reach = max(MINIMUM, where // 20)
    best, step = where, -np.inf
    for at in range(where - reach, where + reach + 1):
        low = x[at - rows : at]
        rising = max(0.0, slope(np.arange(rows, dtype=float), low)) * rows
        up = float(np.median(x[at : at + rows])) - float(np.median(low)) - rising
        if up > step:
            best, step = at, up
    # The step back up is that down: a rise of another size is another event.
    if step < max(least, (expected - value) / 2):
        return None
    return best, value, expected, min(expected - value, step) / least


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
