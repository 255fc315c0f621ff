"""Checkpoints of one tiny model in every format that trainers write."""

import json
import os
import pickle
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

V, D, T = 64, 32, 32


def llama(seed: int = 0, *, tied: bool = False) -> nn.Module:
    """A Llama with weights drawn at random, in evaluation mode."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=V, hidden_size=D, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=T,
        tie_word_embeddings=tied, pad_token_id=0, bos_token_id=1, eos_token_id=1,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


class Plain(nn.Module):
    """A user's own model: a table, a layer, a head; a buffer that no checkpoint holds."""

    def __init__(self, width: int = D) -> None:
        super().__init__()
        self.tok = nn.Embedding(V, width)
        self.mix = nn.Linear(width, width)
        self.head = nn.Linear(width, V, bias=False)
        self.register_buffer("scale", torch.full((), 0.5), persistent=False)

    def forward(self, tokens_BT):
        return self.head(torch.tanh(self.mix(self.tok(tokens_BT))) * self.scale)


def plain_of(config: dict) -> nn.Module:
    """A factory that wants what the trainer left of the model's arguments."""
    return Plain(width=config["width"])


def tokens(seed: int = 0, rows: int = 2, length: int = 16) -> torch.Tensor:
    return torch.from_numpy(np.random.RandomState(seed).randint(2, V, (rows, length)))


def same(a: nn.Module, b: nn.Module) -> bool:
    """Whether two models compute the same, which no buffer left to chance would allow."""
    x = tokens()
    with torch.no_grad():
        left, right = a(x), b(x)
    left, right = getattr(left, "logits", left), getattr(right, "logits", right)
    return torch.allclose(left, right, atol=1e-5)


def dcp(state: dict, folder: Path) -> Path:
    """Save as torch.distributed.checkpoint does, without processes."""
    import torch.distributed.checkpoint as library

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.save(state, checkpoint_id=folder, no_dist=True)
    return folder


def titan_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """A Llama's weights as torchtitan names and lays them out."""
    from stabcli.replay.checkpoint_names import TITAN

    inner = {hf: own for own, hf in TITAN.items() if "qkv" not in own and own != "lm_head.weight"}
    state = {}
    for name, tensor in model.state_dict().items():
        if name in inner:
            state[inner[name]] = tensor
            continue
        _, _, number, rest = name.split(".", 3)
        laid = tensor
        if rest.startswith(("self_attn.q", "self_attn.k")):
            heads = 4 if ".q_" in rest else 2
            rows, columns = tensor.shape
            halves = tensor.view(heads, 2, rows // heads // 2, columns)
            laid = halves.transpose(1, 2).reshape(rows, columns)
        state[f"layers.{number}.{inner[rest]}"] = laid
    return state


def adapter(folder: Path, base: Path, *, rank: int = 4, alpha: int = 8, **more) -> dict:
    """A LoRA on the queries of both layers as PEFT writes it; returns its tensors."""
    from safetensors.torch import save_file

    torch.manual_seed(5)
    folder.mkdir()
    tensors = {}
    for layer in (0, 1):
        place = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{place}.lora_A.weight"] = torch.randn(rank, D) * 0.1
        tensors[f"{place}.lora_B.weight"] = torch.randn(D, rank) * 0.1
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": ["q_proj"],
              "base_model_name_or_path": str(base), **more}  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return tensors


class Evil:
    """Unpickled by anything that runs code, it leaves a file behind."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return os.system, (f"touch {self.trace}",)


def evil_pickle(trace: Path) -> bytes:
    return pickle.dumps(Evil(trace))
