"""Folders as transformers writes them: config.json beside safetensors or ``.bin`` files."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stabcli.errors import ReplayError
from stabcli.replay.checkpoint_torch import (
    names_of,
    read_safetensors,
    read_torch,
    safetensors_shapes,
    torch_shapes,
)
from stabcli.replay.pickles import load_torch
from stabcli.replay.stored import Shape, Stored, inside, read_json, step_of

INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
SINGLE = ("model.safetensors", "pytorch_model.bin")

SLACK = 4
"""Times the parameters on disk that a config may describe: tied matrices are stored once."""


def open_hf(folder: Path) -> Stored:
    """Open a folder with its weights in one file or several.

    Raises:
        ReplayError: A file of it is missing, damaged, outside, or wants to run code.
    """
    files = weight_files(folder)
    shapes: dict[str, Shape] = {}
    where: dict[str, Path] = {}
    for path, wanted in files.items():
        held = safetensors_shapes(path) if path.suffix == ".safetensors" else torch_shapes(path)
        lacking = [name for name in wanted if name not in held]
        if lacking:
            raise ReplayError(f"{path}: lacks {names_of(lacking)}, which the index has in it")
        shapes |= held
        where |= dict.fromkeys(held, path)
    read = read_safetensors if next(iter(files)).suffix == ".safetensors" else read_torch
    state = folder / "trainer_state.json"
    step = read_json(state).get("global_step") if state.is_file() else None
    optimizer = folder / "optimizer.pt"
    return Stored(
        format="hf",
        where=folder,
        tensors=shapes,
        read=lambda names: read({name: where[name] for name in names}),
        optimizer=lambda: (
            load_torch(inside(folder, optimizer.name), mmap=True) if optimizer.is_file() else None
        ),
        step=step if isinstance(step, int) else step_of(folder),
    )


def weight_files(folder: Path) -> dict[Path, list[str]]:
    """The files of the weights, and the names an index says they hold (none without one).

    Raises:
        ReplayError: The index leads elsewhere, or there are no weights.
    """
    for name in INDEXES:
        if not (folder / name).is_file():
            continue
        weight_map = read_json(inside(folder, name)).get("weight_map")
        entries = weight_map.items() if isinstance(weight_map, dict) else ()
        if not entries or not all(isinstance(file, str) for _, file in entries):
            raise ReplayError(f"{folder / name}: no weight_map of names and files in it")
        files: dict[Path, list[str]] = {}
        for tensor, file in entries:
            files.setdefault(folder / file, []).append(tensor)
        for path in files:
            inside(
                folder, str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)
            )
            if path.suffix not in (".safetensors", ".bin"):
                raise ReplayError(f"{folder / name}: names {path.name}: not a file of weights")
        return files
    for name in SINGLE:
        if (folder / name).exists() or (folder / name).is_symlink():
            return {inside(folder, name): []}
    raise ReplayError(f"{folder}: a config.json but no weights: is the checkpoint half written?")


def build_hf(stored: Stored, dtype: torch.dtype) -> tuple[nn.Module, list[str], list[str]]:
    """Make the model of a folder; transformers loads it, for it knows every renaming.

    Returns:
        The model on the CPU, the names the checkpoint lacks, and those it has too many.

    Raises:
        ReplayError: The model needs code of the checkpoint's own, or tensors do not fit.
    """
    config = hf_config(stored.where)
    check_size(config, stored)
    from transformers import AutoModelForCausalLM

    with quiet():
        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                stored.where, dtype=dtype, local_files_only=True, trust_remote_code=False,
                weights_only=True, output_loading_info=True, ignore_mismatched_sizes=True,
            )  # fmt: skip
        except Exception as error:  # whatever a config can break in transformers
            why = " ".join(str(error).split())[:160]
            raise ReplayError(f"{stored.where}: transformers cannot load it: {why}") from error
    model, report = loaded
    misshaped = [
        entry[0] if isinstance(entry, tuple) else entry for entry in report["mismatched_keys"]
    ]
    if misshaped:
        raise ReplayError(
            f"{stored.where}: config.json and weights disagree on the shape of"
            f" {names_of(sorted(map(str, misshaped)))}: is it another model's config?"
        )
    return model, sorted(report["missing_keys"]), sorted(report["unexpected_keys"])


def hf_config(folder: Path) -> Any:
    """Read the config of a folder, without code of its own.

    Raises:
        ReplayError: It is none, or needs code that comes with the checkpoint.
    """
    path = inside(folder, "config.json")
    raw = read_json(path)
    from transformers import AutoConfig

    try:
        with quiet():
            return AutoConfig.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
    except Exception as error:  # whatever a config can break in transformers
        if "auto_map" in raw:
            raise ReplayError(
                f"{path}: needs code that comes with the checkpoint, which is not run: give the"
                " class with --model package.module:factory"
            ) from None
        why = " ".join(str(error).split())[:160]
        raise ReplayError(f"{path}: no config that transformers knows: {why}") from None


def skeleton(config: Any) -> nn.Module:
    """The model of a config without memory for its weights.

    Raises:
        ReplayError: There is no causal language model of this config.
    """
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"), quiet():
            model: nn.Module = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
            return model
    except Exception as error:  # whatever a config can break in transformers
        why = " ".join(str(error).split())[:160]
        raise ReplayError(f"config.json: no causal language model of it: {why}") from None


def check_size(config: Any, stored: Stored) -> None:
    """Refuse a config that describes a model far larger than its weights.

    Raises:
        ReplayError: It does.
    """
    described = sum(p.numel() for p in skeleton(config).parameters())
    if described > SLACK * stored.parameters + 1_000_000:
        raise ReplayError(
            f"{stored.where}: config.json describes {described:,} parameters, the files hold"
            f" {stored.parameters:,}: is the checkpoint half written?"
        )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from printing reports and bars of its own; ours says what matters."""
    from transformers.utils import logging as theirs

    log = logging.getLogger("transformers")
    level, bars = log.level, theirs.is_progress_bar_enabled()
    log.setLevel(logging.CRITICAL)
    theirs.disable_progress_bar()
    try:
        yield
    finally:
        log.setLevel(level)
        if bars:
            theirs.enable_progress_bar()
