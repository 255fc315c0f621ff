"""Files that torch wrote are pickles, and a pickle can run any code: only data is let through.

What is not plain data is refused by its name before anything of the file is built. A few classes
that trainers leave in their checkpoints and that carry settings only (``argparse.Namespace``) are
replaced by an empty class of ours; the real one is never imported.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any

import torch

from stabcli.errors import ReplayError

HARMLESS = (
    "argparse.Namespace",
    "pathlib.PosixPath",
    "pathlib.WindowsPath",
    "pathlib._local.PosixPath",
    "pathlib._local.WindowsPath",
    "datetime.datetime",
    "datetime.timedelta",
    "lightning.fabric.utilities.data.AttributeDict",
    "lightning_fabric.utilities.data.AttributeDict",
    "pytorch_lightning.utilities.parsing.AttributeDict",
    "omegaconf.dictconfig.DictConfig",
    "omegaconf.listconfig.ListConfig",
    "omegaconf.base.ContainerMetadata",
    "omegaconf.base.Metadata",
    "omegaconf.nodes.AnyNode",
    "typing.Any",
    "transformers.training_args.TrainingArguments",
    "megatron.core.enums.ModelType",
    "megatron.core.transformer.enums.AttnBackend",
)
"""Settings that trainers leave in checkpoints: each becomes an empty object, its own code is never
imported. Anything else that is not data is refused."""


class Stub:
    """Stands for an object of a checkpoint that nobody needs; takes anything, does nothing."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __setstate__(self, state: object) -> None:
        """Forget the state."""

    def __setitem__(self, key: object, value: object) -> None:
        """Forget an item: some of these classes are dictionaries."""

    def append(self, value: object) -> None:
        """Forget an element."""

    extend = update = append


def load_torch(path: Path, *, mmap: bool = False) -> Any:
    """Read a file of ``torch.save`` as data.

    Args:
        path: The file.
        mmap: Leave tensors in the file until they are used.

    Raises:
        ReplayError: It is damaged, or holds more than data, and what that is.
    """
    unsafe = _unsafe(path)
    refused = sorted(name for name in unsafe if name not in HARMLESS)
    if refused:
        raise ReplayError(
            f"{path}: a pickle in it wants {', '.join(refused[:4])}"
            f"{' and more' if len(refused) > 4 else ''}: refused, nothing was run: save the weights"
            " alone with torch.save(model.state_dict(), …) or as safetensors"
        )
    stubs = [(Stub, name) for name in unsafe]
    try:
        with torch.serialization.safe_globals(stubs):  # type: ignore[arg-type]
            mapped = mmap and _is_zip(path)
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        raise ReplayError(f"{path}: {_reason(error)}: refused, nothing was run") from None
    except Exception as error:  # a damaged file can break torch in any way
        raise ReplayError(
            f"{path}: not a whole file of torch.save: {_reason(error)}: was it half written?"
        ) from None


def _unsafe(path: Path) -> list[str]:
    """Names in the pickles of a file that are not on torch's list of data."""
    try:
        if _is_zip(path):
            return list(torch.serialization.get_unsafe_globals_in_checkpoint(path))
        return [n for n in _globals(path.read_bytes()) if not _is_data(n)]
    except (RuntimeError, ValueError, pickle.UnpicklingError, OSError) as error:
        raise ReplayError(
            f"{path}: not a whole file of torch.save: {_reason(error)}: was it half written?"
        ) from None
    except Exception as error:  # the disassembler of torch meets bytes it does not know
        raise ReplayError(f"{path}: not a file of torch.save: {_reason(error)}") from None


def _is_zip(path: Path) -> bool:
    """Tell the format as torch does, by its first bytes: the end of a file may lie."""
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _is_data(name: str) -> bool:
    from torch import _weights_only_unpickler

    return name in _weights_only_unpickler._get_allowed_globals()


def _globals(raw: bytes) -> set[str]:
    """Names that the pickles at the beginning of ``raw`` ask for, without building anything."""
    names: set[str] = set()
    stream = io.BytesIO(raw)
    for _ in range(5):  # the old format of torch: a number, versions, the object, its tensors
        texts: list[str] = []
        try:
            for code, argument, _ in pickletools.genops(stream):
                if code.name in ("GLOBAL", "INST"):
                    names.add(str(argument).replace(" ", "."))
                elif code.name == "STACK_GLOBAL":
                    names.add(".".join(texts[-2:]))
                elif isinstance(argument, str):
                    texts.append(argument)
        except (ValueError, EOFError, IndexError, UnicodeDecodeError):
            break
    return names


def _reason(error: BaseException) -> str:
    """The first sentence of what a library says."""
    said = " ".join(str(error).split())
    for mark in ("Unsupported global: ", "Unsupported class "):
        if mark in said:
            return f"a pickle in it wants {said.partition(mark)[2].split(' was ')[0][:80]}"
    return (said.partition(". ")[0] or type(error).__name__)[:120].rstrip(".")
