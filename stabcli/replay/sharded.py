"""Replay of a model that is spread over several processes with FSDP2, under ``torchrun``.

Every process runs the same cascade on the same batch. A pass gives each its part of the sequences;
losses and shares are gathered, gradients stay where their weights are. So all processes come to the
same verdict, and the first prints it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from stabcli.replay.batch import IGNORED
from stabcli.replay.probes import Grid, Measurement, Probe


def shard(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Spread a model over the processes of a mesh, block by block, in place.

    The blocks are the members of the longest ``ModuleList``: the layers of any transformer.
    """
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList)]
    for block in max(lists, key=len, default=[]):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


class ShardedProbe(Probe):
    """A probe of a model that ``shard`` spread; every process has to make the same calls.

    Shares take a second pass: the whole gradient is there only once the first has ended.
    """

    def __init__(self, model: nn.Module, micro_rows: int | None = None) -> None:
        super().__init__(model, micro_rows)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def measure(self, grid: Grid, **how: Any) -> Measurement:
        """As of one process; rows that make the number even are added and taken away again."""
        rows = len(grid.tokens_BS)
        extra = -rows % self.world
        how["count"] = grid.count if how.get("count") is None else how["count"]
        m = super().measure(_padded(grid, extra), **how)
        if not extra:
            return m
        return replace(
            m,
            loss_BS=m.loss_BS[:rows],
            entropy_BS=m.entropy_BS[:rows],
            variance_BS=m.variance_BS[:rows],
            live_BS=m.live_BS[:rows],
            share_BS=None if m.share_BS is None else m.share_BS[:rows],
        )

    def _parts(self, grid: Grid) -> Iterator[Grid]:
        rows = len(grid.tokens_BS)
        step = min(rows, (self.micro_rows or rows) * self.world)
        for first in range(0, rows, step):
            mine = (min(rows, first + step) - first) // self.world
            begin = first + self.rank * mine
            yield grid.rows(list(range(begin, begin + mine)))

    def _single(self, grid: Grid) -> bool:  # noqa: ARG002 -- the base class asks of the grid
        return False

    def _gathered(self, part_BT: Tensor) -> Tensor:
        parts = [torch.empty_like(part_BT) for _ in range(self.world)]
        dist.all_gather(parts, part_BT.contiguous())
        return torch.cat(parts)

    def _pass(
        self, part: Grid, tokens_BT: Tensor, targets: int, *, backward: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        done = super()._pass(part, tokens_BT, targets, backward=backward)
        self.settle()
        # the passes of all processes together are one over the rows of all
        self.forward_tokens += tokens_BT.numel() * (self.world - 1)
        self.backward_tokens += tokens_BT.numel() * (self.world - 1) * backward
        return done

    @property
    def whole_here(self) -> bool:
        """No: the weights are spread."""
        return False

    def settle(self) -> None:
        """A forward alone leaves the root in one piece."""
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def _second_pass(self, grid: Grid, targets: int) -> list[Tensor]:
        return [share_BT / self.world for share_BT in super()._second_pass(grid, targets)]

    def _backward(self, loss: Tensor) -> None:
        super()._backward(loss * self.world)  # FSDP averages over the processes

    def norm_of(self, gradients: Iterable[Tensor]) -> float:
        """Norm of all these tensors together, over all processes."""
        squared = [self._squared(getattr(g, "_local_tensor", g)) for g in gradients]
        total = torch.tensor(math.fsum(squared), dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return math.sqrt(float(total))


def _padded(grid: Grid, extra: int) -> Grid:
    """The grid with copies of its first row that nothing is trained on."""
    if not extra:
        return grid
    tokens_ES = grid.tokens_BS[:1].expand(extra, -1)
    return Grid(
        tokens_BS=torch.cat([grid.tokens_BS, tokens_ES]),
        targets_BS=torch.cat([grid.targets_BS, torch.full_like(tokens_ES, IGNORED)]),
        mask_BS=_more(grid.mask_BS, extra),
        positions_BS=_more(grid.positions_BS, extra),
    )


def _more(value_BS: Tensor | None, extra: int) -> Tensor | None:
    return None if value_BS is None else torch.cat([value_BS, value_BS[:1].expand(extra, -1)])
