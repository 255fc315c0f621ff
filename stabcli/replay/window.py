"""Which step of a window did the damage: take each one alone, with the optimizer as it was saved."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stabcli.replay.batch import Batch
from stabcli.replay.controls import prediction_limit
from stabcli.replay.probes import Grid, Probe, examined

LEAST_SPREAD = 1e-4
"""Nats by which the damage of sound steps differs at least."""

T_95 = (6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83, 1.81, 1.80, 1.78, 1.77, 1.76, 1.75,
        1.75, 1.74, 1.73, 1.73, 1.72)  # fmt: skip
"""95 % quantile of Student's t for 1, 2, … 20 degrees of freedom."""


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


def damages(
    probe: Probe,
    batches: Sequence[Batch],
    references: Sequence[Batch],
    optimizer: torch.optim.Optimizer,
    *,
    clip: float | None = None,
) -> list[StepDamage]:
    """Take one virtual optimizer step with each batch and see what it does to clean ones.

    The loss of the batch itself misleads: a shifted label shows one step late, in the gradient norm
    of the innocent batch after it. Model and optimizer are left as they were.

    Args:
        probe: The last checkpoint before the window.
        batches: The batches of the window, in order.
        references: Clean batches.
        optimizer: Of the model's parameters, with the state and learning rate it had.
        clip: Gradient norm the trainer clips to; None = none.
    """
    controls = [Grid.of(batch) for batch in references]
    weights = [p.detach().clone() for p in probe.parameters()]
    state: dict[str, Any] = copy.deepcopy(optimizer.state_dict())
    found = []
    with examined(probe.model):
        before = sum(probe.measure(grid).loss for grid in controls) / len(controls)
        for batch in batches:
            # anew each time, and before the first: the state may be shared with whoever loaded it
            optimizer.load_state_dict(copy.deepcopy(state))
            m = probe.measure(Grid.of(batch), backward=True)
            norm = m.grad_norm or 0.0
            if clip is not None and norm > clip:
                for parameter in probe.parameters():
                    if parameter.grad is not None:
                        parameter.grad.mul_(clip / norm)
            optimizer.step()
            probe.clear()
            after = sum(probe.measure(grid).loss for grid in controls) / len(controls)
            found.append(
                StepDamage(step=batch.step, loss=m.loss, grad_norm=norm, damage=after - before)
            )
            with torch.no_grad():
                for parameter, weight in zip(probe.parameters(), weights, strict=True):
                    parameter.copy_(weight)
    optimizer.load_state_dict(state)
    return found


def guilty(found: Sequence[StepDamage]) -> int | None:
    """Index of the step that did the damage; None where none stands out.

    It must hurt more than the 95 % prediction limit of the other steps' damage allows: that one of
    them did the damage is known beforehand. A step that merely does less good than all the others
    counts: one step of a small learning rate moves little, and the next ones follow its momentum.
    """
    if not found:
        return None
    worst = max(range(len(found)), key=lambda i: found[i].damage)
    others = [found[i].damage for i in range(len(found)) if i != worst]
    if len(others) < 2:
        return None
    limit = prediction_limit(others, LEAST_SPREAD, T_95)
    return worst if found[worst].damage > limit else None
