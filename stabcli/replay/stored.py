"""What a checkpoint holds, before any of it becomes a model: names, shapes, and how to read them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stabcli.errors import ReplayError

MOST_JSON = 1 << 28
"""Bytes of a JSON file in a checkpoint: the index of a trillion parameters is a hundredth of it."""

STEP = re.compile(r"(?:step|iter|checkpoint|global_?step|epoch=\d+-step)[-_=]?0*(\d+)$")
"""The step in the names that trainers give to checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A tensor that has not been read."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def numel(self) -> int:
        """Number of its elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stored:
    """A checkpoint on disk."""

    format: str
    """``hf``, ``torch``, ``dcp``, ``lightning`` or ``peft``."""
    where: Path
    """The file or folder."""
    tensors: Mapping[str, Shape]
    """Its weights by name."""
    read: Callable[[Iterable[str]], Iterator[tuple[str, Tensor]]]
    """Reads weights by name, one after the other, onto the CPU."""
    optimizer: Callable[[], Any] = field(default=lambda: None)
    """Reads the state of the optimizer: ``state_dict()`` of one, or its moments by the names of
    the parameters; None where the checkpoint has none."""
    config: Any = None
    """Arguments of the model that the trainer left in it, for a factory."""
    step: int | None = None
    """Step it was saved at."""
    notes: tuple[str, ...] = ()
    """What reading it had to decide."""

    @property
    def parameters(self) -> int:
        """Elements of all its tensors."""
        return sum(t.numel for t in self.tensors.values())

    @property
    def dtype(self) -> torch.dtype:
        """The type most of its elements have."""
        held: dict[torch.dtype, int] = {}
        for t in self.tensors.values():
            held[t.dtype] = held.get(t.dtype, 0) + t.numel
        floats = {d: n for d, n in held.items() if d.is_floating_point}
        return max(floats, key=floats.__getitem__, default=torch.float32)

    def nonfinite(self) -> tuple[str, ...]:
        """Names of the tensors that hold NaN or infinities; every one is read."""
        bad = []
        for name, tensor in self.read(self.tensors):
            if tensor.is_floating_point() and tensor.numel():
                # one pass, no mask: the sum of a finite tensor's extremes is finite
                extreme = tensor.float() if tensor.element_size() == 1 else tensor
                if not bool(torch.isfinite(torch.stack(torch.aminmax(extreme))).all()):
                    bad.append(name)
        return tuple(bad)


def inside(folder: Path, name: str) -> Path:
    """Return the path of a file that a checkpoint names, which must lie in its folder.

    Links out of the folder are refused, but for those of Hugging Face's cache, whose snapshots
    link to the blobs beside them.

    Raises:
        ReplayError: It leads elsewhere, or does not exist.
    """
    path = folder / name
    if Path(name).is_absolute() or ".." in Path(name).parts or "\\" in name:
        raise ReplayError(f"{folder}: names {name!r}, outside the folder: refused")
    home = folder.resolve()
    try:
        target = path.resolve(strict=True)
    except FileNotFoundError:
        raise ReplayError(f"{path}: no such file: is the checkpoint half written?") from None
    except OSError as error:
        raise ReplayError(f"{path}: cannot be read: {error.strerror}: check the path") from None
    in_cache = home.parent.name == "snapshots" and target.parent == home.parent.parent / "blobs"
    if not target.is_relative_to(home) and not in_cache:
        raise ReplayError(f"{path}: a link to {target}, outside the folder: refused")
    if not target.is_file():
        raise ReplayError(f"{path}: not a file: is the checkpoint half written?")
    return path


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object of a checkpoint.

    Raises:
        ReplayError: It is not one.
    """
    try:
        if path.stat().st_size > MOST_JSON:
            raise ReplayError(f"{path}: larger than 256 MiB: not a file of a checkpoint")
        value = json.loads(path.read_bytes())
    except RecursionError:
        raise ReplayError(f"{path}: nested too deep: not a file of a checkpoint") from None
    except (ValueError, OSError) as error:
        raise ReplayError(f"{path}: not JSON: {str(error)[:80]}: was it half written?") from None
    if not isinstance(value, dict):
        raise ReplayError(f"{path}: a {type(value).__name__}, not an object: was it half written?")
    return value


def step_of(path: Path) -> int | None:
    """Return the step that the name of a checkpoint tells."""
    found = STEP.search(path.name.removesuffix(path.suffix) if path.is_file() else path.name)
    return int(found.group(1)) if found else None
