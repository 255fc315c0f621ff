"""What each of two processes does in the test of sharded replay."""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from stabcli.replay.batch import Batch
from stabcli.replay.cascade import replay
from stabcli.replay.probes import Grid, Probe
from stabcli.replay.sharded import ShardedProbe, shard
from tests.replay.models import untrained

ROWS, LENGTH, IDS = 5, 24, 97


def model_of(arch):
    model = untrained(arch, IDS, width=32, layers=2).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return model


def batch_of(seed, repeated=False):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(2, IDS, (ROWS, LENGTH), generator=generator)
    if repeated:
        tokens[1, 2:22] = 7
    return Batch(tokens_BT=tokens)


def compare(rank, arch, results):
    """Measure and replay in one process and in two."""
    bad, references = batch_of(0, repeated=True), [batch_of(i) for i in range(1, 5)]
    alone = Probe(model_of(arch))
    one = alone.measure(Grid.of(bad), backward=True, shares=True)
    verdict = replay(alone.model, bad, references)
    model = shard(model_of(arch), init_device_mesh("cpu", (2,)))
    held = sum(p.to_local().numel() for p in model.parameters())
    probe = ShardedProbe(model, micro_rows=2)
    two = probe.measure(Grid.of(bad), backward=True, shares=True)
    shared = replay(model, bad, references, probe=ShardedProbe(model))
    if rank == 0:
        results.put(
            {
                "loss": (one.loss, two.loss),
                "norm": (one.grad_norm, two.grad_norm),
                "coverage": (one.coverage, two.coverage),
                "share": float(
                    (one.share_BS - two.share_BS).abs().max() / one.share_BS.abs().max()
                ),
                "rows": float((one.row_norms_V - two.row_norms_V).abs().max()),
                "kinds": (verdict.kind, shared.kind),
                "positions": verdict.positions == shared.positions,
                "held": held / sum(p.numel() for p in alone.model.parameters()),
            }
        )


def run(rank, port, archs, results):
    """One of two processes; rank 0 reports."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    try:
        for arch in archs:
            compare(rank, arch, results)
    finally:
        dist.destroy_process_group()
