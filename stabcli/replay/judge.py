"""Verdicts on batches that a pass over them left finite: in the band, or out of it."""

from __future__ import annotations

from stabcli.replay import proof, words
from stabcli.replay.controls import Calibration, calibrate
from stabcli.replay.explain import ENOUGH, SUFFICIENT, Excess, Explanation, Race
from stabcli.replay.notebook import Notebook
from stabcli.replay.probes import Probe, examined
from stabcli.replay.verdict import Kind, Unit, Verdict

DIFFUSE = 0.6
"""Part of the excess below which a set is not called the culprit but the batch hard."""
MARGIN = 0.4
"""By how much a set must explain more than a placebo set of its size."""
PLACEBO = 0.25
"""Part of the excess a placebo set may explain where the verdict is to be sure. Most explain less
than nothing; next to a long fault there is little but its own victims to cut."""
WHOLE_ROWS = 0.9
"""Part of their sequences that stretches cover when the sequences are named instead."""
DRIFT = 0.1
"""Part of the excess that two runs of the same sequences may differ by and still be trusted."""


def in_band(book: Notebook, race: Race, best: Explanation | None) -> Verdict:
    """The verdict on a batch whose loss and gradient norm are usual."""
    context, calibration = book.context, race.calibration
    assert book.measured is not None
    culprits = () if best is None else book.culprits(best)
    unit = None if best is None else best.unit
    book.list_rest(race.found.segments, best)
    if _over(context.logged_loss, calibration.loss.limit) or _over(
        context.logged_grad_norm, calibration.grad_norm.limit
    ):
        book.evidence.insert(0, words.spiked(context, book.measured))
        book.not_checked += words.why_not_reproduced(context, book.batch.step)
        return book.verdict("not-reproduced", unit=unit, culprits=culprits, confidence="medium")
    if culprits:
        return book.verdict("anomalies", unit=unit, culprits=culprits, confidence="medium")
    return book.verdict("no-fault", confidence="medium")


def _over(value: float | None, limit: float) -> bool:
    """Whether a logged figure is out of the band; NaN and infinities are."""
    return value is not None and not value <= limit


def spike(book: Notebook, race: Race, best: Explanation | None) -> Verdict:
    """The verdict on a batch that is out of the band."""
    m, excess = book.measured, race.excess
    assert m is not None
    if best is None:
        held_BS = m.share_BS if excess.in_norm and m.share_BS is not None else m.loss_BS
        best = race.sequences(held_BS.sum(1).argsort(descending=True).tolist())
    if best is None:
        book.list_rest(race.found.segments, None)
        return book.verdict("hard-data", confidence="low")
    tested = proof.prove(best, race, book.settings.seed)
    drift = race.repairs.rerun(sorted({row for row, _ in best.places}))
    book.numbers |= {
        "explained": tested.explained,
        "placebo": tested.placebo,
        "untrained": tested.untrained,
        "tests": float(race.repairs.tests),
        "drift": drift,
    }
    if tested.sufficient is None:
        book.not_checked.append("sufficiency: no control has the shape of the batch")
    else:
        book.numbers["sufficient"] = tested.sufficient
    book.evidence[:0] = words.proof(tested)
    culprits = book.culprits(best, tested)
    book.list_rest(race.found.segments, best)
    if excess.in_loss and drift > DRIFT * (excess.loss - race.calibration.loss.middle):
        book.evidence.insert(0, f"two runs of the same sequences differ by {drift:.3g} nats")
        return book.verdict("inconclusive", unit=best.unit, culprits=culprits)
    if tested.explained < DIFFUSE or tested.explained - max(0.0, tested.placebo) < MARGIN:
        book.leads += culprits
        return book.verdict("hard-data", confidence="low")
    return _of_data(book, best, tested)


def _of_data(book: Notebook, best: Explanation, tested: proof.Proof) -> Verdict:
    unit = best.unit
    rows = {row for row, _ in best.places}
    if unit == "segments" and len(best.places) > WHOLE_ROWS * len(rows) * book.batch.length:
        unit = "sequences"
    kinds: dict[Unit, Kind] = {
        "ids": "data-ids",
        "segments": "data-segments",
        "sequences": "data-sequences",
    }
    kind = kinds[unit]
    if book.older is None:
        book.not_checked.append("whether an older checkpoint takes the batch well: none given")
    else:
        then = _on_older(book)
        book.evidence.append(words.on_older(then))
        book.numbers |= {"loss_older": then.loss, "grad_norm_older": then.grad_norm}
        if not then.any:
            kind = "batch-x-state"
    sure = tested.explained >= ENOUGH and tested.placebo <= PLACEBO
    brings = tested.sufficient is not None and tested.sufficient >= SUFFICIENT
    culprits = book.culprits(best, tested)
    return book.verdict(
        kind,
        unit=unit,
        culprits=culprits,
        confidence="high" if sure and brings else "medium" if sure else "low",
    )


def _on_older(book: Notebook) -> Excess:
    """The same batch on the older checkpoint, against the controls there."""
    assert book.older is not None
    with examined(book.older):
        probe = Probe(book.older, book.settings.micro_rows)
        calibration: Calibration = calibrate(probe, book.references, book.batch.sequences)
        return Excess.of(probe.measure(book.grid, backward=True), calibration)
