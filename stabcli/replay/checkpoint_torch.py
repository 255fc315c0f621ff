"""Checkpoints in one file: safetensors, torch state dicts, what nanoGPT and Lightning write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stabcli.errors import ReplayError
from stabcli.replay.pickles import Stub, load_torch
from stabcli.replay.stored import Shape, Stored, step_of

NESTS = ("state_dict", "model", "model_state_dict", "module", "weights", "net")
"""Keys under which trainers put the weights of the model."""
OPTIMIZERS = ("optimizer", "optimizer_state_dict", "optimizer_states", "optim")
STEPS = ("step", "iter_num", "global_step", "iteration", "steps", "iter")
CONFIGS = ("model_args", "config", "hyper_parameters", "args")

SAFE_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
"""Types of tensors as safetensors names them."""


def open_torch(path: Path) -> Stored:
    """Open a file of ``torch.save``: a state dict, bare or in a trainer's checkpoint.

    Raises:
        ReplayError: It holds more than data, is damaged, or holds no weights.
    """
    whole = load_torch(path, mmap=True)
    if not isinstance(whole, Mapping):
        raise ReplayError(
            f"{path}: holds a {type(whole).__name__}, not a state dict:"
            " save model.state_dict() instead"
        )
    weights = _weights(whole)
    if not weights:
        held = ", ".join(map(str, list(whole)[:8])) or "nothing"
        raise ReplayError(f"{path}: no weights in it: it holds {held[:160]}")
    lightning = "pytorch-lightning_version" in whole
    step = next((whole[k] for k in STEPS if _is_step(whole.get(k))), None)
    config = next((whole[k] for k in CONFIGS if isinstance(whole.get(k), Mapping)), None)
    state = next((whole[k] for k in OPTIMIZERS if whole.get(k)), None)
    if isinstance(state, Sequence):
        state = state[0]
    return Stored(
        format="lightning" if lightning else "torch",
        where=path,
        tensors={n: Shape(shape=tuple(t.shape), dtype=t.dtype) for n, t in weights.items()},
        read=lambda names: ((name, weights[name]) for name in names),
        optimizer=lambda: state,
        config=config,
        step=step_of(path) if step is None else int(step),
        notes=_stubs(whole),
    )


def _is_step(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _weights(whole: Mapping[Any, Any]) -> dict[str, Tensor]:
    """The mapping that is a state dict: the whole, or what a trainer put under a usual key."""
    for nested in (whole, *(whole.get(key) for key in NESTS)):
        if isinstance(nested, Mapping):
            found = {str(k): v for k, v in nested.items() if isinstance(v, Tensor)}
            if found and len(found) >= len(nested) / 2:
                return found
    return {}


def _stubs(whole: Mapping[Any, Any]) -> tuple[str, ...]:
    left = [str(k) for k, v in whole.items() if isinstance(v, Stub)]
    return (f"settings in it were left unread: {', '.join(left)[:80]}",) if left else ()


def open_safetensors(path: Path) -> Stored:
    """Open one safetensors file.

    Raises:
        ReplayError: It is damaged or holds nothing.
    """
    tensors = safetensors_shapes(path)
    if not tensors:
        raise ReplayError(f"{path}: no tensors in it: give a checkpoint")
    return Stored(
        format="torch",
        where=path,
        tensors=tensors,
        read=lambda names: read_safetensors(dict.fromkeys(names, path)),
        step=step_of(path),
    )


def safetensors_shapes(path: Path) -> dict[str, Shape]:
    """Names and shapes in a safetensors file; its header alone is read.

    Raises:
        ReplayError: It is damaged.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {
                name: Shape(shape=tuple(s.get_shape()), dtype=SAFE_DTYPES[s.get_dtype()])
                for name, s in slices.items()
            }
    except KeyError as error:
        raise ReplayError(
            f"{path}: tensors of type {error}: quantised weights are not replayed"
        ) from None
    except (SafetensorError, OSError, ValueError) as error:
        why = str(error).partition("\n")[0][:120]
        raise ReplayError(
            f"{path}: not a whole safetensors file: {why}: was it half written?"
        ) from None


def read_safetensors(files: Mapping[str, Path]) -> Iterator[tuple[str, Tensor]]:
    """Read tensors by name, file by file."""
    from safetensors import safe_open

    by_file: dict[Path, list[str]] = {}
    for name, path in files.items():
        by_file.setdefault(path, []).append(name)
    for path, names in by_file.items():
        with safe_open(path, "pt") as file:
            for name in names:
                yield name, file.get_tensor(name)


def read_torch(files: Mapping[str, Path]) -> Iterator[tuple[str, Tensor]]:
    """Read tensors by name from several state dicts, file by file."""
    by_file: dict[Path, list[str]] = {}
    for name, path in files.items():
        by_file.setdefault(path, []).append(name)
    for path, names in by_file.items():
        weights = load_torch(path, mmap=True)
        for name in names:
            yield name, weights[name]


def torch_shapes(path: Path) -> dict[str, Shape]:
    """Names and shapes of a state dict.

    Raises:
        ReplayError: It holds anything but tensors.
    """
    weights = load_torch(path, mmap=True)
    if not isinstance(weights, Mapping) or not all(isinstance(t, Tensor) for t in weights.values()):
        raise ReplayError(f"{path}: not a state dict: give the weights alone")
    return {str(n): Shape(shape=tuple(t.shape), dtype=t.dtype) for n, t in weights.items()}


def names_of(tensors: Iterable[str], most: int = 4) -> str:
    """The first names, and how many more."""
    names = list(tensors)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(name[:80] for name in names[:most]) + more
