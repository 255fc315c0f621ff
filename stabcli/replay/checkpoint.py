"""Checkpoints: find out what one is, and make the model of it, with nothing left uninitialised.

Only safetensors and what ``weights_only`` reads; code that a checkpoint wants to run is refused by
name. The one code that is run is the user's own: ``--model package.module:factory``.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stabcli.errors import ReplayError
from stabcli.replay.checkpoint_dcp import open_dcp
from stabcli.replay.checkpoint_hf import build_hf, check_size, hf_config, open_hf, quiet
from stabcli.replay.checkpoint_names import fit, to_hf
from stabcli.replay.checkpoint_peft import base_folder, open_peft, put_on
from stabcli.replay.checkpoint_torch import names_of, open_safetensors, open_torch
from stabcli.replay.stored import Stored, step_of

MEGATRON = (
    "a Megatron checkpoint: convert it first, with tools/checkpoint/convert.py of Megatron-LM or"
    " AutoBridge.export_ckpt of Megatron-Bridge, and give the Hugging Face folder"
)
DEEPSPEED = (
    "a DeepSpeed ZeRO checkpoint: join its parts first with `python zero_to_fp32.py . joined` in"
    " that folder (the script lies beside `latest`), and give what it writes"
)
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loaded:
    """A model as the checkpoint has it."""

    model: nn.Module
    """In evaluation mode, on its device."""
    stored: Stored
    """What it was made of."""
    notes: tuple[str, ...]
    """What loading had to decide, and what the checkpoint had that nobody needs."""
    nonfinite: tuple[str, ...]
    """Tensors that hold NaN or infinities."""


def open_checkpoint(path: Path) -> Stored:
    """Find out what a checkpoint is and what it holds; no weights are read.

    Raises:
        ReplayError: It is none, is damaged, wants to run code, or is of a kind to convert first.
    """
    if path.is_dir():
        return _folder(path)
    if not path.is_file():
        raise ReplayError(f"{path}: no such file or folder: give a checkpoint")
    if not path.stat().st_size:
        raise ReplayError(f"{path}: empty: is the checkpoint half written?")
    if path.suffix == ".safetensors":
        return open_safetensors(path)
    return open_torch(path)


def _folder(path: Path) -> Stored:
    names = {entry.name for entry in path.iterdir()}
    if names & {"latest_checkpointed_iteration.txt", "common.pt"} or any(
        n.startswith("mp_rank_") and (path / n / "model_optim_rng.pt").is_file() for n in names
    ):
        raise ReplayError(f"{path}: {MEGATRON}")
    if "adapter_config.json" in names:
        return open_peft(path)
    if "config.json" in names:
        return open_hf(path)
    if "zero_to_fp32.py" in names or any("zero_pp_rank_" in n for n in names):
        raise ReplayError(f"{path}: {DEEPSPEED}")
    if ".metadata" in names:
        return open_dcp(path)
    inner = sorted(
        (n for n in names if step_of(path / n) is not None and (path / n).is_dir()),
        key=lambda n: step_of(path / n) or 0,
    )
    if inner:
        shown = ", ".join(inner[-4:])
        raise ReplayError(f"{path}: holds several checkpoints: give one of them, of late {shown}")
    held = ", ".join(sorted(names)[:6]) or "nothing"
    if any(n.endswith(".distcp") for n in names):
        raise ReplayError(
            f"{path}: shards without their .metadata: is the checkpoint half written?"
        )
    raise ReplayError(f"{path}: no checkpoint of a kind known: it holds {held}")


def load(
    stored: Stored,
    *,
    model: str | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Loaded:
    """Make the model and read its weights.

    Args:
        stored: The checkpoint.
        model: ``package.module:factory``, or a folder with a config.json; for an adapter the
            folder of its base. None = the checkpoint says.
        dtype: Type of the weights.
        device: Where to put it.

    Raises:
        ReplayError: Tensors are missing, of other shapes, or no model is known.
    """
    notes = list(stored.notes)
    if stored.format == "peft":
        made = _adapted(stored, model, dtype, notes)
    elif stored.format == "hf" and model is None:
        made, missing, extra = build_hf(stored, dtype)
        _complain(stored, missing, extra, notes)
    else:
        made = _filled(stored, _made(stored, model), dtype, notes)
    made = made.to(device=device)
    made.eval()
    for parameter in made.parameters():
        parameter.grad = None
    return Loaded(model=made, stored=stored, notes=tuple(notes), nonfinite=stored.nonfinite())


def base_of(stored: Stored, model: str | None) -> Stored | None:
    """Open what an adapter sits on; None for whole models.

    Raises:
        ReplayError: There is no such folder.
    """
    if stored.format != "peft":
        return None
    folder = Path(model) if model else base_folder(stored)
    if folder is None or not folder.is_dir():
        named = stored.config.get("base_model_name_or_path")
        raise ReplayError(
            f"{stored.where}: an adapter of {str(named)[:80]!r}, which is no folder here:"
            " give its base with --model FOLDER"
        )
    base = open_checkpoint(folder)
    if base.format != "hf":
        raise ReplayError(f"{folder}: the base of an adapter has to be a Hugging Face folder")
    return base


def _adapted(stored: Stored, model: str | None, dtype: torch.dtype, notes: list[str]) -> nn.Module:
    base = base_of(stored, model)
    assert base is not None
    made, missing, extra = build_hf(base, dtype)
    _complain(base, missing, extra, notes)
    put_on(made, stored, dtype)
    notes.append(f"a LoRA adapter on {base.where}, which is frozen")
    return made


def _made(stored: Stored, model: str | None) -> nn.Module:
    """The model with weights of its own making, and buffers that are right."""
    if model is None:
        raise ReplayError(
            f"{stored.where}: weights without a model: give its class with"
            " --model package.module:factory, or a folder with a config.json"
        )
    if Path(model).is_dir():
        from transformers import AutoModelForCausalLM

        config = hf_config(Path(model))
        check_size(config, stored)
        with quiet():
            made: nn.Module = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        return made
    made = _called(_factory(model), stored.config, model)
    if not isinstance(made, nn.Module):
        raise ReplayError(f"--model {model}: gives a {type(made).__name__}, not a torch.nn.Module")
    return made


def _factory(model: str) -> Callable[..., Any]:
    module, colon, name = model.partition(":")
    if not colon or not module or not name:
        raise ReplayError(f"--model {model}: no folder, and not package.module:factory")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ReplayError(f"--model {model}: cannot be imported: {error}: check the name") from None
    if not callable(found):
        raise ReplayError(f"--model {model}: not callable: name a class or a function")
    made: Callable[..., Any] = found
    return made


def _called(factory: Callable[..., Any], config: Any, model: str) -> Any:
    """Call a factory; with what the trainer left of the model's arguments if it needs one."""
    needed = [
        p
        for p in inspect.signature(factory).parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    try:
        if not needed:
            return factory()
        if len(needed) == 1 and config is not None:
            return factory(config)
    except Exception as error:  # the user's own code can fail in any way
        why = f"{type(error).__name__}: {str(error)[:120]}"
        raise ReplayError(f"--model {model}: {why}") from error
    wants = ", ".join(p.name for p in needed)
    raise ReplayError(
        f"--model {model}: needs {wants}: name a function without arguments, or with the one"
        " that gets the model_args of the checkpoint"
    )


def _filled(stored: Stored, made: nn.Module, dtype: torch.dtype, notes: list[str]) -> nn.Module:
    """Put the stored weights into a model; its buffers stay as it made them."""
    found = fit(made, stored.tensors)
    if found.misshaped:
        raise ReplayError(
            f"{stored.where}: other shapes than the model's: {names_of(found.misshaped, 3)}"
        )
    _complain(stored, list(found.missing), list(found.extra), notes)
    for parameter in made.parameters():  # not buffers: rotary frequencies stay float32
        parameter.data = parameter.data.to(dtype)
    places = made.state_dict()
    own = {theirs: name for name, theirs in found.names.items()}
    if found.titan:
        notes.append("torchtitan's names and head order became Hugging Face's")
    with torch.no_grad():
        for name, tensor in stored.read(list(own)):
            value = to_hf(own[name], tensor, made.config) if found.titan else tensor
            places[own[name]].copy_(value.to(places[own[name]].dtype))
    return made


def _complain(stored: Stored, missing: list[str], extra: list[str], notes: list[str]) -> None:
    """Refuse a checkpoint that lacks weights; note what it has too many.

    Raises:
        ReplayError: It lacks some.
    """
    if missing:
        also = f"; it has {names_of(extra, 2)} instead" if extra else ""
        raise ReplayError(
            f"{stored.where}: lacks {len(missing)} weights of the model: {names_of(missing)}{also}:"
            " wrong model class, or half written?"
        )
    if extra:
        notes.append(f"{len(extra)} tensors that the model has no place for: {names_of(extra)}")
