"""Homes: where a run lives, which is the folder that all of its files are about."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from stabcli.run import Run

_INNER = re.compile(
    r"(?i)wandb|tensorboard|tensorboard_logs|tb|tb_logs|tb_log|events|runs|logs?|metrics|csv|files"
    r"|tracking|lightning_logs|version_\d+|checkpoint-\d+|checkpoints|\.hydra|configs?|conf|debug"
    r"|(offline-)?run-\d{8}_\d{6}-.+|attempt_\d+|rank[_-]?\d+"
    r"|[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d(_.*)?"
)
"""Folders that tools put into that of a run; the last is how transformers names those of events."""
_PACKED = re.compile(r"\.(gz|bz2|xz|zst|zstd)$")
_WANDB_RUN = re.compile(r"(offline-)?run-\d{8}_\d{6}-.+")


_TRACKER = re.compile(r"(?i)tensorboard|tensorboard_logs|tb|tb_logs|tb_log|events|runs|logs?|wandb")
_DATED = re.compile(r"\d{4}-?\d\d-?\d\d.*")
"""Folders of a tracker that begin with a date: a run each, which belongs to what lies above."""


def folders_of(run: Run) -> set[str]:
    """Return the folders that hold the files of a run, as real paths."""
    return {beside(path) for path in run.files}


def beside(path: str) -> str:
    """Return the folder of a file; of what W&B keeps for a run, the run's folder."""
    folder = Path(os.path.realpath(Path(path).parent))
    if folder.name in ("files", "logs") and _WANDB_RUN.fullmatch(folder.parent.name):
        folder = folder.parent
    return str(folder)


def home(path: str) -> str:
    """Return the folder that a file is about, as a real path: above all that tools put between."""
    folder = Path(os.path.realpath(Path(path).parent))
    while folder.parent != folder and (
        _INNER.fullmatch(folder.name)
        or (_DATED.fullmatch(folder.name) and _TRACKER.fullmatch(folder.parent.name))
    ):
        folder = folder.parent
    return str(folder)


def homes_of(run: Run) -> set[str]:
    """Return the homes of the files of a run; mostly one."""
    return {home(path) for path in run.files}


def grouped(keys: Iterable[set[str]]) -> list[list[int]]:
    """Return the indices of key sets that share a key, or are linked by others that do."""
    groups: list[tuple[set[str], list[int]]] = []
    for index, own in enumerate(keys):
        linked = [g for g in groups if g[0] & own]
        merged = (own.union(*(g[0] for g in linked)), sorted(i for g in linked for i in g[1]))
        merged[1].append(index)
        groups = [g for g in groups if not any(g is other for other in linked)]
        groups.append(merged)
    return sorted((indices for _, indices in groups), key=lambda indices: indices[0])


def common_folder(paths: Iterable[str]) -> Path:
    """Return the folder that holds all the files, as the user would name it."""
    parents = [str(Path(path).parent) for path in paths]
    try:
        return Path(os.path.commonpath(parents))
    except ValueError:  # some absolute, some not
        return Path(os.path.commonpath([os.path.abspath(p) for p in parents]))


def label(run: Run) -> str:
    """Return what to call the files of a run in one or two words."""
    names = [Path(path).name for path in run.files]
    if len(names) == 1:
        return names[0]
    folder = common_folder(run.files).name or "."
    return f"{names[0]} and {len(names) - 1} more" if len(names) < 4 else f"{folder}/"


NOT_TEXT = frozenset(
    {"tensorboard", "wandb", "hf-trainer", "jsonl", "csv", "parquet", "wandb-export"}
)
"""Readers of what no program prints on its console."""


def prints(run: Run) -> bool:
    """Say whether some of the files of a run may be what a program printed."""
    return not set(run.reader.split(" + ")) <= NOT_TEXT


def is_joinable(run: Run) -> bool:
    """Say whether a run was read from files on disk: pipes have no place of their own."""
    return all(os.path.isfile(path) for path in run.files)


def joined_name(parts: Sequence[Run]) -> str:
    """Return the name of a joined run: one that people gave it, else that of its folder."""
    for run in sorted(parts, key=lambda run: run.reader != "wandb"):
        last = run.name.rpartition("/")[2]
        if last not in _file_names(run) and not _INNER.fullmatch(last):
            return run.name
    above, slash, _ = parts[0].name.rpartition("/")
    if slash:
        return above
    return common_folder(path for run in parts for path in run.files).resolve().name


def _file_names(run: Run) -> set[str]:
    names = {Path(path).name for path in run.files}
    return names | {_PACKED.sub("", name) for name in names}
