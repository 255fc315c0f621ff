"""Names: which tensor of a checkpoint is which parameter of the model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from stabcli.replay.stored import Shape

WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "module.")
"""What torch.compile, FSDP, activation checkpointing and DDP put into the names."""
PREFIXES = ("", "model.", "module.", "state_dict.", "network.", "net.", "lm.", "model.model.",
            "app.model.", "llm.", "transformer.")  # fmt: skip
"""What trainers put before the names of the model's own parameters."""

TITAN = {
    "tok_embeddings.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "lm_head.weight": "lm_head.weight",
    "attention.wq.weight": "self_attn.q_proj.weight",
    "attention.wk.weight": "self_attn.k_proj.weight",
    "attention.wv.weight": "self_attn.v_proj.weight",
    "attention.qkv_linear.wq.weight": "self_attn.q_proj.weight",
    "attention.qkv_linear.wk.weight": "self_attn.k_proj.weight",
    "attention.qkv_linear.wv.weight": "self_attn.v_proj.weight",
    "attention.wo.weight": "self_attn.o_proj.weight",
    "feed_forward.w1.weight": "mlp.gate_proj.weight",
    "feed_forward.w3.weight": "mlp.up_proj.weight",
    "feed_forward.w2.weight": "mlp.down_proj.weight",
    "attention_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
}
"""Llama in torchtitan's words and in Hugging Face's.

Source: torchtitan, models/llama3/state_dict_adapter.py.
"""

_LAYER = re.compile(r"layers\.(\d+)\.(.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How a checkpoint and a model fit."""

    names: dict[str, str]
    """The checkpoint's name of each of the model's tensors."""
    missing: tuple[str, ...]
    """Parameters of the model that the checkpoint lacks; the model's names."""
    extra: tuple[str, ...]
    """Tensors of the checkpoint that the model has no place for; the checkpoint's names."""
    misshaped: tuple[str, ...]
    """Tensors of another shape, with both shapes."""
    titan: bool = False
    """Whether torchtitan's names became Hugging Face's."""


def fit(model: nn.Module, stored: Mapping[str, Shape]) -> Fit:
    """Find the checkpoint's tensor for each parameter and persistent buffer of a model."""
    places: dict[str, Tensor] = model.state_dict()
    names, titan = _best(set(places), stored)
    tied = {id(p): n for n, p in model.named_parameters()}
    of = dict(model.named_parameters(remove_duplicate=False))
    known: dict[int, str] = {id(of[n]): n for n in names if n in of}
    missing = []
    for name in places:
        if name in names or name not in of:  # a buffer is made by the model itself
            continue
        if id(of[name]) not in known:  # one matrix under two names may be stored under either
            missing.append(tied.get(id(of[name]), name))
    misshaped = [
        f"{name} ({_size(stored[own].shape)} stored, {_size(places[name].shape)} in the model)"
        for name, own in names.items()
        if tuple(stored[own].shape) != tuple(places[name].shape)
    ]
    used = set(names.values())
    extra = [n for n in stored if n not in used and "inv_freq" not in n]
    return Fit(
        names=names,
        missing=tuple(dict.fromkeys(missing)),
        extra=tuple(extra),
        misshaped=tuple(misshaped),
        titan=titan,
    )


def _best(places: set[str], stored: Iterable[str]) -> tuple[dict[str, str], bool]:
    """The prefix under which most names are the model's."""
    best: dict[str, str] = {}
    titan = False
    plain = {_unwrapped(name): name for name in stored}
    for prefix in PREFIXES:
        inner = {n.removeprefix(prefix): own for n, own in plain.items() if n.startswith(prefix)}
        found = {n: own for n, own in inner.items() if n in places}
        added = {prefix + n: own for n, own in plain.items() if prefix + n in places}
        as_hf = {hf: own for n, own in inner.items() if (hf := titan_name(n)) in places}
        for names, is_titan in ((found, False), (added, False), (as_hf, True)):
            if len(names) > len(best):
                best, titan = names, is_titan
    return best, titan


def _unwrapped(name: str) -> str:
    for wrapper in WRAPPERS[:3]:
        name = name.replace(wrapper, "")
    return name


def titan_name(name: str) -> str:
    """Return Hugging Face's name of a tensor of torchtitan's Llama; empty where it is none."""
    layer = _LAYER.fullmatch(name)
    if layer is None:
        return TITAN.get(name, "") if "." in name and "attention" not in name else ""
    inner = TITAN.get(layer.group(2), "")
    return f"model.layers.{layer.group(1)}.{inner}" if inner else ""


def to_hf(name: str, tensor: Tensor, config: Any) -> Tensor:
    """Return a tensor of torchtitan's Llama as Hugging Face lays it out.

    torchtitan turns neighbouring pairs of a head's dimensions, Hugging Face its two halves: the
    rows of the query and key matrices are in another order.
    """
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return tensor
    heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
    rows, columns = tensor.shape
    pairs = tensor.view(heads, rows // heads // 2, 2, columns)
    return pairs.transpose(1, 2).reshape(rows, columns)


def _size(shape: Iterable[int]) -> str:
    return " x ".join(map(str, shape)) or "one number"
