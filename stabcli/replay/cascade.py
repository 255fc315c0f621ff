"""The cascade: from a flagged batch and a checkpoint to a verdict, cheapest question first."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from stabcli.replay import formats, judge, screening, static, words
from stabcli.replay.batch import Batch
from stabcli.replay.context import Context, Settings
from stabcli.replay.controls import Calibration, calibrate
from stabcli.replay.explain import Excess, Race
from stabcli.replay.notebook import Notebook
from stabcli.replay.probes import Grid, Measurement, Probe, examined
from stabcli.replay.repair import Repairs
from stabcli.replay.state import LEVEL_TOLERANCE, NORM_RATIO, bad_state, bisect
from stabcli.replay.verdict import Unit, Verdict
from stabcli.replay.weights import weigh

__all__ = ["Context", "Settings", "replay"]

COVERED = (0.99, 1.01)
"""Sum of the shares over the squared gradient norm that counts as complete."""


def replay(
    model: nn.Module,
    batch: Batch,
    references: Sequence[Batch],
    *,
    context: Context | None = None,
    settings: Settings | None = None,
    older: nn.Module | None = None,
    second_moment_VD: Tensor | None = None,
    calibration: Calibration | None = None,
    probe: Probe | None = None,
) -> Verdict:
    """Run the batch on the model again and say what was wrong with it.

    Args:
        model: Maps tokens to logits of every position: a Hugging Face causal LM, or a module that
            returns logits (or a tuple that begins with them). It is left as it was, bit for bit,
            without gradients. Batches are sent to where its embedding stands.
        batch: The flagged batch.
        references: At least two clean batches of the same size, best from neighbouring steps.
        context: What the log and the checkpoint say.
        settings: How to replay.
        older: The same model from an earlier checkpoint: tells a bad batch from a bad meeting of
            batch and state.
        second_moment_VD: Adam's ``exp_avg_sq`` of the embedding: tells never-trained IDs.
        calibration: What ``calibrate`` gave for this checkpoint, where it is already known.
        probe: How passes are made, where not plainly: a sharded model's.

    Returns:
        The verdict, whatever it is.

    Raises:
        ReplayError: The model or the batch cannot be used at all.
    """
    context, settings = context or Context(), settings or Settings()
    probe = probe or Probe(model, settings.micro_rows)
    with examined(model):
        book = Notebook(probe, batch, references, context, settings, older)
        return _static(book) or _weights(book, second_moment_VD) or _dynamic(book, calibration)


def _static(book: Notebook) -> Verdict | None:
    """What the batch tells without the model."""
    context, batch = book.context, book.batch
    if batch.labels_BT is None:
        book.not_checked.append("label faults: the batch came without labels")
        if batch.loss_mask_BT is None and context.pad_id is None:
            book.not_checked.append("padding in the loss: no padding ID, no loss mask")
    for oddity in static.inspect(
        batch, book.probe.rows_V, pad_id=context.pad_id, tokenizer=context.tokenizer_size
    ):
        book.evidence.append(oddity.text)
        by_id = {c.token_id: c.note for c in oddity.culprits if c.token_id is not None}
        if oddity.kind is not None:
            unit: Unit = "ids" if by_id else "segments"
            return book.verdict(oddity.kind, unit=unit, culprits=oddity.culprits, confidence="high")
        book.leads += oddity.culprits
        book.notes |= by_id
    return None


def _weights(book: Notebook, second_moment_VD: Tensor | None) -> Verdict | None:
    """What the weights tell without a pass."""
    ids = book.batch.tokens_BT.unique().tolist()
    report = weigh(book.probe.model, ids, second_moment_VD)
    book.notes |= report.odd_rows
    if report.absurd:
        book.evidence.append(f"single weights far beyond all others in {report.absurd[0]}")
    if second_moment_VD is None:
        book.not_checked.append("which IDs were never trained: no optimizer state")
    if not report.nonfinite:
        return None
    book.evidence.insert(0, f"not finite: {', '.join(report.nonfinite[:4])}")
    hit = [i for i in report.nonfinite_rows if i in set(ids)]
    culprits = static.ids_at(book.batch.tokens_BT, hit, note="non-finite embedding row")
    return book.verdict("checkpoint-nonfinite", unit="ids", culprits=culprits, confidence="high")


def _dynamic(book: Notebook, calibration: Calibration | None) -> Verdict:
    """What passes over the controls and the batch tell."""
    probe = book.probe
    spent = probe.forward_tokens, probe.backward_tokens
    calibration = calibration or calibrate(probe, book.references, book.batch.sequences)
    settled = formats.controls_overflow(book, calibration) or _state(book, calibration)
    if settled is not None:
        return settled
    probe.forward_tokens, probe.backward_tokens = spent  # controls are not the batch's cost
    grid = Grid.of(book.batch)
    m = probe.measure(grid, backward=True, shares=True)
    _note(book, m, calibration)
    if not (math.isfinite(m.loss) and math.isfinite(m.grad_norm or 0.0)):
        return formats.blown_up(book, calibration)
    repairs, excess = Repairs(probe, grid, m), Excess.of(m, calibration)
    settled = formats.only_in_short_format(book, excess)
    if settled is not None:
        return settled
    found = screening.screen(calibration, grid, m, repairs)
    race = Race(grid, found, excess, repairs, probe.rows_V)
    own = [each.token_id for each in found.own_ids]
    best = race.run(dict.fromkeys([*book.notes, *_repeated_ids(book), *own]), m.row_norms_V)
    return judge.spike(book, race, best) if excess.any else judge.in_band(book, race, best)


def _state(book: Notebook, calibration: Calibration) -> Verdict | None:
    """Whether clean batches are off as well."""
    context = book.context
    book.numbers |= {
        "control_loss": calibration.loss.middle,
        "control_grad_norm": calibration.grad_norm.middle,
        "loss_band": calibration.loss.limit,
        "grad_norm_band": calibration.grad_norm.limit,
        "controls": float(calibration.batches),
    }
    usual_loss, usual_norm = context.usual_loss, context.usual_grad_norm
    if usual_loss is None and book.older is not None:
        with examined(book.older):
            older = Probe(book.older, book.settings.micro_rows)
            then = calibrate(older, book.references, book.batch.sequences)
        usual_loss, usual_norm = then.loss.middle, then.grad_norm.middle
    if usual_loss is None:
        book.not_checked.append(
            "whether the weights were already bad: no loss level of the log, no older checkpoint"
        )
    why = bad_state(calibration, usual_loss, usual_norm, book.probe.rows_V)
    if why is None:
        return None
    book.evidence.insert(0, why)
    if book.older is not None and usual_loss is not None:
        control = Grid.of(book.references[0])
        most_norm = None if usual_norm is None else NORM_RATIO * usual_norm
        found = bisect(book.probe, book.older, control, usual_loss + LEVEL_TOLERANCE, most_norm)
        book.evidence.insert(1, words.bisection(found))
    return book.verdict("state-fault", confidence="medium" if usual_loss is None else "high")


def _note(book: Notebook, m: Measurement, calibration: Calibration) -> None:
    """Write down what the pass over the batch gave."""
    book.measured = m
    book.numbers |= {"loss": m.loss, "grad_norm": m.grad_norm or 0.0}
    book.evidence.append(words.levels(m, calibration))
    if m.coverage is not None:
        book.numbers["share_coverage"] = m.coverage
        if not COVERED[0] <= m.coverage <= COVERED[1]:
            book.not_checked.append(
                f"{1 - m.coverage:.0%} of the squared gradient norm: layers without a share"
            )


def _repeated_ids(book: Notebook) -> list[int]:
    """IDs of repeated n-grams of the shortest kind: what one of three repeats is no lead."""
    ids = {
        int(book.batch.tokens_BT[place])
        for lead in book.leads
        if lead.note.startswith("period")
        for place in lead.positions
    }
    return sorted(ids) if len(ids) <= 3 else []
