"""Checkpoints of torch.distributed.checkpoint, as torchtitan and FSDP write them.

Their ``.metadata`` is a pickle that torch reads with the plain unpickler, so it is read here, with
one that builds the classes of a description of tensors and nothing else. Objects that are not
tensors are pickles too (training state, schedulers): they are never asked for.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata

from stabcli.errors import ReplayError
from stabcli.replay.stored import Shape, Stored, inside, step_of

METADATA_CLASSES = {
    **dict.fromkeys(
        (
            *("Metadata", "MetadataIndex", "TensorStorageMetadata", "BytesStorageMetadata"),
            *("ChunkStorageMetadata", "TensorProperties", "StorageMeta", "_MEM_FORMAT_ENCODING"),
        ),
        "torch.distributed.checkpoint.metadata",
    ),
    "_StorageInfo": "torch.distributed.checkpoint.filesystem",
    "Size": "torch",
    "_get_layout": "torch.serialization",
    "OrderedDict": "collections",
}
"""Classes a ``.metadata`` is made of, and their modules, as torch 2.4 to 2.13 write it."""

PATHS = ("pathlib", "pathlib._local")
MOST_METADATA = 1 << 30
PARTS = 64
"""Tensors read at once."""
OPTIMIZER = ("optimizer.", "optim.")


class _Metadata(pickle.Unpickler):
    """Builds the description of a checkpoint; asks for nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class of the list, and refuse all others by name."""
        if METADATA_CLASSES.get(name) == module:
            return super().find_class(module, name)
        if module in PATHS and name in ("PosixPath", "WindowsPath", "PurePosixPath"):
            return Path
        kinds = (torch.dtype, torch.layout, torch.memory_format)
        if module == "torch" and isinstance(getattr(torch, name, None), kinds):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"it wants {module}.{name}")


class _Reader(FileSystemReader):
    """Reads with a description that was checked; the file is not unpickled again."""

    def __init__(self, folder: Path, checked: Metadata) -> None:
        super().__init__(folder)
        self._checked = checked

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        return self._checked


def open_dcp(folder: Path) -> Stored:
    """Open a folder with a ``.metadata``.

    Raises:
        ReplayError: It is damaged, wants to run code, or leads out of its folder.
    """
    metadata = read_metadata(folder)
    tensors = {
        name: Shape(shape=tuple(entry.size), dtype=entry.properties.dtype)
        for name, entry in metadata.state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    weights = {n: s for n, s in tensors.items() if not n.startswith(OPTIMIZER)}
    if not weights:
        raise ReplayError(f"{folder}: no weights in its .metadata: give a checkpoint of a model")

    def read(names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        return _read(folder, metadata, tensors, list(names))

    moments = {n: s for n, s in tensors.items() if n.startswith(OPTIMIZER)}
    return Stored(
        format="dcp",
        where=folder,
        tensors=weights,
        read=read,
        optimizer=lambda: _moments(dict(read(moments))) if moments else None,
        step=step_of(folder),
    )


def read_metadata(folder: Path) -> Metadata:
    """Read ``.metadata`` without running anything of it, and check where it leads.

    Raises:
        ReplayError: It is damaged, wants more than a description is made of, or leads outside.
    """
    path = inside(folder, ".metadata")
    if path.stat().st_size > MOST_METADATA:
        raise ReplayError(f"{path}: larger than 1 GiB: not a description of tensors")
    try:
        metadata = _Metadata(io.BytesIO(path.read_bytes())).load()
        storage = dict(metadata.storage_data or {})
        entries = dict(metadata.state_dict_metadata)
        relative = {str(info.relative_path) for info in storage.values()}
    except pickle.UnpicklingError as error:
        raise ReplayError(
            f"{path}: a pickle, and {str(error)[:100]}: refused, nothing was run: save the"
            " checkpoint again with torch.distributed.checkpoint"
        ) from None
    except Exception as error:  # a damaged pickle can break in any way
        why = f"{type(error).__name__}: {str(error)[:80]}"
        raise ReplayError(
            f"{path}: not a description of tensors: {why}: was it half written?"
        ) from None
    if not isinstance(metadata, Metadata) or not all(isinstance(name, str) for name in entries):
        raise ReplayError(f"{path}: not a description of tensors: was it half written?")
    for name in sorted(relative):
        inside(folder, name)
    if getattr(metadata, "storage_meta", None) is None:
        metadata.storage_meta = StorageMeta()
    return metadata


def _read(
    folder: Path, metadata: Metadata, shapes: Mapping[str, Shape], names: list[str]
) -> Iterator[tuple[str, Tensor]]:
    """Read tensors, whatever ranks they were sharded over."""
    import torch.distributed.checkpoint as dcp

    for first in range(0, len(names), PARTS):
        part = {
            name: torch.empty(shapes[name].shape, dtype=shapes[name].dtype)
            for name in names[first : first + PARTS]
        }
        try:
            _load(dcp, part, _Reader(folder, metadata))
        except CheckpointException as error:  # no Exception: torch wraps what went wrong in it
            inner: Any = next(iter(error.failures.values()), (error,))[0]
            why = " ".join(str(inner).split())[:120] or type(inner).__name__
            raise ReplayError(f"{folder}: cannot be read: {why}: was it half written?") from None
        yield from part.items()


def _load(dcp: Any, part: dict[str, Tensor], reader: FileSystemReader) -> None:
    """Load in this process alone; torch warns that there are no others."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(part, storage_reader=reader, no_dist=True)


def _moments(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Moments by the name of their parameter: ``optimizer.state.<parameter>.exp_avg_sq``."""
    found: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        parameter, _, moment = name.rpartition(".")
        for start in (*(p + "state." for p in OPTIMIZER), *OPTIMIZER):
            if parameter.startswith(start):
                found.setdefault(parameter.removeprefix(start), {})[moment] = tensor
                break
    return found
