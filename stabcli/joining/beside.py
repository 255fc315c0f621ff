"""Beside: what lies beside the logs: configurations, and what other text says of troubles."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from stabcli.configs import Config, read_config
from stabcli.errors import LogError
from stabcli.joining.gathering import NOT_LOGS, LeftOut
from stabcli.joining.homes import beside, folders_of, home, homes_of, prints
from stabcli.run import Fact, Run, Trouble
from stabcli.sources import text_of

if TYPE_CHECKING:
    from stabcli.troubles import Said

SHOWN = 3
"""Troubles of a run that are notes; all that are kept are in the JSON report."""


def configured(
    runs: Sequence[Run], configs: Iterable[str], given: Collection[str] = ()
) -> tuple[list[Run], list[LeftOut]]:
    """Give runs the facts that configuration files beside them state.

    A file belongs to the run whose log has its name, else to the only run of its folder, of its
    home, or below it. What it says goes before what a log says, and after what the user says.

    Args:
        runs: The runs, joined.
        configs: Paths of configuration files.
        given: Facts that the user gave.

    Returns:
        The runs, and the files that could not be used.
    """
    made = list(runs)
    left: list[LeftOut] = []
    for path in dict.fromkeys(configs):
        try:
            config = read_config(path)
        except LogError as error:
            why = str(error).removeprefix(path).lstrip(":0123456789").strip()
            left.append(LeftOut(Path(path), f"not usable as a configuration ({why})"))
            continue
        owners = _owners(path, made)
        if len(owners) != 1:
            why = (
                f"a configuration, but of which of {len(owners)} runs"
                if owners
                else "no log beside it"
            )
            left.append(
                LeftOut(Path(path), f"{why}: not used" if owners else f"a configuration, {why}")
            )
        elif not config.facts:
            left.append(LeftOut(Path(path), "a configuration that says nothing known of a run"))
        else:
            made[owners[0]] = _with_config(made[owners[0]], config, given)
    return made, left


def _owners(path: str, runs: Sequence[Run]) -> list[int]:
    """Return the runs that a file beside them may be about: one, or all that come into question."""
    place, above = beside(path), home(path)
    stem = Path(path).name.partition(".")[0]
    folder = os.path.realpath(Path(path).parent)
    tests: tuple[Callable[[Run], bool], ...] = (
        lambda run: (
            any(Path(f).name.partition(".")[0] == stem for f in run.files)
            and place in folders_of(run)
        ),
        lambda run: place in folders_of(run),
        lambda run: above in homes_of(run),
        lambda run: any(os.path.realpath(f).startswith(folder + os.sep) for f in run.files),
    )
    unclear: list[int] = []
    for test in tests:
        found = [i for i, run in enumerate(runs) if test(run)]
        if len(found) == 1:
            return found
        unclear = unclear or found
        if found:
            break
    return unclear


def _with_config(run: Run, config: Config, given: Collection[str]) -> Run:
    facts: dict[str, Fact] = dict(run.facts)
    notes = list(run.notes)
    for name, fact in config.facts.items():
        known = facts.get(name)
        if name in given or (name == "checkpoint_every" and _disproved(run, fact)):
            continue
        if known is not None and known.value != fact.value:
            if known.source.startswith(config.name):
                continue  # its reader knows this file better
            notes.append(
                f"{name}: {fact.value} by {fact.source}, {known.value} by {known.source}:"
                " the first was taken"
            )
        facts[name] = fact
    if config.bad.count:
        notes.append(f"{config.name}: {config.bad.count:,} lines were not understood")
    files = run.files if config.source in run.files else (*run.files, config.source)
    return replace(run, facts=facts, notes=tuple(notes), files=files)


def _disproved(run: Run, fact: Fact) -> bool:
    """Say whether the checkpoints that are there do not keep an interval."""
    steps = run.facts.get("checkpoints")
    if steps is None or not isinstance(steps.value, tuple) or not isinstance(fact.value, int):
        return False
    return any(step % fact.value for step in steps.value[:-1])


def troubled(runs: Sequence[Run], texts: Iterable[str]) -> tuple[list[Run], list[LeftOut]]:
    """Give runs what their logs, and other text beside them, say of troubles.

    Args:
        runs: The runs, joined.
        texts: Paths of text that is no log: standard error, what W&B keeps of the console.

    Returns:
        The runs, and the texts, all of them no logs; of which something is said where it is known.
    """
    made = list(runs)
    found: dict[int, list[Trouble]] = {}
    unsearched: dict[int, list[str]] = {}
    searched: dict[str, list[int]] = {}
    seen: dict[int, list[str]] = {}
    for i, run in enumerate(made):
        for path in run.files if prints(run) else ():
            searched.setdefault(path, []).append(i)
    for path, owners in searched.items():
        said, whole = _said(path)
        for one in said:
            places = [(_placed(made[i], path, one), i) for i in owners]
            # of several runs in one file, that which logged last before the line
            place, i = max(places, key=lambda p: (p[0][0], -p[1]))
            found.setdefault(i, []).append(place[1])
        if whole is False:
            unsearched.setdefault(owners[0], []).append(Path(path).name)
        for i in owners if whole else ():
            seen.setdefault(i, []).append(path)
    left: list[LeftOut] = []
    for path in dict.fromkeys(texts):
        said, whole = _said(path)
        owners = _owners(path, made) if said else []
        if len(owners) == 1 and whole:
            seen.setdefault(owners[0], []).append(path)
        if len(owners) == 1:
            found.setdefault(owners[0], []).extend(_placed(None, path, one)[1] for one in said)
            left.append(LeftOut(Path(path), "not logs, but searched for errors"))
        elif said:
            first = said[0]
            why = f"no logged steps, but line {first.line:,} says {first.text!r}"
            left.append(LeftOut(Path(path), why))
        else:
            left.append(LeftOut(Path(path), NOT_LOGS))
    for i, all_said in found.items():
        if all_said:
            made[i] = _with_troubles(made[i], all_said)
    for i, paths in seen.items():
        made[i] = replace(made[i], searched=tuple(dict.fromkeys(paths)))
    for i, names in unsearched.items():
        note = (
            f"not all of {', '.join(names)} was searched for errors, so much of it looks like some:"
            " its beginning and its end were"
        )
        made[i] = replace(made[i], notes=(*made[i].notes, note))
    return made, left


def _said(path: str) -> tuple[list[Said], bool | None]:
    """Return what a file says of troubles, and whether all of it was searched.

    None where nothing was: it holds no text, or cannot be read.
    """
    from stabcli.troubles import troubles

    try:
        plain = text_of(path)
        return troubles(plain) if plain is not None else ([], None)
    except (OSError, LogError):
        return [], None


def _placed(run: Run | None, path: str, said: Said) -> tuple[int, Trouble]:
    """Return what was said, with the step that was logged last before it, and in which line."""
    attempt = step = None
    line = 0
    if run is not None and "line" in run.frame.columns:
        rows = run.frame
        if "file" in rows.columns:
            here = pl.Series([_is_of(path, name) for name in rows["file"].to_list()])
            rows = rows.filter(here)
        before = rows.filter(pl.col("line") < said.line)
        if before.height:
            last = before.row(int(before["line"].arg_max() or 0), named=True)
            attempt, step, line = last["attempt"], last["step"], last["line"]
    return line, Trouble(
        kind=said.kind, file=path, line=said.line, text=said.text, attempt=attempt, step=step
    )


def _is_of(path: str, name: str | None) -> bool:
    return name is not None and (path == name or path.endswith(os.sep + name))


def _with_troubles(run: Run, said: Sequence[Trouble]) -> Run:
    notes = []
    for one in said[:SHOWN]:
        when = "" if one.step is None else f", after step {one.step:,}"
        notes.append(f"{one.kind}{when}: {Path(one.file).name}, line {one.line:,}: {one.text}")
    if len(said) > SHOWN:
        notes.append(f"{len(said) - SHOWN} more lines tell of errors: --format json has them")
    return replace(run, troubles=tuple(said), notes=(*run.notes, *notes))
