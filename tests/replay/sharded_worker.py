"""What each of two processes does in the tests of sharded replay."""

import os
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from stabcli.replay.batch import Batch
from stabcli.replay.cascade import replay
from stabcli.replay.nonfinite import first_nonfinite
from stabcli.replay.probes import Grid, Probe
from stabcli.replay.processes import Group
from tests.replay.models import untrained

ROWS, LENGTH, IDS = 5, 24, 97
SMALL = {
    "vocab_size": IDS, "hidden_size": 32, "intermediate_size": 60, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 64, "pad_token_id": None, "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip


def built(arch):
    if arch == "llama-biases":
        config = LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True, tie_word_embeddings=False)
        return LlamaForCausalLM(config)
    if arch == "llama-tied":
        return LlamaForCausalLM(LlamaConfig(**SMALL, tie_word_embeddings=True))
    if arch == "mixtral":
        return MixtralForCausalLM(MixtralConfig(**SMALL, num_local_experts=4))
    if arch == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(**SMALL, tie_word_embeddings=False))
    return untrained(arch, IDS, width=32, layers=2)


def model_of(arch):
    torch.manual_seed(0)
    return noisy(built(arch))


def noisy(model):
    """The model with weights that are no start's: gains off one, biases off zero."""
    model.eval()
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


def overflowing(model):
    """Make one unit of an MLP, which one process of two holds, overflow at one ID."""
    with torch.no_grad():
        model.get_input_embeddings().weight[7, 0] = 1e15
        model.model.layers[1].mlp.up_proj.weight[1, 0] = 1e38
    return model


def measured(probe, bad):
    """Of one pass, and of several."""
    one = probe.measure(Grid.of(bad), backward=True, shares=True)
    parts = type(probe)(probe.model, micro_rows=2)
    return one, parts.measure(Grid.of(bad), backward=True, shares=True)


def compare(rank, arch, way, results):
    """Measure and replay in one process and in two."""
    bad, references = batch_of(0, repeated=True), [batch_of(i) for i in range(1, 5)]
    alone = Probe(model_of(arch))
    one, _ = measured(alone, bad)
    verdict = replay(alone.model, bad, references)
    group = Group(device="cpu", world=2, mesh=init_device_mesh("cpu", (2,)), way=way)
    model = group.spread(model_of(arch))
    held = sum(getattr(p, "to_local", lambda p=p: p)().numel() for p in model.parameters())
    two, parts = measured(group.probe(model, None), bad)
    shared = replay(model, bad, references, probe=group.probe(model, None))
    blown = SimpleNamespace(module=None, positions=None), None
    if way == "tp":
        grid = Grid.of(bad)
        blown = (
            first_nonfinite(Probe(overflowing(model_of(arch)), 2), grid),
            first_nonfinite(group.probe(group.spread(overflowing(model_of(arch))), 2), grid),
        )
    if rank == 0:
        largest = one.share_BS.abs().max()
        results.put(
            {
                "loss": (one.loss, two.loss, parts.loss),
                "norm": (one.grad_norm, two.grad_norm, parts.grad_norm),
                "coverage": (one.coverage, two.coverage, parts.coverage),
                "losses": float((one.loss_BS - two.loss_BS).abs().max()),
                "share": max(
                    float((one.share_BS - m.share_BS).abs().max() / largest) for m in (two, parts)
                ),
                "rows": float((one.row_norms_V - two.row_norms_V).abs().max()),
                "kinds": (verdict.kind, shared.kind),
                "positions": verdict.positions == shared.positions,
                "held": held / sum(p.numel() for p in alone.model.parameters()),
                "blown": [b and (b.module, b.positions) for b in blown],
            }
        )


def short_format(way):
    """The verdict on a batch that overflows in float16 only; then where float32 cannot be had."""
    model = model_of("llama")
    with torch.no_grad():
        model.get_input_embeddings().weight[7, 0] = 1e4
        model.model.layers[1].mlp.up_proj.weight[1, 0] = 1.5e4
    weights = {k: v.half() for k, v in model.state_dict().items()}
    group = Group(device="cpu", world=2, mesh=init_device_mesh("cpu", (2,)), way=way)

    def spread(dtype):
        made = model_of("llama")
        made.load_state_dict(weights)
        return group.spread(made.to(dtype))

    short, verdicts = spread(torch.float16), []
    controls = [batch_of(i) for i in range(1, 5)]
    for control in controls:
        control.tokens_BT[control.tokens_BT == 7] = 8
    for wide in (lambda: group.probe(spread(torch.float32), None), lambda: None):
        probe = group.probe(short, None)
        probe.wide = wide
        verdicts.append(replay(short, batch_of(0, repeated=True), controls, probe=probe))
    return [(v.kind, v.not_checked) for v in verdicts]


def run(rank, port, archs, way, results):
    """One of two processes; rank 0 reports."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    try:
        for arch in archs:
            compare(rank, arch, way, results)
        formats = short_format(way)
        if rank == 0:
            results.put(formats)
    finally:
        dist.destroy_process_group()
