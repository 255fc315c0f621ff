"""Rule ``loss-shift``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.beginnings import negligible, settled
from stabcli.rules import CannotLook, Finding, finding, rule
from stabcli.run import Run
from stabcli.series import Signal, signals
from stabcli.shifts import Shift, after_a_dip, rises
from stabcli.twofold import evened

POSITIVE = 0.9
"""Share of losses above 0 without which their logarithm says nothing."""


@rule(needs=("loss",), presets=("default",), since="0.1.0")
def loss_shift(
    run: Run, *, rise: float = 0.05, sigmas: float = 5.5, rows: int = 32, wide: int = 64
) -> Iterator[Finding]:
    """Loss steps up to a higher level and stays there.

    ## What it finds
    The level (trimean) of ``rows``, or of ``wide``, logged losses lies at least ``rise`` above
    that of as many before them, by ``sigmas`` standard errors: those of the noise of the 128 rows
    before, and of how much such levels wander in this run. A warning, from the row at which the
    loss stepped up to the last at which it was not yet half-way back. Warm-up is left out, and a
    change of batch size, number of GPUs or a leap of the learning rate begins anew. A level below
    5 % of the loss that the log began with is no shift, and one that only brings back the level from
    before a short dip is a notice.

    ## Why it matters
    A step of 5 to 15 % hides in the noise of single rows, so that no spike rule sees it, and it
    costs all the steps that brought the loss down to where it had been.

    ## What to do
    Look at what changed at ``first``: the data, the nodes, the code. Roll back to before it if
    nothing was meant to change.

    ## When it errs
    Harder data, or longer sequences, raise the loss on purpose. With batches that differ by a
    tenth from one another a step of 15 % takes more than 64 rows to be sure of. Losses at two levels all through the run
    are brought to one first, as in ``loss-spike``.

    ## Settings
    rise: Least relative rise of the level.
    sigmas: Least rise in standard errors.
    rows: Rows on either side whose levels are compared.
    wide: Rows on either side where those are too noisy.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_shifts.jsonl --rule loss-shift --format brief
    warning   loss-shift           attempt 0  step 500..699  loss 2.803, expected 2.525

    ## Sources
    - Shifts of the level that never came back: "not fully recovering spikes" in
      training-loss-patterns.md of ml-engineering (stas00).
    - Trimean: Tukey (1977), Exploratory Data Analysis.
    """
    looked = False
    floor = negligible(run)
    for raw in signals(run, "loss"):
        signal = evened(_positive(raw.finite()))
        for start, stop in settled(run, signal):
            if stop - start < 2 * rows:
                continue
            looked = True
            x = np.log(signal.values[start:stop])
            steep = rises(x, rows=rows, least=float(np.log1p(rise)), sigmas=sigmas)
            for shift in _both(
                steep, rises(x, rows=wide, least=float(np.log1p(rise)), sigmas=sigmas)
            ):
                if floor > 0 and shift.after < np.log(floor):
                    continue
                back = after_a_dip(x, shift.first, shift.before, shift.after - shift.before)
                yield finding(
                    run,
                    metric="loss",
                    rows=(
                        int(signal.rows[start + shift.first]),
                        int(signal.rows[start + shift.last]),
                    ),
                    severity="notice" if back else "warning",
                    value=float(np.exp(shift.after)),
                    expected=float(np.exp(shift.before)),
                    score=shift.score,
                    tags=("after-a-dip",) if back else (),
                )
    if not looked:
        raise CannotLook(f"fewer than {2 * rows} positive losses after warm-up in every attempt")


def _positive(signal: Signal) -> Signal:
    """Return the signal without losses of 0 or less, which hide something; empty if they prevail."""
    above = signal.values > 0
    prevail = int(above.sum()) >= POSITIVE * len(above)
    return signal.at(above if prevail else np.zeros(len(above), bool))


def _both(steep: list[Shift], wide: list[Shift]) -> list[Shift]:
    """Return all shifts in order, leaving out those of the wide windows that are told already."""
    more = [w for w in wide if not any(w.first <= s.last and s.first <= w.last for s in steep)]
    return sorted([*steep, *more], key=lambda s: s.first)
