"""Processes that ``torchrun`` started: who is one of how many, and on which device."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from stabcli.errors import ReplayError
from stabcli.replay import memory
from stabcli.replay.probes import Probe
from stabcli.replay.sharded import ShardedProbe, shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The processes of this replay; one, unless ``torchrun`` started several."""

    device: str
    """Where this process computes."""
    world: int = 1
    """How many there are."""
    mesh: DeviceMesh | None = None

    @property
    def loads_on(self) -> str:
        """Where weights are read to: a model that is to be spread is never whole on a GPU."""
        return self.device if self.mesh is None else "cpu"

    def spread(self, model: nn.Module) -> nn.Module:
        """Spread a model over the processes; alone, leave it as it is."""
        return model if self.mesh is None else shard(model, self.mesh)

    def probe(self, model: nn.Module, micro_rows: int) -> Probe:
        """Return what makes passes over a model that ``spread`` gave."""
        kind = Probe if self.mesh is None else ShardedProbe
        return kind(model, micro_rows)


@contextlib.contextmanager
def together(asked: str) -> Iterator[Group]:
    """Join the processes that torchrun started, and part from them at the end.

    Args:
        asked: ``--device``.

    Raises:
        ReplayError: There is no such device.
    """
    device = memory.device_of(asked)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world < 2:
        yield Group(device=device)
        return
    if device == "cuda":
        local = int(os.environ.get("LOCAL_RANK", "0"))
        if local >= torch.cuda.device_count():
            raise ReplayError(
                f"torchrun: process {local} has no GPU, there are {torch.cuda.device_count()}:"
                " start one process a GPU"
            )
        torch.cuda.set_device(local)
        device = f"cuda:{local}"
    kind = device.partition(":")[0]
    dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    try:
        yield Group(device=device, world=world, mesh=init_device_mesh(kind, (world,)))
    finally:
        dist.destroy_process_group()
