"""Disk: checkpoints that lie beside a log, told by how frameworks name them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from stabcli.joining.homes import home
from stabcli.run import Fact, Run

_END = r"(?:\.(?:pt|pth|ckpt|safetensors|bin|distcp|npz))?"
_NAMES = tuple(
    re.compile(pattern + _END)
    for pattern in (
        r"checkpoint[-_](?:step[-_]?)?(\d+)",  # transformers
        r"checkpoint_\d+_(\d+)",  # fairseq: epoch and updates
        r"global_step_?(\d+)",  # DeepSpeed, NeoX, verl
        r"iter_(\d{7})",  # Megatron
        r"step[-_]?(\d+)(?:-unsharded)?",  # torchtitan, OLMo, litgpt, levanter
        r"state_step(\d+)",  # modded-nanogpt
        r"ckpt[-_](?:step[-_]?)?(\d+)",
        r"ep\d+-ba(\d+)(?:-rank\d+)?",  # Composer: epoch and batch
        r"(?:.*-)?epoch=\d+-step=(\d+)(?:-last)?",  # Lightning, NeMo
    )
)
_INSIDE = re.compile(r"(?i)checkpoints?|ckpts?|weights|checkpoint_dir")
"""Folders of a run that hold nothing but checkpoints."""
LEAST = 1
"""Step from which a checkpoint is one of training."""


def saved_on_disk(runs: Sequence[Run], folders: Sequence[str]) -> list[Run]:
    """Give runs the checkpoints that lie in their homes, where nothing else tells of any.

    Args:
        runs: The runs, joined.
        folders: The folders that were asked about; beside a file given alone nothing is looked for.
    """
    roots = [str(Path(folder).resolve()) for folder in folders]
    owners: dict[str, list[int]] = {}
    for i, run in enumerate(runs):
        for place in {home(path) for path in run.files}:
            if any(Path(place).is_relative_to(root) for root in roots):
                owners.setdefault(place, []).append(i)
    made = list(runs)
    for place, indices in owners.items():
        if len(indices) != 1 or "checkpoints" in made[indices[0]].facts:
            continue
        steps, where = _checkpoints(Path(place))
        if steps:
            run = made[indices[0]]
            fact = Fact(value=tuple(sorted(steps)), source=f"names in the folder {where}")
            made[indices[0]] = replace(run, facts={**run.facts, "checkpoints": fact})
    return made


def _checkpoints(folder: Path) -> tuple[set[int], str]:
    """Return the steps of the checkpoints in a folder or one inside it, and where they are."""
    for place in (folder, *_inner(folder)):
        with suppress(OSError):
            steps = {step for path in place.iterdir() if (step := _step(path.name)) is not None}
            if steps:
                return steps, place.name
    return set(), ""


def _inner(folder: Path) -> list[Path]:
    with suppress(OSError):
        return sorted(p for p in folder.iterdir() if _INSIDE.fullmatch(p.name) and p.is_dir())
    return []


def is_checkpoint(name: str) -> bool:
    """Say whether a file or folder is named as a checkpoint is."""
    return _step(name) is not None


def _step(name: str) -> int | None:
    for pattern in _NAMES:
        if (found := pattern.fullmatch(name)) and int(found[1]) >= LEAST:
            return int(found[1])
    return None
