"""Folders of event files: which of them are one run.

TensorBoard itself takes a folder for a run and draws its files over one another. That is right
where a file goes on from the one before, and wrong where it starts over. So, of the files of
one folder, in the order they were begun:

* A file that shares no tag with the run before it is a second writer of that run.
* A file whose commonest shared tag begins at a later step than the run did goes on with it.
* A file whose commonest shared tag begins where the run did, or before, is a run of its own.

A sub-folder is a run of its own, too, with two exceptions, both joined where steps overlap: what
``add_scalars`` makes (``loss_train/`` with the single tag ``loss``), and the pair of ``train``
and ``validation`` side by side, or an ``eval`` inside.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stabcli.eventfile.contents import EventFile
from stabcli.eventfile.decode import read_events

TRAINING = frozenset({"train", "training"})
"""Folders of the training half of a pair."""
HELD_OUT = frozenset({"validation", "valid", "val", "eval", "evaluation", "test", "dev"})
"""Folders of the other half."""

_BEGUN = re.compile(r"tfevents\.(\d{9,10})(?!\d)")
_PROCESS = re.compile(r"tfevents\.\d{9,10}\.(.+?\.\d+)\.\d+(\.|_|$)")
_SLACK = 60.0
"""Seconds by which a writer may begin before the run it belongs to."""

Rename = Callable[[str], str]


@dataclass(slots=True, kw_only=True)
class Opened:
    """An event file that has been read."""

    path: Path
    events: EventFile

    @property
    def begun(self) -> float:
        """Time it was begun: the one in its name, else that of its first scalar."""
        named = _BEGUN.search(self.path.name)
        if named:
            return float(named[1])
        return min((float(s.walls[0]) for s in self.events.scalars.values()), default=0.0)

    @property
    def order(self) -> tuple[float, list[tuple[int, str]]]:
        """Sorts files as they were begun; of one second by name, numbers as numbers."""
        words = re.findall(r"\d+|\D+", self.path.name)
        return self.begun, [(int(w), "") if w.isdigit() else (-1, w) for w in words]

    @property
    def process(self) -> str | None:
        """Host and number of the process that wrote it, where its name says so."""
        named = _PROCESS.search(self.path.name)
        return named[1] if named else None

    def first_step(self, tag: str) -> int:
        """Return the lowest step of a tag."""
        return int(self.events.scalars[tag].steps.min())


@dataclass(slots=True, kw_only=True)
class Writer:
    """Files of one writer, and what its tags are called in the run."""

    files: list[Opened]
    rename: Rename = field(default=lambda tag: tag)

    @property
    def tags(self) -> list[str]:
        """Tags in order of first appearance."""
        return list(dict.fromkeys(tag for file in self.files for tag in file.events.scalars))

    @property
    def points(self) -> int:
        """Scalars in all."""
        return sum(file.events.points for file in self.files)

    @property
    def anew(self) -> list[int]:
        """Indices of the files that another process began."""
        found = []
        for i in range(1, len(self.files)):
            process = self.files[i].process
            if process is None or process != self.files[i - 1].process:
                found.append(i)
        return found

    def overlaps(self, other: Writer) -> bool:
        """Say whether the two log some of the same stretch of steps."""
        first, last = self._span()
        other_first, other_last = other._span()
        return first <= other_last and other_first <= last

    def _span(self) -> tuple[int, int]:
        series = [s.steps for file in self.files for s in file.events.scalars.values()]
        return min(int(s.min()) for s in series), max(int(s.max()) for s in series)


@dataclass(slots=True, kw_only=True)
class Plan:
    """One run: its writers, the one that tells of restarts first."""

    folder: Path
    """The folder it is named after."""
    writers: list[Writer]
    notes: list[str] = field(default_factory=list)
    alone: bool = True
    """Whether it is the only run of its folder."""

    @property
    def files(self) -> list[Opened]:
        """All files, in the order of the writers."""
        return [file for writer in self.writers for file in writer.files]


def is_event_name(name: str) -> bool:
    """Say whether a file of this name is an event file."""
    return "tfevents" in name and not name.startswith(".")


def plans(top: Path) -> Iterator[Plan]:
    """Yield the runs in a folder and the folders below it; what cannot be read is noted."""
    tree = event_files(top)
    notes: list[str] = []
    done: set[Path] = set()
    found: Plan | None = None
    for folder in tree:
        if folder in done:
            continue
        inner_folders = [f for f in tree if f.parent == folder and f != folder and tree[f]]
        for plan in _family(folder, tree, inner_folders, done, notes):
            if found is not None:
                yield found
            found = plan
            found.notes = notes + found.notes
            notes.clear()
    if found is not None:
        found.notes += notes
        yield found


def event_files(top: Path) -> dict[Path, list[Path]]:
    """Return the event files in a folder and in each of the folders below it, each folder once."""
    tree: dict[Path, list[Path]] = {}
    seen = {os.path.realpath(top)}
    for walked, inner, names in os.walk(top, followlinks=True):
        folders = {n: os.path.realpath(Path(walked, n)) for n in sorted(inner) if n[0] != "."}
        inner[:] = [n for n, real in folders.items() if real not in seen]
        seen.update(folders.values())
        tree[Path(walked)] = sorted(Path(walked, n) for n in names if is_event_name(n))
    return tree


def _family(
    folder: Path,
    tree: dict[Path, list[Path]],
    inner: Sequence[Path],
    done: set[Path],
    notes: list[str],
) -> list[Plan]:
    """Return the runs of the files in a folder, with the sub-folders that belong to them."""
    runs = _runs(folder, _opened(tree[folder], notes))
    pair = [f for f in inner if f.name.lower() in TRAINING | HELD_OUT]
    joining: dict[Path, tuple[list[Plan], Rename]] = {}
    if len(pair) > 1 or (pair and runs):
        for path in pair:
            joining[path] = _runs(path, _opened(tree[path], notes)), _prefixed(path.name)
    for path in inner:
        if path not in pair and "_" in path.name and tree[folder]:
            found = _runs(path, _opened(tree[path], []))
            rename = _series_name(path.name, found)
            if rename is not None:
                joining[path] = found, rename
    done |= set(joining)
    lead: Rename | None = None
    if not runs and joining:
        # With no writer of its own, the folder's runs are told by whoever wrote most of them.
        most = max(joining, key=lambda p: (p.name.lower() in TRAINING, _points(joining[p][0])))
        runs, lead = joining.pop(most)
    alone: list[Plan] = []
    for found, rename in joining.values():
        for plan in found:
            home = _home(runs, plan)
            if home is None:
                alone.append(plan)
                continue
            if lead is not None and home.folder != folder:
                _rename(home, lead)
                home.folder = folder
            _rename(plan, rename)
            home.writers += plan.writers
    return runs + alone


def _points(found: Sequence[Plan]) -> int:
    return sum(writer.points for plan in found for writer in plan.writers)


def _rename(plan: Plan, rename: Rename) -> None:
    for writer in plan.writers:
        writer.rename = rename


def _prefixed(prefix: str) -> Rename:
    return lambda tag: f"{prefix}/{tag}"


def _series_name(folder: str, found: Sequence[Plan]) -> Rename | None:
    """Return the renaming for a folder that ``add_scalars`` made; None for any other.

    Source: torch/utils/tensorboard/writer.py: the folder is the tag, with ``_`` for ``/``,
    then ``_`` and the name of the series.
    """
    tags = {tag for plan in found for writer in plan.writers for tag in writer.tags}
    if len(tags) != 1:
        return None
    tag = tags.pop()
    start = tag.replace("/", "_") + "_"
    if not folder.startswith(start) or folder == start:
        return None
    series = folder.removeprefix(start)
    return lambda tag: f"{tag}/{series}"


def _home(runs: Sequence[Plan], guest: Plan) -> Plan | None:
    """Return the run that was under way when ``guest`` was begun, where their steps overlap."""
    begun = guest.files[0].begun + _SLACK
    earlier = [run for run in runs if run.files[0].begun <= begun] or list(runs[:1])
    if not earlier:
        return None
    home = max(earlier, key=lambda run: run.files[0].begun)
    return home if home.writers[0].overlaps(guest.writers[0]) else None


def _opened(paths: Sequence[Path], notes: list[str]) -> list[Opened]:
    """Read the files, and leave out those without a scalar."""
    files: list[Opened] = []
    for path in paths:
        try:
            files.append(Opened(path=path, events=read_events(path)))
        except OSError as error:
            notes.append(f"{path.name} cannot be read ({error.strerror or error}): left out")
    for file in files:
        if not file.events.points:
            damaged = len(file.events.damaged)
            why = f" ({damaged} damaged records)" if damaged else ""
            notes.append(f"no scalar in {file.path.name}{why}: left out")
    return sorted((f for f in files if f.events.points), key=lambda f: f.order)


def _runs(folder: Path, files: Sequence[Opened]) -> list[Plan]:
    """Split the files of one folder into runs."""
    runs: list[Plan] = []
    for file in files:
        home = _continued(runs[-1], file) if runs else None
        if home is not None:
            home.files.append(file)
        elif runs and not _shared(runs[-1].files, file):
            runs[-1].writers.append(Writer(files=[file]))
        else:
            runs.append(Plan(folder=folder, writers=[Writer(files=[file])]))
    if len(runs) > 1:
        for plan in runs:
            plan.alone = False
            plan.notes.append(
                f"the event files in {folder.name or folder} are {len(runs)} runs: one that starts"
                " over from the first step is a run of its own"
            )
    return runs


def _shared(files: Sequence[Opened], file: Opened) -> set[str]:
    return {tag for known in files for tag in known.events.scalars if tag in file.events.scalars}


def _continued(run: Plan, file: Opened) -> Writer | None:
    """Return the writer of ``run`` that ``file`` goes on from; None where it starts over."""
    for writer in run.writers:
        shared = _shared(writer.files, file)
        if not shared:
            continue
        tag = max(sorted(shared), key=lambda t: len(file.events.scalars[t]))
        before = min(f.first_step(tag) for f in writer.files if tag in f.events.scalars)
        return writer if file.first_step(tag) > before else None
    return None


def single(path: Path) -> Plan:
    """Return the run in one file.

    Raises:
        OSError: It cannot be read.
    """
    file = Opened(path=path, events=read_events(path))
    return Plan(folder=path.parent, writers=[Writer(files=[file])])
