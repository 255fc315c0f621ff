"""Which step of a window did the damage: take each one alone, with the optimizer as it was saved."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stabcli.replay.batch import Batch
from stabcli.replay.controls import Calibration, prediction_limit
from stabcli.replay.probes import Grid, Probe, examined

LEAST_SPREAD = 1e-4
"""Nats by which the damage of sound steps differs at least."""

T_975 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13,
         2.12, 2.11, 2.10, 2.09, 2.09)  # fmt: skip
"""97.5 % quantile of Student's t for 1, 2, … 20 degrees of freedom: 5 % for the two measures of damage
together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDamage:
    """One step of the window, taken from the checkpoint."""

    step: int | None
    """Step of the batch."""
    loss: float
    """Loss of its batch before the step."""
    grad_norm: float
    """Gradient norm of its batch, unclipped."""
    damage: float
    """Rise of the loss of the controls by the step, nats; below 0 = it did good."""
    lasting: float
    """The same by all that the batch moves while Adam's momentum lasts, without what batches before
    it move: the whole of its own gradient, where one step takes a tenth of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What the steps of a window say together."""

    steps: tuple[StepDamage, ...] = ()
    odd: tuple[int, ...] = ()
    """Indices of those whose batch is out of the controls' band, in loss or gradient norm."""
    guilty: int | None = None
    """Index of the one that did the damage; None where none can be told from the others."""


def damages(
    probe: Probe,
    batches: Sequence[Batch],
    references: Sequence[Batch],
    optimizer: torch.optim.Optimizer,
    *,
    clip: float | None = None,
) -> list[StepDamage]:
    """Take virtual optimizer steps with each batch and see what they do to clean ones.

    The logged loss and gradient norm mislead: a shifted label shows one step late, in the gradient
    norm of the innocent batch after it. Model and optimizer are left as they were.

    Args:
        probe: The last checkpoint before the window.
        batches: The batches of the window, in order.
        references: Clean batches.
        optimizer: Adam of the model's parameters, with the state and learning rate it had.
        clip: Gradient norm the trainer clips to; None = none.
    """
    controls = [Grid.of(batch) for batch in references]
    weights = [p.detach().clone() for p in probe.parameters()]
    state: dict[str, Any] = copy.deepcopy(optimizer.state_dict())
    lasting: dict[str, Any] = copy.deepcopy(state)
    for group in lasting["param_groups"]:
        group["betas"] = (0.0, group["betas"][1])
    found = []

    def clean_loss() -> float:
        return sum(probe.measure(grid).loss for grid in controls) / len(controls)

    def change(start: dict[str, Any], gradients: list[torch.Tensor | None]) -> float:
        # anew each time, and before the first: the state may be shared with whoever loaded it
        optimizer.load_state_dict(copy.deepcopy(start))
        for parameter, gradient in zip(probe.parameters(), gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
        probe.clear()
        after = clean_loss()
        with torch.no_grad():
            for parameter, weight in zip(probe.parameters(), weights, strict=True):
                parameter.copy_(weight)
        return after - before

    with examined(probe.model):
        before = clean_loss()
        for batch in batches:
            m = probe.measure(Grid.of(batch), backward=True)
            norm = m.grad_norm or 0.0
            gradients = [p.grad for p in probe.parameters()]
            if clip is not None and norm > clip:
                gradients = [g if g is None else g * (clip / norm) for g in gradients]
            found.append(
                StepDamage(
                    step=batch.step, loss=m.loss, grad_norm=norm,
                    damage=change(state, gradients), lasting=change(lasting, gradients),
                )
            )  # fmt: skip
    optimizer.load_state_dict(state)
    return found


def judged(found: Sequence[StepDamage], calibration: Calibration) -> Window:
    """Which of the steps did the damage, if that can be told.

    Its batch must be out of the controls' band, and it must hurt more than the prediction limit of
    the sound steps' damage allows: by the step itself, which in the middle of a run is the sharper
    measure, or by all that its gradient moves in the end, without which one step of a small learning
    rate is lost among the others. A step that merely does less good than they do counts.
    """
    odd = tuple(
        i for i, each in enumerate(found)
        if not each.loss <= calibration.loss.limit
        or not each.grad_norm <= calibration.grad_norm.limit
    )  # fmt: skip
    sound = [each for i, each in enumerate(found) if i not in odd]
    if not odd or len(sound) < 2:
        return Window(steps=tuple(found), odd=odd)
    excess: dict[int, float] = {}
    for name in ("damage", "lasting"):
        limit = prediction_limit([getattr(s, name) for s in sound], LEAST_SPREAD, T_975)
        middle = sum(getattr(s, name) for s in sound) / len(sound)
        for i in odd:
            beyond = (getattr(found[i], name) - middle) / (limit - middle)
            # a step after which clean batches lose NaN did all the damage there is
            excess[i] = max(excess.get(i, 0.0), beyond if math.isfinite(beyond) else math.inf)
    worst = max(odd, key=lambda i: excess[i])
    return Window(steps=tuple(found), odd=odd, guilty=worst if excess[worst] > 1 else None)
