"""The optimizer's state, where a checkpoint has it: never-trained rows, and what would jump."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

MOMENTS = ("exp_avg", "exp_avg_sq")
BETAS = (0.9, 0.95)
"""Adam's decay rates where the state does not say."""


Moments = Mapping[str, Mapping[str, Any]]
"""Adam's state of each parameter, by its name."""


def moments_of(model: nn.Module, state: Any) -> tuple[Moments, str]:
    """Find the state of each trained parameter.

    Args:
        model: The model, with the parameters that were trained.
        state: An optimizer's ``state_dict()``, or moments by parameter name; None = none.

    Returns:
        The moments, or nothing and why there is nothing.
    """
    if state is None:
        return {}, "the checkpoint has no optimizer state"
    trained = _trained(model)
    try:
        found = _by_number(trained, state) if "state" in state else _by_name(trained, state)
    except (AttributeError, KeyError, TypeError, ValueError, IndexError):
        found = {}
    if not found:
        return {}, "the optimizer state is not Adam's, or of other parameters"
    lacking = [name for name, _ in trained if name not in found]
    return (found, "") if not lacking else ({}, f"the optimizer state lacks {lacking[0]}")


def adam_of(model: nn.Module, moments: Moments, state: Any) -> torch.optim.AdamW:
    """Make Adam of the model's parameters, with the moments and the settings it had."""
    groups = state.get("param_groups") if isinstance(state, Mapping) else None
    first: Mapping[str, Any] = groups[0] if groups else {}
    trained = _trained(model)
    adam = torch.optim.AdamW(
        [p for _, p in trained],
        lr=float(first.get("lr", 1e-4)),
        betas=tuple(first.get("betas", BETAS)),
        eps=float(first.get("eps", 1e-8)),
        weight_decay=float(first.get("weight_decay", 0.0)),
    )
    for name, parameter in trained:
        own = moments[name]
        adam.state[parameter] = {
            "step": torch.as_tensor(own.get("step", 1000.0), dtype=torch.float32).reshape(()),
            **{m: own[m].to(parameter.device, torch.float32, copy=True) for m in MOMENTS},
        }
    return adam


def _by_name(
    trained: list[tuple[str, nn.Parameter]], state: Mapping[str, Mapping[str, Tensor]]
) -> dict[str, Mapping[str, Tensor]]:
    """Moments under the parameters' own names, whatever stands before these."""
    found = {}
    for name, parameter in trained:
        for own, moments in state.items():
            if (own == name or own.endswith(f".{name}")) and _fits(moments, parameter):
                found[name] = moments
    return found


def _by_number(
    trained: list[tuple[str, nn.Parameter]], state: Mapping[str, Any]
) -> dict[str, Mapping[str, Tensor]]:
    """Moments by number: try the orders in which trainers hand parameters over.

    One list as the model names them, or matrices before vectors (nanoGPT), which is also what
    transformers' decayed and undecayed parameters come to. Shapes decide.
    """
    numbers = [i for group in state["param_groups"] for i in group["params"]]
    moments = state["state"]
    split = sorted(trained, key=lambda entry: entry[1].ndim < 2)
    for order in (trained, split):
        if len(order) != len(numbers):
            continue
        pairs = list(zip(order, numbers, strict=True))
        if all(i in moments and _fits(moments[i], p) for (_, p), i in pairs):
            return {name: moments[i] for (name, _), i in pairs}
    return {}


def _fits(moments: Mapping[str, Any], parameter: nn.Parameter) -> bool:
    return all(
        isinstance(moments.get(m), Tensor) and moments[m].shape == parameter.shape for m in MOMENTS
    )


def jumps(model: nn.Module, adam: torch.optim.AdamW, *, most: int = 5) -> list[tuple[str, float]]:
    """Say which parameters the gradient in ``p.grad`` would move most, beside what is usual.

    Returns:
        Names, and the root-mean-square gradient over the root of the mean second moment: about 1
        on a usual batch; highest first.
    """
    found = []
    for name, parameter in _trained(model):
        state = adam.state.get(parameter)
        if not state or parameter.grad is None:
            continue
        decay = adam.param_groups[0]["betas"][1]
        unbiased = 1 - decay ** max(1.0, float(state["step"]))
        usual = float(state["exp_avg_sq"].double().mean()) / unbiased
        now = float(parameter.grad.double().square().mean())
        if usual > 0:
            found.append((name, (now / usual) ** 0.5))
    return sorted(found, key=lambda entry: -entry[1])[:most]


def _trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(n, p) for n, p in model.named_parameters() if p.requires_grad]
