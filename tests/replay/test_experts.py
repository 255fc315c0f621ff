"""Token shares of mixtures of experts, whose weights are one three-dimensional parameter a layer."""

import pytest
import torch
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from stabcli.replay.batch import Batch
from stabcli.replay.probes import Grid, Probe
from tests.replay.sharded_worker import IDS, SMALL, noisy

TWO_OF_FOUR = {"num_experts_per_tok": 2, "num_local_experts": 4}
MODELS = {
    "mixtral": lambda: MixtralForCausalLM(MixtralConfig(**SMALL, **TWO_OF_FOUR)),
    "gpt-oss": lambda: GptOssForCausalLM(GptOssConfig(**SMALL, **TWO_OF_FOUR)),
    "qwen3": lambda: Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            **SMALL, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24,
            norm_topk_prob=True,
        )
    ),
    "deepseek": lambda: DeepseekV3ForCausalLM(
        DeepseekV3Config(
            **SMALL | {"num_key_value_heads": 4}, moe_intermediate_size=24, n_routed_experts=8,
            n_group=2, topk_group=1, num_experts_per_tok=2, kv_lora_rank=16, q_lora_rank=16,
            qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, first_k_dense_replace=1,
        )
    ),
}  # fmt: skip


@pytest.mark.parametrize("arch", MODELS)
def test_shares_of_experts_are_exact(arch):
    """Whatever the experts do inside: biases, interleaved halves, several routings. The shares of a
    sequence are its own gradient times the whole one; in one pass or in several."""
    torch.manual_seed(0)
    model = noisy(MODELS[arch]())
    grid = Grid.of(Batch(tokens_BT=torch.randint(2, IDS, (4, 24))))
    one = Probe(model).measure(grid, backward=True, shares=True)
    many = Probe(model, micro_rows=3).measure(grid, backward=True, shares=True)
    whole = [p.grad.clone() for p in model.parameters()]
    each = []
    for row in range(4):
        Probe(model).measure(grid.rows([row]), backward=True, count=grid.count)
        own = [p.grad for p in model.parameters()]
        each.append(
            sum(float((a * b).sum()) for a, b in zip(own, whole, strict=True) if a is not None)
        )

    assert one.coverage == pytest.approx(1.0, abs=1e-3)
    # a layer's attention mixes positions, never sequences
    assert one.share_BS.sum(1).tolist() == pytest.approx(each, rel=1e-3)
    assert torch.allclose(one.share_BS, many.share_BS, atol=1e-5 * float(one.share_BS.abs().max()))
    assert model.config._experts_implementation != "eager"  # as it was
