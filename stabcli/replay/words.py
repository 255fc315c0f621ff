"""The sentences of a verdict: one place, so that every report says the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stabcli.replay.controls import Calibration
from stabcli.replay.explain import Excess
from stabcli.replay.nonfinite import Blowup
from stabcli.replay.probes import Measurement
from stabcli.replay.proof import Proof
from stabcli.replay.state import Bisection
from stabcli.replay.verdict import Confidence, Culprit, Kind, Unit

if TYPE_CHECKING:
    from stabcli.replay.cascade import Context

__all__ = [
    "Confidence", "actions", "bisection", "blowup", "levels", "on_older", "proof", "spiked",
    "why_not_reproduced",
]  # fmt: skip


def levels(m: Measurement, cal: Calibration) -> str:
    """Loss and gradient norm beside the controls'."""
    parts = []
    for name, value, band in (
        ("loss", m.loss, cal.loss),
        ("gradient norm", m.grad_norm or 0.0, cal.grad_norm),
    ):
        side = "in" if value <= band.limit else "out of"
        parts.append(
            f"{name} {value:.4g} is {side} the band of {cal.batches} controls "
            f"(middle {band.middle:.4g}, limit {band.limit:.4g})"
        )
    return "; ".join(parts)


def blowup(where: Blowup) -> str:
    """Where a forward pass first stopped being finite."""
    weights = "finite" if where.parameters_finite else "not finite"
    return (
        f"the first module that is not finite is {where.module} ({where.kind}), at "
        f"{len(where.positions)} positions; its weights are {weights}, its input reaches "
        f"{where.largest_input:.3g}"
    )


def bisection(result: Bisection) -> str:
    """Which tensors made the state bad."""
    if result.tests == 1:
        return "one control alone is normal: which tensor is bad was not looked for"
    if not result.tensors:
        return "not even all weights of the older checkpoint make clean batches normal"
    if len(result.tensors) > 8 or not result.complete:
        return f"the state is bad all over: {len(result.tensors)} tensors remained under suspicion"
    return (
        f"clean batches are normal again with {', '.join(result.tensors)} of the older checkpoint"
    )


def proof(tested: Proof) -> list[str]:
    """What the tests of the named tokens gave."""
    explained = (
        f"cutting the named tokens out takes {tested.explained:.0%} of the excess away; cutting as "
        f"many others takes {tested.placebo:.0%}"
    )
    said = [explained]
    if tested.sufficient is not None:
        said.append(f"carried into clean sequences they bring {tested.sufficient:.0%} of it about")
    role = {
        "target": "they do harm by being predicted",
        "context": "they do harm by spoiling what follows",
        "both": "they do harm both by being predicted and by what follows",
    }[tested.role]
    said.append(f"{role}: not training on them, with them in place, takes {tested.untrained:.0%}")
    return said


def on_older(then: Excess) -> str:
    """The same batch on the older checkpoint."""
    side = "out of" if then.any else "in"
    return (
        f"on the older checkpoint the batch is {side} the band: loss {then.loss:.4g}, "
        f"gradient norm {then.grad_norm:.4g}"
    )


def spiked(context: Context, m: Measurement) -> str:
    """What the log has and the replay has not."""
    parts = []
    if context.logged_loss is not None:
        parts.append(f"loss {context.logged_loss:.4g} in the log, {m.loss:.4g} here")
    if context.logged_grad_norm is not None and m.grad_norm is not None:
        parts.append(f"gradient norm {context.logged_grad_norm:.4g} there, {m.grad_norm:.4g} here")
    return "; ".join(parts)


def why_not_reproduced(context: Context, step: int | None) -> list[str]:
    """What is still open when a spike does not come back."""
    still = ["whether hardware or a race made it: replay in the trainer, on the same nodes"]
    if context.mapping_correlation is None:
        still.append("whether these are the samples of that step: mapping not verified")
    if context.checkpoint_step is None or step is None:
        still.append("how far the checkpoint is from the step: steps unknown")
    elif context.checkpoint_step != step:
        still.append(
            f"the state at the step: the checkpoint is {step - context.checkpoint_step} steps older"
        )
    return still


def actions(kind: Kind, unit: Unit | None, culprits: tuple[Culprit, ...]) -> tuple[str, ...]:
    """What to do next, most useful first."""
    ids = ", ".join(str(c.token_id) for c in culprits[:8] if c.token_id is not None)
    rows = sorted({b for c in culprits for b, _ in c.positions})
    where = ", ".join(map(str, rows[:8])) + (" …" if len(rows) > 8 else "")
    roll = "roll back to the last checkpoint before the step"
    data = {
        "ids": f"{roll} and mask token IDs {ids} in the loss, or drop the documents that hold them",
        "segments": f"{roll} and skip sequences {where}; look at the named stretches' source",
        "sequences": f"{roll} and skip sequences {where}",
    }.get(unit or "", roll)
    said: dict[Kind, tuple[str, ...]] = {
        "invalid-input": ("compare the tokenizer with the model's vocabulary size",
                          f"check the tokenization of sequences {where}"),
        "label-fault": ("check the collator: label shift, loss mask, padding",),
        "checkpoint-nonfinite": ("roll back to an older checkpoint",),
        "state-fault": ("roll back further: this state was bad before the batch came",),
        "number-format": ("train these layers in bfloat16 or float32", "lower the loss scale"),
        "data-ids": (data, "search the data for other documents with these IDs"),
        "data-segments": (data, "filter such text (repetition, encoding) from the data"),
        "data-sequences": (data,),
        "batch-x-state": (data, "roll back further: the older checkpoint takes this batch well"),
        "hard-data": (f"{roll} and skip the step", "lower the learning rate over such data"),
        "anomalies": ("nothing at once: the batch did not spike; look at what is listed",),
        "not-reproduced": ("replay with the checkpoint nearest to the step",
                           "verify the mapping of steps to samples"),
        "inconclusive": ("give more control batches, a nearer checkpoint, and the log's level",),
        "no-fault": (),
    }  # fmt: skip
    return said[kind]
