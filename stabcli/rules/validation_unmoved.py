"""Rule ``validation-unmoved``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.beginnings import settled
from stabcli.epochs import at_a_share, at_edge
from stabcli.levels import noise
from stabcli.rules import CannotLook, Finding, finding, rule
from stabcli.run import Run
from stabcli.series import Signal, signals, slope
from stabcli.shifts import Shift, rises

BESIDE, TREND = 3, 6
"""Evaluations on either side of a shift whose medians are compared, and those before it whose slope
is carried on: what falls all the time has moved between any two."""


@rule(needs=("loss",), presets=("default",), since="0.1.0")
def validation_unmoved(
    run: Run, *, shift: float = 0.05, within: float = 0.01, sigmas: float = 5.5, rows: int = 32
) -> Iterator[Finding]:
    """Training loss moves to another level while validation loss stays where it was.

    ## What it finds
    The level (trimean) of ``rows`` logged losses lies at least ``shift`` above or below that of as
    many before them, by ``sigmas`` standard errors, while the median of up to three evaluations
    after it lies ``within`` that of as many before, carried on along their slope, two at least on
    either side: a notice. Left out
    are warm-up, changes of batch size or number of GPUs, leaps of the learning rate, and falls
    where an epoch ends. Evaluations that shake by more than ``within`` tell nothing.

    ## Why it matters
    The model is what it was: it is the training data, or how the loss is logged, that changed.
    That is a shuffle which puts like with like, repeated data, or another average over tokens, and
    none of them is cured by going back.

    ## What to do
    Compare the batches on both sides of ``first``: their source, their order, their masks. Leave
    the weights alone.

    ## When it errs
    An evaluation set that resembles neither the old nor the new training data does not move
    either, although the model may have changed.

    ## Settings
    shift: Least relative change of the level of the training loss.
    within: Most relative change of the validation loss.
    sigmas: Least change of the level in standard errors.
    rows: Rows on either side whose levels are compared.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_unmoved.jsonl --rule validation-unmoved --format brief
    notice    validation-unmoved   attempt 0  step 700..1100  loss 2.645, expected 2.442
    notice    validation-unmoved   attempt 0  step 1101..1600  loss 2.34, expected 2.566

    ## Sources
    - A training loss that shifted by phases while validation was flat, from a shuffle whose
      neighbours were alike: retrospective of Marin's 32B run, marin-32b-retro.md.
    """
    metric = "val_loss" if run.has("val_loss") else "val_perplexity"
    if not run.has(metric):
        raise CannotLook("the log has no val_loss or val_perplexity")
    evaluations = {s.attempt: s.finite() for s in signals(run, metric)}
    looked = False
    for raw in signals(run, "loss"):
        signal = raw.finite()
        signal = signal.at(signal.values > 0)
        evals = evaluations.get(signal.attempt)
        if evals is None or len(evals) < 4 or len(signal) < 0.9 * len(raw):
            continue
        nats = evals.values
        if metric == "val_perplexity":
            nats = np.log(np.maximum(nats, 1e-300))
        if noise(nats) > within * abs(float(np.median(nats))):
            continue
        for start, stop in settled(run, signal):
            if stop - start < 2 * rows:
                continue
            looked = True
            x = np.log(signal.values[start:stop])
            for sign, least in ((1.0, np.log1p(shift)), (-1.0, -np.log1p(-shift))):
                for found in rises(sign * x, rows=rows, least=float(least), sigmas=sigmas):
                    at = start + found.first
                    if sign < 0 and _epoch_ends(run, signal, at):
                        continue
                    last = start + found.last
                    if not _unmoved(evals.steps, nats, signal.steps[[at, last]], found, within):
                        continue
                    inside = sign * signal.values[at : last + 1]
                    yield finding(
                        run,
                        metric="loss",
                        rows=(int(signal.rows[at]), int(signal.rows[last])),
                        peak=int(signal.rows[at + int(np.argmax(inside))]),
                        severity="notice",
                        value=float(np.exp(sign * found.after)),
                        expected=float(np.exp(sign * found.before)),
                        score=found.score,
                    )
    if not looked:
        raise CannotLook(
            f"fewer than 4 steady evaluations beside {2 * rows} losses in every attempt"
        )


def _epoch_ends(run: Run, signal: Signal, at: int) -> bool:
    if run.has("epoch"):
        return at_edge(run, signal, at)
    return at_a_share(run, int(signal.steps[at]))


def _unmoved(
    steps: np.ndarray, nats: np.ndarray, span: np.ndarray, found: Shift, within: float
) -> bool:
    """Say whether evaluations within a shift are where those before it were."""
    earlier = np.flatnonzero(steps < span[0])[-TREND:]
    before = earlier[-BESIDE:]
    after = np.flatnonzero((steps >= span[0]) & (steps <= span[1]))[:BESIDE]
    if min(len(before), len(after)) < 2:
        return False
    level = float(np.median(nats[before]))
    fall = slope(steps[earlier], nats[earlier]) if len(earlier) >= BESIDE else 0.0
    apart = float(np.median(steps[after]) - np.median(steps[before]))
    moved = abs(float(np.median(nats[after])) - level - fall * apart)
    return moved <= min(within, (found.after - found.before) / 3) * abs(level)
