"""Processes that ``torchrun`` started: who is one of how many, and on which device."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from stabcli.errors import ReplayError
from stabcli.replay import memory
from stabcli.replay.choosing import Sharding
from stabcli.replay.probes import Probe
from stabcli.replay.sharded import ShardedProbe, shard
from stabcli.replay.split import SplitProbe, Unsplittable, plan_of, split

Way = Literal["fsdp", "tp"]
"""How weights are spread: every process has a slice of each and some of the sequences, or its part of
each layer and all sequences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The processes of this replay; one, unless ``torchrun`` started several."""

    device: str
    """Where this process computes."""
    world: int = 1
    """How many there are."""
    mesh: DeviceMesh | None = None
    way: Way = "fsdp"
    """How weights are spread."""

    def decided(self, asked: Sharding, model: nn.Module, sequences: int) -> Group:
        """The group with the way that was asked for, or that suits model and batch.

        FSDP gives each process some sequences: with fewer of them than processes some would idle,
        and the model's own plan is taken where it has one.

        Raises:
            Unsplittable: The model's plan was asked for and cannot be followed.
        """
        if self.mesh is None:
            return self
        if asked == "tp":
            plan_of(model, self.world)
        if asked != "auto" or sequences >= self.world:
            return replace(self, way="tp" if asked == "tp" else "fsdp")
        try:
            plan_of(model, self.world)
        except Unsplittable:
            return self
        return replace(self, way="tp")

    @property
    def loads_on(self) -> str:
        """Where weights are read to: a model that is to be spread is never whole on a GPU."""
        return self.device if self.mesh is None else "cpu"

    def agreed(self, fine: bool) -> bool:
        """Whether it is fine for all."""
        if self.mesh is None:
            return fine
        said = torch.tensor(int(fine), device=self.device)
        dist.all_reduce(said, dist.ReduceOp.MIN)
        return bool(said)

    def spread(self, model: nn.Module) -> nn.Module:
        """Spread a model over the processes; alone, leave it as it is."""
        if self.mesh is None:
            return model
        return split(model, self.mesh) if self.way == "tp" else shard(model, self.mesh)

    def probe(self, model: nn.Module, micro_rows: int) -> Probe:
        """Return what makes passes over a model that ``spread`` gave."""
        if self.mesh is None:
            return Probe(model, micro_rows)
        kind = SplitProbe if self.way == "tp" else ShardedProbe
        return kind(model, micro_rows)


@contextlib.contextmanager
def together(asked: str, sharding: Sharding = "auto") -> Iterator[Group]:
    """Join the processes that torchrun started, and part from them at the end.

    Args:
        asked: ``--device``.
        sharding: ``--shard``.

    Raises:
        ReplayError: There is no such device, or no processes to spread a model over.
    """
    device = memory.device_of(asked)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world < 2 and sharding != "auto":
        raise ReplayError(f"--shard {sharding}: this is one process: start several with torchrun")
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
