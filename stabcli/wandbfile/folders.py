"""Folders of W&B: which files are one run, and what lies beside them.

The SDK makes a folder ``run-<time>-<id>`` (``offline-run-…`` without a network) each time a run is
started or resumed, with ``run-<id>.wandb`` in it. So the files of one id are the attempts of one
run. The link ``latest-run`` leads to one of them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stabcli.wandbfile.contents import WandbFile, read_wandb

ENDING = ".wandb"

_RUN_FOLDER = re.compile(r"(offline-)?run-")
_BEGUN = re.compile(r"run-(\d{8}_\d{6})-")
_YAML_KEY = re.compile(r"([^\s#][^:]*):\s*$")
_YAML_VALUE = re.compile(r"\s+value:\s+(\S.*?)\s*$")
_LONGEST = 1 << 24
"""Bytes of a config or metadata file up to which it is read."""


@dataclass(slots=True, kw_only=True)
class Opened:
    """A file that has been read."""

    shown: str
    """Its path below the folder that was given."""
    folder: Path | None
    """Where what the SDK writes beside it lies; None where that is unknown."""
    file: WandbFile

    @property
    def key(self) -> tuple[str, str]:
        """What tells runs apart."""
        about = self.file.about
        named = Path(self.shown).name.removesuffix(ENDING).removeprefix("run-")
        return about.project, about.run_id or named

    @property
    def begun(self) -> float:
        """Time it was begun: its own word, else the time in the name of its folder."""
        if self.file.about.started is not None:
            return self.file.about.started
        named = _BEGUN.search(str(self.folder))
        if named is None:
            return 0.0
        try:
            return datetime.strptime(named[1], "%Y%m%d_%H%M%S").replace(tzinfo=UTC).timestamp()
        except ValueError:
            return 0.0

    def config(self) -> dict[str, Any]:
        """Return what ``config.yaml`` says, as far as it is plain: a value a key."""
        found: dict[str, Any] = {}
        key = None
        for line in self._beside("config.yaml").splitlines():
            if named := _YAML_KEY.match(line):
                key = named[1].strip("\"'")
            elif key is not None and (value := _YAML_VALUE.match(line)):
                found[key] = _plain(value[1])
                key = None
        return found

    def metadata(self) -> dict[str, Any]:
        """Return what ``wandb-metadata.json`` says of the host."""
        try:
            found = json.loads(self._beside("wandb-metadata.json") or "{}")
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def _beside(self, name: str) -> str:
        if self.folder is None:
            return ""
        try:
            with (self.folder / "files" / name).open("rb") as file:
                return file.read(_LONGEST).decode("utf-8", "replace")
        except OSError:
            return ""


@dataclass(slots=True, kw_only=True)
class Plan:
    """One run: its files in the order they were begun."""

    files: list[Opened]
    notes: list[str] = field(default_factory=list)
    alone: bool = True
    """Whether no other run beside it has its name."""

    @property
    def name(self) -> str:
        """Its name for people, else its id."""
        named = [f.file.about.name for f in self.files if f.file.about.name]
        run_id = self.files[0].key[1]
        if not named:
            return run_id
        return named[-1] if self.alone else f"{named[-1]} ({run_id})"


def holds_runs(folder: Path) -> bool:
    """Say whether a folder is that of a run, or holds such folders."""
    return any(True for _ in run_files(folder))


def plans(folder: Path) -> list[Plan]:
    """Return the runs in a folder; what is left out is noted on the first."""
    left: list[str] = []
    opened: list[Opened] = []
    for path in run_files(folder):
        shown = str(path.relative_to(folder))
        try:
            file = read_wandb(path)
        except OSError as error:
            left.append(f"{shown} cannot be read ({error.strerror or error}): left out")
            continue
        if file.height:
            opened.append(Opened(shown=shown, folder=path.parent, file=file))
        elif not file.size:
            left.append(f"{shown} is empty: left out")
        else:
            damaged = f", {len(file.damaged):,} damaged stretches" if file.damaged else ""
            left.append(f"{shown} holds no logged value{damaged}: left out")
    runs: dict[tuple[str, str], list[Opened]] = {}
    for one in sorted(opened, key=lambda o: (o.begun, o.shown)):
        runs.setdefault(one.key, []).append(one)
    found = [Plan(files=files) for files in runs.values()]
    names = [plan.name for plan in found]
    for plan, name in zip(found, names, strict=True):
        plan.alone = names.count(name) == 1
    if found:
        found[0].notes += left
    return found


def single(path: Path, shown: str) -> Plan:
    """Return the run in one file.

    Raises:
        OSError: It cannot be read.
    """
    folder = None if shown == "-" else Path(shown).parent
    return Plan(files=[Opened(shown=shown, folder=folder, file=read_wandb(path))])


def run_files(folder: Path) -> Iterator[Path]:
    """Yield the files of runs in a folder and the folders of runs below it, each once."""
    seen: set[str] = set()
    try:
        entries = sorted(p for p in folder.iterdir() if not p.name.startswith("."))
    except OSError:
        return
    for entry in entries:
        if entry.name.endswith(ENDING) and entry.is_file():
            found = [entry]
        elif _RUN_FOLDER.match(entry.name) and entry.is_dir():
            found = _inside(entry)
        else:
            found = []
        for path in found:
            real = os.path.realpath(path)
            if real not in seen:
                seen.add(real)
                yield path


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(p for p in folder.iterdir() if p.name.endswith(ENDING) and p.is_file())
    except OSError:
        return []


def _plain(text: str) -> Any:
    """Return a YAML scalar as far as it is needed: numbers, truth values and words."""
    if text[:1] in "\"'" and text[-1:] == text[:1] and len(text) > 1:
        return text[1:-1]
    word = text.lower()
    if word in ("null", "~", "true", "false") or text[:1] in "[{|>&*!":
        return {"true": True, "false": False}.get(word)
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
