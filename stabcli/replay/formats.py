"""Verdicts on batches that blow up, and on spikes that only a short number format sees."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stabcli.replay import words
from stabcli.replay.controls import Calibration
from stabcli.replay.explain import Excess, Explanation
from stabcli.replay.nonfinite import Blowup, first_nonfinite, in_float32, is_short
from stabcli.replay.notebook import Notebook
from stabcli.replay.probes import Grid, Measurement, Probe
from stabcli.replay.repair import Repairs
from stabcli.replay.verdict import Kind, Verdict

MANY_IDS = 8
"""IDs up to which a blow-up is said in IDs."""


def blown_up(book: Notebook, calibration: Calibration) -> Verdict:
    """The verdict on a batch whose loss or gradient is not finite."""
    probe, grid, m = book.probe, book.grid, book.measured
    assert m is not None
    where = first_nonfinite(probe, grid)
    named = None
    if where is None and not math.isfinite(m.loss):
        book.evidence.insert(0, "a second forward pass is finite where the first was not")
        return book.verdict("inconclusive")
    if where is None:
        book.evidence.insert(0, "the forward pass is finite: the backward pass is not")
    else:
        book.evidence.insert(0, words.blowup(where))
        named = _named(where, grid)
    culprits = () if named is None else book.culprits(named)
    unit = None if named is None else named.unit
    again = _in_wide(probe, (grid,))
    if again:
        wide = again[0]
        norm = wide.grad_norm or 0.0
        book.numbers |= {"loss_float32": wide.loss, "grad_norm_float32": norm}
        if math.isfinite(wide.loss) and math.isfinite(norm):
            book.evidence.insert(1, _in_float32(wide.loss, norm))
            return book.verdict("number-format", unit=unit, culprits=culprits, confidence="high")
    else:
        book.not_checked.append(_no_other_format(book))
    if named is not None:
        fixed = Repairs(probe, grid, m).losses(named.places)
        if math.isfinite(fixed.loss) and fixed.loss <= calibration.loss.limit:
            book.evidence.append(f"without these tokens the loss is {fixed.loss:.3f}")
            kind: Kind = "data-ids" if named.unit == "ids" else "data-segments"
            return book.verdict(kind, unit=unit, culprits=culprits, confidence="medium")
    return book.verdict("inconclusive", unit=unit, culprits=culprits)


def _named(where: Blowup, grid: Grid) -> Explanation | None:
    """The positions of the first bad module, as IDs where they are all the places of a few."""
    if not where.positions:
        return None
    places = frozenset(where.positions)
    ids = sorted({int(grid.tokens_BS[place]) for place in places})
    everywhere = {(b, c) for i in ids for b, c in (grid.tokens_BS == i).nonzero().tolist()}
    if len(ids) <= MANY_IDS and everywhere == places:
        return Explanation(unit="ids", ids=tuple(ids), places=places, bits=0.0, residual=0.0)
    return Explanation(unit="segments", places=places, bits=0.0, residual=0.0)


def controls_overflow(book: Notebook, calibration: Calibration) -> Verdict | None:
    """The verdict where clean batches are finite in float32 only; None where that is not so."""
    here = calibration.loss.middle, calibration.grad_norm.middle
    probe = book.probe
    if all(map(math.isfinite, here)):
        return None
    wide = _in_wide(probe, calibration.grids)
    if not wide or not all(
        math.isfinite(m.loss) and math.isfinite(m.grad_norm or 0.0) for m in wide
    ):
        return None
    loss = sum(m.loss for m in wide) / len(wide)
    book.evidence.insert(
        0,
        f"clean batches are not finite in this number format; in float32 their loss is {loss:.4g}",
    )
    return book.verdict("number-format", confidence="high")


def only_in_short_format(book: Notebook, excess: Excess) -> Verdict | None:
    """The verdict where float32 does not see the spike; None where it does, or there is none."""
    if not excess.any or not is_short(book.probe.model):
        return None
    again = _in_wide(book.probe, (book.grid,))
    if not again:
        book.not_checked.append(_no_other_format(book))
        return None
    wide = Excess.of(again[0], excess.calibration)
    book.numbers |= {"loss_float32": wide.loss, "grad_norm_float32": wide.grad_norm}
    if wide.any:
        return None
    book.evidence.insert(0, _in_float32(wide.loss, wide.grad_norm))
    return book.verdict("number-format", confidence="medium")


def _no_other_format(book: Notebook) -> str:
    if not is_short(book.probe.model):
        return "the number format of the run: the checkpoint is in float32"
    return "float32: there is no room for it beside the sharded model; start more processes"


def _in_wide(probe: Probe, grids: Sequence[Grid]) -> list[Measurement]:
    """The same weights in float32 over these grids; nothing where they are, or cannot be had."""
    if not is_short(probe.model):
        return []
    if probe.whole_here:
        with in_float32(probe.model):
            measured = [probe.measure(grid, backward=True) for grid in grids]
        probe.clear()
        return measured
    wide = probe.wide()
    if wide is None:
        return []
    measured = [wide.measure(grid, backward=True) for grid in grids]
    probe.forward_tokens += wide.forward_tokens
    probe.backward_tokens += wide.backward_tokens
    return measured


def _in_float32(loss: float, norm: float) -> str:
    return f"in float32 the same batch has loss {loss:.4g} and gradient norm {norm:.4g}"
