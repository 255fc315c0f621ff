"""Where a forward pass first stops being finite, and whether the number format is to blame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from stabcli.replay.forward import here
from stabcli.replay.probes import Grid, Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class Blowup:
    """The first module that gave NaN or infinities."""

    module: str
    """Its name in the model."""
    kind: str
    """Its class."""
    positions: tuple[tuple[int, int], ...]
    """(row, column) that were not finite there. Attention smears them on in later modules, so only
    those of the first module point at the culprit."""
    parameters_finite: bool
    """Whether its own weights are finite."""
    largest_input: float
    """Largest magnitude that went in, where it was finite."""
    before: int = 0
    """Modules that had run."""

    @classmethod
    def earliest(cls, found: Sequence[Blowup]) -> Blowup | None:
        """Of those that several processes found: the first, with the positions of all that found it."""
        if not found:
            return None
        first = min(found, key=lambda each: each.before)
        same = [each for each in found if each.before == first.before]
        return replace(
            first,
            positions=tuple(sorted({p for each in same for p in each.positions})),
            parameters_finite=all(each.parameters_finite for each in same),
            largest_input=max(each.largest_input for each in same),
        )


def first_nonfinite(probe: Probe, grid: Grid) -> Blowup | None:
    """Run the grid and name the first innermost module whose output is not finite."""
    found: list[Blowup] = []
    ran: list[str] = []
    handles = []

    def hook(name: str) -> Any:
        def look(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
            value = output[0] if isinstance(output, (tuple, list)) else output
            ran.append(name)
            if found or not isinstance(value, Tensor) or not value.is_floating_point():
                return
            bad = ~torch.isfinite(value)
            if not bad.any():
                return
            shape_BT = (rows, grid.tokens_BS.shape[1] - 1)
            places: list[list[int]] = []
            if value.ndim >= 2 and value.shape[:2] == shape_BT:
                places = bad.flatten(2).any(-1).nonzero().tolist() if value.ndim > 2 else []
            tensors = [here(a) for a in arguments if isinstance(a, Tensor)]
            inputs = [a for a in tensors if a.is_floating_point()]
            finite = [a[torch.isfinite(a)].abs().max() for a in inputs if torch.isfinite(a).any()]
            own = module.parameters(recurse=False)
            found.append(
                Blowup(
                    module=name,
                    kind=type(module).__name__,
                    positions=tuple((start + b, t) for b, t in places),
                    parameters_finite=all(bool(torch.isfinite(here(p)).all()) for p in own),
                    largest_input=max((float(f) for f in finite), default=0.0),
                    before=len(ran) - 1,
                )
            )

        return look

    for name, module in probe.model.named_modules():
        if not list(module.children()):
            handles.append(module.register_forward_hook(hook(name)))
    try:
        step = probe.micro_rows or len(grid.tokens_BS)
        for start in range(0, len(grid.tokens_BS), step):
            part = grid.rows(list(range(start, min(len(grid.tokens_BS), start + step))))
            rows = len(part.tokens_BS)
            probe.forward_tokens += part.tokens_BS[:, :-1].numel()
            with torch.no_grad():
                part.run(probe.model, probe.device)
            first: Blowup | None = probe.agreed(found[0] if found else None)
            if first is not None:
                return first
    finally:
        for handle in handles:
            handle.remove()
        probe.settle()
    return None


@contextmanager
def in_float32(model: nn.Module) -> Iterator[None]:
    """Hold a model in float32, where every number of a shorter format has its exact value.

    So the way back is exact as well: the weights are what they were, bit for bit.
    """
    tensors = [*model.parameters(), *model.buffers()]
    were = [t.dtype for t in tensors]
    try:
        for tensor in tensors:
            if tensor.is_floating_point() and tensor.dtype.itemsize < 4:
                tensor.data = tensor.data.float()
        yield
    finally:
        for tensor, dtype in zip(tensors, were, strict=True):
            if tensor.dtype != dtype:
                tensor.data = tensor.data.to(dtype)
                tensor.grad = None


def is_short(model: nn.Module) -> bool:
    """Whether any weight is in a format shorter than float32."""
    return any(p.is_floating_point() and p.dtype.itemsize < 4 for p in model.parameters())
