"""Shares of layers that treat each position by itself but are no plain product: experts, their router.

transformers keeps the experts of a layer as one module with three-dimensional weights, and calls
kernels that sort positions by expert. Whatever happens inside, a position's output depends on that
position alone, so its share is ``d_t`` times the change of its output when the weights move along
the whole gradient ``G``: one forward pass with forward-mode derivatives, exact for any inside.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from stabcli.replay.forward import whole

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = ("Experts", "Router")
"""Parts of the names of such modules' classes."""


def is_apart(module: nn.Module) -> bool:
    """Whether a module with weights of its own treats each position by itself."""
    named = any(name in type(module).__name__ for name in NAMES)
    own = next(module.parameters(recurse=False), None)
    return named and own is not None and not isinstance(module, nn.Linear)


class Apart:
    """One call of such a module: what went in, and what came back of the gradient.

    Args:
        module: The module.
        arguments: Its arguments by place, and by name.
        outputs: What it gave.
        positions: Positions of the pass; outputs of other sizes have no share.
    """

    def __init__(
        self,
        module: nn.Module,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        outputs: Any,
        positions: int,
    ) -> None:
        self.module, self.positions = module, positions
        self.arguments = _detached(arguments[0]), _detached(arguments[1])
        self.gradients: dict[int, Tensor] = {}
        self.outputs = outputs
        """What the module is to give instead: the same, so that what comes back through one output
        is not told with what another, made of it inside, gives it."""
        if isinstance(outputs, Tensor):
            self.outputs = self._watched(outputs, 0)
        elif type(outputs) in (tuple, list):
            self.outputs = type(outputs)(self._watched(o, i) for i, o in enumerate(outputs))

    def _watched(self, output: Any, place: int) -> Any:
        if not isinstance(output, Tensor) or not output.requires_grad:
            return output
        alias = output.view_as(output)
        alias.register_hook(lambda d: self.gradients.update({place: d}))
        return alias

    def share(self, gradients: Mapping[str, Tensor]) -> Tensor | None:
        """Share of each position, (N,), float32; None where the outputs are of other sizes.

        Args:
            gradients: The whole gradient of the module's own parameters, by name.
        """
        with _plainly(self.module), torch.no_grad(), _quietly(), forward_ad.dual_level():
            weights = {
                name: forward_ad.make_dual(
                    whole(parameter.detach()), gradients[name].to(parameter.dtype)
                )
                for name, parameter in self.module.named_parameters(recurse=False)
                if name in gradients
            }
            again = torch.func.functional_call(self.module, weights, *self.arguments)
            moved = [
                forward_ad.unpack_dual(o).tangent if isinstance(o, Tensor) else None
                for o in _several(again)
            ]
        total: Tensor | None = None
        for place, d in self.gradients.items():
            tangent = moved[place]
            if tangent is None or d.numel() % self.positions:
                continue
            part_N = (tangent.float() * d.float()).view(self.positions, -1).sum(1)
            total = part_N if total is None else total + part_N
        return total


def _several(outputs: Any) -> tuple[Any, ...]:
    return tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)


def _detached(values: Any) -> Any:
    def plain(value: Any) -> Any:
        return value.detach() if isinstance(value, Tensor) else value

    if isinstance(values, dict):
        return {name: plain(value) for name, value in values.items()}
    return tuple(plain(value) for value in values)


@contextmanager
def _quietly() -> Iterator[None]:
    """The first use of forward-mode derivatives makes torch warn of what torch itself uses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


@contextmanager
def _plainly(module: nn.Module) -> Iterator[None]:
    """Hold a module to its own forward: kernels have no forward-mode derivatives."""
    config = getattr(module, "config", None)
    name = "_experts_implementation"
    was = getattr(config, name, None)
    if was is None:
        yield
        return
    setattr(config, name, "eager")
    try:
        yield
    finally:
        setattr(config, name, was)
