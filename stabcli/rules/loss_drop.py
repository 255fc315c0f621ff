"""Rule ``loss-drop``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from stabcli.beginnings import settled
from stabcli.epochs import at_a_share, at_edge
from stabcli.levels import trailing
from stabcli.rules import CannotLook, Finding, Severity, finding, rule
from stabcli.run import Run
from stabcli.series import signals
from stabcli.shifts import Shift, rises
from stabcli.twofold import evened

ABRUPT_ROWS = 8
"""Rows within which a drop must show most of its size."""
NEWS = 0.5
"""Share of a drop that must lie below all levels before: the end of a rise is none."""
RISES = 20
"""Rises behind which drops are looked for; a run that rises and falls more often drops nowhere."""


@rule(needs=("loss",), presets=("default",), since="0.1.0")
def loss_drop(
    run: Run, *, drop: float = 0.15, sigmas: float = 5.5, rows: int = 32, ahead: float = 4.0
) -> Iterator[Finding]:
    """Loss falls within a few rows to a level that training does not explain.

    ## What it finds
    The level (trimean) of ``rows`` logged losses lies at least ``drop`` below that of as many
    before them, by ``sigmas`` standard errors, ``ahead`` times further than it fell in the rows
    before, and most of it within 8 rows: a warning. Left out are warm-up, edges of logged epochs,
    changes of batch size or number of GPUs, leaps of the learning rate, steps without a row that
    are more than ``rows`` usual distances (the loss went on falling there), drops half of which
    only take back a rise before them, and drops that come again and again; where epochs are not
    logged, a drop at a half, a third, a quarter or a fifth of the run is a notice.

    ## Why it matters
    Nothing learns 15 % in a moment. Data seen before, targets that leak into the inputs, or a
    mask that leaves little to predict do look like that, and the run trains on them.

    ## What to do
    Compare the batches on both sides of ``first``: their source, their order, their masks. Look
    whether the validation loss fell as well; if it did not, roll back to before ``first``.

    ## When it errs
    An easier data mix, shorter sequences or a planned fall of the learning rate lower the loss on
    purpose; so does a model that finds a trick (grokking, induction heads). Losses
    at two levels all through the run are brought to one first, as in ``loss-spike``.

    ## Settings
    drop: Least relative fall of the level.
    sigmas: Least fall in standard errors.
    rows: Rows on either side whose levels are compared.
    ahead: Multiple of the fall over the rows before.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_shifts.jsonl --rule loss-drop --format brief
    warning   loss-drop            attempt 0  step 1130..1600  loss 1.754, expected 2.344

    ## Sources
    - Loss too low on repeated data, and drops that no data explains: training-loss-patterns.md of
      ml-engineering (stas00).
    """
    looked = False
    for raw in signals(run, "loss"):
        signal = evened(raw.finite())
        signal = signal.at(signal.values > 0)
        if len(signal) < 0.9 * len(raw):
            continue
        found: list[Finding] = []
        for start, stop in _unbroken(settled(run, signal), signal.steps, rows):
            if stop - start < 3 * rows:
                continue
            looked = True
            x = np.log(signal.values[start:stop])
            for shift in _drops(x, rows=rows, least=-float(np.log1p(-drop)), sigmas=sigmas):
                if not _sudden(x, shift, rows, ahead) or at_edge(run, signal, start + shift.first):
                    continue
                severity: Severity = "warning"
                tags: tuple[str, ...] = ()
                if not run.has("epoch") and at_a_share(run, int(signal.steps[start + shift.first])):
                    severity, tags = "notice", ("epoch-edge",)
                inside = slice(start + shift.first, start + shift.last + 1)
                found.append(
                    finding(
                        run,
                        metric="loss",
                        rows=(int(signal.rows[inside][0]), int(signal.rows[inside][-1])),
                        severity=severity,
                        value=float(np.exp(-shift.after)),
                        expected=float(np.exp(-shift.before)),
                        score=shift.score,
                        tags=tags,
                    )
                )
        if len(found) < 3:
            yield from found
    if not looked:
        raise CannotLook(f"fewer than {3 * rows} positive losses after warm-up in every attempt")


def _unbroken(
    segments: list[tuple[int, int]], steps: np.ndarray, rows: int
) -> list[tuple[int, int]]:
    """Cut segments where more than ``rows`` rows are missing: nothing there was seen to drop."""
    apart = np.diff(steps)
    if not len(apart):
        return segments
    gaps = np.flatnonzero(apart > rows * np.median(apart)) + 1
    return [
        part
        for start, stop in segments
        for part in pairwise([start, *gaps[(gaps > start) & (gaps < stop)].tolist(), stop])
    ]


def _drops(x: np.ndarray, *, rows: int, least: float, sigmas: float) -> list[Shift]:
    """Return where a series drops, but for the ends of rises, behind which it is looked at anew."""
    found: list[Shift] = []
    start = 0
    for _ in range(RISES):
        more = [
            replace(s, first=s.first + start, last=s.last + start)
            for s in rises(-x[start:], rows=rows, least=least, sigmas=sigmas)
        ]
        back = next((s for s in more if _back_down(x, s, rows)), None)
        if back is None:
            return [*found, *more]
        found += [s for s in more if s.first < back.first]
        start = back.first
    return found


def _back_down(x: np.ndarray, shift: Shift, rows: int) -> bool:
    """Say whether a drop mostly takes back a rise: the loss has been nearly as low before."""
    if shift.first < rows:
        return False
    lowest = float(np.nanmin(trailing(x[: shift.first], rows)))
    return lowest + shift.after < NEWS * (shift.after - shift.before)


def _sudden(x: np.ndarray, shift: Shift, rows: int, ahead: float) -> bool:
    """Say whether most of the drop happened at once, and not as the run was falling anyway."""
    at, size = shift.first, shift.after - shift.before
    if at < 2 * rows:
        return False
    earlier, later = x[at - ABRUPT_ROWS : at], x[at : at + ABRUPT_ROWS]
    falling = float(np.median(x[at - 2 * rows : at - rows]) - np.median(x[at - rows : at]))
    at_once = float(np.median(earlier) - np.median(later))
    return at_once >= 0.7 * size and size >= ahead * falling
