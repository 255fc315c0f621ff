"""LoRA adapters as PEFT writes them, on a base model.

The adapter stays apart from the base: only what was trained gets a gradient, else the gradient
norm would not be the one that was logged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stabcli.errors import ReplayError
from stabcli.replay.checkpoint_torch import (
    names_of,
    read_safetensors,
    read_torch,
    safetensors_shapes,
    torch_shapes,
)
from stabcli.replay.pickles import load_torch
from stabcli.replay.stored import Stored, inside, read_json, step_of

PREFIX = "base_model.model."
UNKNOWN = ("use_dora", "lora_bias", "layer_replication", "megatron_config", "use_qalora")
"""Settings of kinds of adapters that compute something else than W + B A."""


class Lora(nn.Module):
    """A linear layer and what was learnt beside it: ``W x + scale B A x``."""

    def __init__(self, base: nn.Linear, a_RI: Tensor, b_OR: Tensor, scale: float) -> None:
        super().__init__()
        rank = a_RI.shape[0]
        self.base, self.scale = base, scale
        self.lora_A = nn.Linear(base.in_features, rank, bias=False, device="meta")
        self.lora_B = nn.Linear(rank, base.out_features, bias=False, device="meta")
        self.lora_A.weight = nn.Parameter(a_RI)
        self.lora_B.weight = nn.Parameter(b_OR)

    def forward(self, x_BTI: Tensor) -> Tensor:
        """Return the activations after the layer, (B, T, O)."""
        learnt_BTO: Tensor = self.lora_B(self.lora_A(x_BTI))
        out_BTO: Tensor = self.base(x_BTI)
        return out_BTO + self.scale * learnt_BTO


def open_peft(folder: Path) -> Stored:
    """Open a folder with adapter_config.json.

    Raises:
        ReplayError: It is no LoRA, or its weights are missing or damaged.
    """
    config = read_json(inside(folder, "adapter_config.json"))
    kind = config.get("peft_type")
    odd = [name for name in UNKNOWN if config.get(name)]
    if kind != "LORA" or odd:
        what = f"peft_type {kind!r}" if kind != "LORA" else ", ".join(odd)
        raise ReplayError(
            f"{folder}: {what}: only plain LoRA is replayed: merge the adapter into its base with"
            " merge_and_unload() and give that folder"
        )
    for name in ("adapter_model.safetensors", "adapter_model.bin"):
        if (folder / name).exists():
            path = inside(folder, name)
            break
    else:
        raise ReplayError(f"{folder}: no adapter_model.safetensors: is it half written?")
    safe = path.suffix == ".safetensors"
    shapes = safetensors_shapes(path) if safe else torch_shapes(path)
    read = read_safetensors if safe else read_torch
    state, optimizer = folder / "trainer_state.json", folder / "optimizer.pt"
    step = read_json(state).get("global_step") if state.is_file() else None
    return Stored(
        format="peft",
        where=folder,
        tensors=shapes,
        read=lambda names: read(dict.fromkeys(names, path)),
        optimizer=lambda: (
            load_torch(inside(folder, optimizer.name), mmap=True) if optimizer.is_file() else None
        ),
        config=config,
        step=step if isinstance(step, int) else step_of(folder),
    )


def base_folder(stored: Stored) -> Path | None:
    """Return the folder of the base that an adapter names, where it is one on this machine."""
    named = stored.config.get("base_model_name_or_path")
    if not isinstance(named, str) or not named:
        return None
    for path in (Path(named), stored.where / named):
        if (path / "config.json").is_file():
            return path
    return None


def put_on(model: nn.Module, stored: Stored, dtype: torch.dtype) -> None:
    """Put an adapter on its base, which is frozen.

    Raises:
        ReplayError: The base has no layer for a part of it, or one of another shape.
    """
    for parameter in model.parameters():
        parameter.requires_grad_(False)  # noqa: FBT003
    config = stored.config
    pairs: dict[str, dict[str, Tensor]] = {}
    others = []
    for name, tensor in _read(stored):
        for part in ("lora_A", "lora_B"):
            if f".{part}." in name:
                pairs.setdefault(name.partition(f".{part}.")[0], {})[part] = tensor.to(dtype)
                break
        else:
            others.append((name, tensor))
    for place, pair in pairs.items():
        base = _module(model, place, stored)
        if not isinstance(base, nn.Linear) or set(pair) != {"lora_A", "lora_B"}:
            raise ReplayError(
                f"{stored.where}: {place}: no linear layer with both halves of a LoRA"
            )
        a_RI, b_OR = pair["lora_A"], pair["lora_B"]
        fits = a_RI.shape[1:] == (base.in_features,) and b_OR.shape[:1] == (base.out_features,)
        if not fits or a_RI.shape[0] != b_OR.shape[1]:
            raise ReplayError(
                f"{stored.where}: {place}: the adapter is {tuple(b_OR.shape)} x {tuple(a_RI.shape)},"
                f" the base {base.out_features} x {base.in_features}: is it another base?"
            )
        parent, _, last = place.rpartition(".")
        setattr(
            model.get_submodule(parent), last, Lora(base, a_RI, b_OR, _scale(config, place, a_RI))
        )
    _replace(model, others, stored, dtype)


def _read(stored: Stored) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in stored.read(stored.tensors):
        yield name.removeprefix(PREFIX), tensor


def _scale(config: dict[str, Any], place: str, a_RI: Tensor) -> float:
    """The factor of a layer's adapter; patterns name layers by the end of their name."""
    alpha = config.get("lora_alpha", 8)
    for pattern, value in (config.get("alpha_pattern") or {}).items():
        if place == pattern or place.endswith(f".{pattern}"):
            alpha = value
    rank = a_RI.shape[0]
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _module(model: nn.Module, place: str, stored: Stored) -> nn.Module:
    try:
        return model.get_submodule(place)
    except AttributeError:
        raise ReplayError(
            f"{stored.where}: the base has no layer {place}: is it another base?"
        ) from None


def _replace(
    model: nn.Module, tensors: list[tuple[str, Tensor]], stored: Stored, dtype: torch.dtype
) -> None:
    """Put in whole matrices that were trained beside the adapter (``modules_to_save``)."""
    places = dict(model.named_parameters(remove_duplicate=False))
    unknown = []
    for name, tensor in tensors:
        own = name.replace(".modules_to_save.default", "").replace(".original_module", "")
        if own not in places or places[own].shape != tensor.shape:
            unknown.append(name)
            continue
        with torch.no_grad():
            places[own].copy_(tensor.to(dtype))
        places[own].requires_grad_(True)  # noqa: FBT003
    if unknown:
        raise ReplayError(f"{stored.where}: the base has no place for {names_of(unknown)}")
