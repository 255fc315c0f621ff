"""Replay of a model whose layers are split over several processes by its own ``tp_plan``.

Under ``torchrun``. Every process runs every sequence through its part of each layer (tensor parallel),
where ``sharded`` gives each its part of the sequences. transformers applies a plan while it reads its
own checkpoints, by machinery that changes with its versions; here a plan is put into torch's words,
for models from whatever checkpoint.

The share of a position needs no new formula. A layer split by columns has the output's gradient ``d``
in parts and the whole input ``a``, one split by rows the other way round, and ``d_t^T G a_t`` is the sum
of the same over the parts. What every process holds whole, norms above all, is counted by the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from stabcli.errors import ReplayError
from stabcli.replay.forward import here
from stabcli.replay.nonfinite import Blowup
from stabcli.replay.probes import Probe
from stabcli.replay.shares import Gradients, Shares, is_split, placed


def _gathering() -> ParallelStyle:
    return ColwiseParallel(output_layouts=Replicate())


def _splitting() -> ParallelStyle:
    return RowwiseParallel(input_layouts=Replicate())


STYLES: Mapping[str, Callable[[], ParallelStyle]] = {
    "colwise": ColwiseParallel,
    "colwise_rep": _gathering,
    "colwise_gather_output": _gathering,
    "rowwise": RowwiseParallel,
    "rowwise_rep": _splitting,
    "rowwise_split_input": _splitting,
    "embedding_rowwise": _splitting,
}
"""transformers' words for the ways of splitting a layer, and torch's."""
WHOLE = ("replicate",)
"""Words for what every process holds whole."""
HEADS = "replicated_with_grad_allreduce"
"""Word for a norm of single heads: held whole, but each process has other heads go through it."""


class Unsplittable(ReplayError):
    """A model that cannot be split by a plan; says why and what to do."""


def plan_of(model: nn.Module, world: int) -> dict[str, str]:
    """The plan that a model brings along.

    Args:
        model: The model.
        world: Processes to split it over.

    Returns:
        The style of each module, by names in which ``*`` is the number of a layer.

    Raises:
        Unsplittable: There is none, it has a style that is not known here, is another model's (an
            adapter has its base's), or the number of processes does not divide the heads.
    """
    name = type(model).__name__
    plan = getattr(model, "_tp_plan", None) or {}
    instead = "use --shard fsdp"
    if not plan:
        raise Unsplittable(f"--shard tp: {name} has no tp_plan: {instead}")
    for where, style in plan.items():
        if style not in (*STYLES, *WHOLE, HEADS):
            raise Unsplittable(
                f"--shard tp: the plan of {name} splits {where} as {style!r}, which is not known"
                f" here: {instead}"
            )
    config = getattr(model, "config", None)
    for kind in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config, kind, None)
        if isinstance(heads, int) and heads % world:
            what = kind.removeprefix("num_").replace("_", " ")
            raise Unsplittable(
                f"--shard tp: {world} processes do not divide {heads} {what}: start as many as"
                f" divide them, or {instead}"
            )
    if not {_general(own) for own, _ in model.named_modules()} & plan.keys():
        raise Unsplittable(f"--shard tp: the plan of {name} names no layer of it: {instead}")
    return dict(plan)


def split(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Split a model over the processes of a mesh by its own plan, in place.

    Raises:
        Unsplittable: It cannot be.
    """
    plan = plan_of(model, mesh.size())
    styles = {where: style for where, style in plan.items() if style in STYLES}
    tied = _tied(model)
    for names in tied:
        if len({_general(name) in styles for name in names}) > 1:  # one of the two would stay whole
            styles = {w: s for w, s in styles.items() if w not in map(_general, names)}
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    parallelize_module(model, mesh, {where: STYLES[style]() for where, style in styles.items()})
    for first, *others in tied:
        for other in others:
            model.get_submodule(other).weight = model.get_submodule(first).weight
    for tensor in (*model.parameters(), *model.buffers()):
        if not isinstance(tensor, DTensor) and tensor.device.type != mesh.device_type:
            tensor.data = tensor.data.to(mesh.device_type)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)  # what is split is a new parameter
    for name, module in model.named_modules():
        if plan.get(_general(name)) == HEADS:
            for parameter in module.parameters(recurse=False):
                if parameter.requires_grad:
                    parameter.register_hook(_summed)
                setattr(parameter, HEADS, True)
    return model


def _summed(gradient: Tensor) -> Tensor:
    """The sum over all processes of what one backward pass adds to a gradient."""
    total = gradient.clone()
    dist.all_reduce(total)
    return total


def _general(name: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def _tied(model: nn.Module) -> list[list[str]]:
    """Names of modules that have one and the same weight."""
    owners: dict[int, list[str]] = {}
    for name, module in model.named_modules():
        weight = module._parameters.get("weight")
        if weight is not None:
            owners.setdefault(id(weight), []).append(name)
    return [names for names in owners.values() if len(names) > 1]


class SplitProbe(Probe):
    """A probe of a model that ``split`` spread; every process has to make the same calls."""

    def __init__(self, model: nn.Module, micro_rows: int | None = None) -> None:
        super().__init__(model, micro_rows)
        self.first = dist.get_rank() == 0

    @property
    def whole_here(self) -> bool:
        """No: the weights are spread."""
        return False

    def _shares(self, tokens_BT: Tensor, gradients: Gradients | None = None) -> Shares:
        return Shares(self.model, tokens_BT, gradients, counted=self._counted)

    def _counted(self, parameter: Tensor) -> bool:
        """Whether this process has a part of the share that no other has."""
        return self.first or is_split(parameter) or hasattr(parameter, HEADS)

    def _backward(self, loss: Tensor) -> None:
        super()._backward(loss)
        for parameter in self.model.parameters():
            if isinstance(parameter, DTensor) and parameter.grad is not None:
                parameter.grad = placed(parameter.grad, parameter)

    def _kept(self, gradient: Tensor) -> Tensor:
        return gradient

    def _gathered(self, part_BT: Tensor) -> Tensor:
        """What the first process has: all have the same, and must not differ by a rounding."""
        part_BT = part_BT.contiguous()
        dist.broadcast(part_BT, 0)
        return part_BT

    def _gathered_share(self, part_BT: Tensor) -> Tensor:
        dist.all_reduce(part_BT)
        return part_BT

    def norm_of(self, gradients: Iterable[Tensor]) -> float:
        """Norm of all these tensors together: of the parts of all, and of what is whole once."""
        squared = [self._squared(here(g)) for g in gradients if self.first or is_split(g)]
        total = torch.tensor(math.fsum(squared), dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return math.sqrt(float(total))

    def agreed(self, found: Blowup | None) -> Blowup | None:
        """The earliest of what the processes found, with the positions of all that found it."""
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, found)
        return Blowup.earliest([each for each in everyone if each is not None])
