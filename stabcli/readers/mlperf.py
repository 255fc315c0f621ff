"""Reader ``mlperf``: the ``:::MLLOG`` lines of MLPerf training results."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from stabcli.assembly import Reading
from stabcli.errors import LogError
from stabcli.facts import find_facts
from stabcli.readers import reader
from stabcli.run import Fact
from stabcli.sources import Source
from stabcli.textlog import Grammar, Line, claims, known
from stabcli.trackers.points import STEP, Points
from stabcli.trackers.values import WIDEST_STEP, Faults, counted, number, seconds, text, whole

_MARK = ":::MLLOG"
_LENGTH = "max_sequence_length"
SHOWN = 4
"""Kinds of events without a row that are named."""
_EPOCHS = 1000
"""Places below are epochs."""
_LONGEST = 1 << 20
"""Bytes of a line."""
_COUNTERS = ("step_num", "step", "samples_count", "epoch_num")
"""What metadata call the place in the training."""
_LINENO = "lineno"
"""Line of the program that logged, in all metadata."""
_NAMES = {
    "loss": ("train_loss", "reduced_train_loss"),
    "step_seconds": ("train_step_time", "train_step_timing"),
    "learning_rate": ("lr",),
}
"""Canonical name -> what benchmarks track under it."""
_LANGUAGE = ("gpt", "llama", "mixtral", "deepseek", "moe")
"""Begins of the names of benchmarks whose ``eval_accuracy`` is the loss on held-out data.

Source: mlcommons/training_policies, training_rules.adoc, quality targets: 2.69 log perplexity for
gpt3, 0.925 cross entropy for llama2_70b_lora.
"""
_MEANT = {
    "opt_base_learning_rate": "learning_rate",
    "opt_learning_rate_warmup_steps": "warmup_steps",
    "opt_learning_rate_decay_schedule": "lr_schedule",
    "opt_gradient_clip_norm": "gradient_clip_norm",
    "opt_weight_decay": "weight_decay",
    "opt_name": "optimizer",
    "max_sequence_length": "seq_length",
}
"""MLPerf's names of settings -> names that all configurations share."""

_NUMBER = r"-?(?:\d[\d.]*(?:[eE][-+]?\d+)?|NaN|Infinity)"
GRAMMAR = known(
    Grammar(
        name="mlperf",
        lines=(
            Line(
                mark=_MARK,
                pattern=rf'{_MARK} ?\{{(?=.*"(?:{"|".join(_COUNTERS)})": ?(?P<step>\d+))'
                rf'(?=.*?"value": ?(?:\{{"[^"]+": ?)?(?P<value>{_NUMBER}))',
            ),
        ),
    )
)
"""By such lines a log is told from those of other frameworks; they are read as JSON."""


def matches(source: Source) -> bool:
    """Claim a log in which such lines tell more than those of any framework."""
    return claims(source, GRAMMAR)


@reader(matches, writes="MLPerf training: :::MLLOG lines")
def mlperf(source: Source) -> Iterator[Reading]:
    """Read the events that carry a value and say where in the training they belong.

    The benchmark's own counter of samples or tokens is turned into steps where all of it is
    divisible by the global batch, and left as it is elsewhere.
    Values tracked together stand in columns of their own names. ``eval_accuracy`` of language
    models is a loss on held-out data. Settings give facts; how the run stopped is noted.

    Raises:
        LogError: No event has a value and a place.
    """
    if source.is_folder:
        raise LogError(f"{source.shown}: a folder: give the log in it")
    found = _read(source)
    if not found.values:
        raise LogError(f"{source.shown}: no {_MARK} event with a value and a step: check the file")
    points = Points()
    notes: list[str] = []
    places = _placed(found, notes)
    for (line, wall, values, _), step in zip(found.values, places, strict=True):
        for name, value in values.items():
            points.add(name, step, value, wall=wall, line=line)
    table = points.table(notes)
    names = {c: next((w for w in words if w in points.keys), "") for c, words in _NAMES.items()}
    benchmark = str(found.settings.get("submission_benchmark", ""))
    if benchmark.startswith(_LANGUAGE) and "eval_accuracy" in points.keys:
        names["val_loss"] = "eval_accuracy"
        notes.append(f"eval_accuracy of {benchmark} is the loss on held-out data")
    notes += _left_out(found, points.keys)
    notes.append(_ending(found))
    yield Reading(
        name=source.name,
        table=table,
        names={"step": STEP, **{c: own for c, own in names.items() if own}},
        facts=_facts(found),
        notes=tuple(notes),
        bad=found.faults.bad(),
    )


@dataclass(slots=True)
class _Found:
    """What stands in a log."""

    values: list[tuple[int, float | None, dict[str, float], dict[str, float]]] = field(
        default_factory=list
    )
    """Line, time, values by name and places by counter of each event."""
    settings: dict[str, Any] = field(default_factory=dict)
    set_by: Counter[str] = field(default_factory=Counter)
    """Events that gave settings, by key."""
    others: Counter[str] = field(default_factory=Counter)
    """Events of other kinds, by key."""
    faults: Faults = field(default_factory=Faults)
    status: str = ""
    stopped: bool = False
    stepped: bool = False
    """Whether places could be made optimizer steps."""


def _read(source: Source) -> _Found:
    found = _Found()
    decoder = json.JSONDecoder()
    line = 0
    with source.path.open("rb") as file:
        while data := file.readline(_LONGEST):
            line += 1
            if _MARK.encode() not in data:
                if b'"event_type"' in data:
                    found.faults.add(line, f"an event without {_MARK}")
                continue
            _, *rest = data.decode("utf-8", "replace").split(_MARK)
            for said in rest:
                start = said.find("{")
                try:
                    event, _end = decoder.raw_decode(said, max(start, 0))
                except (ValueError, RecursionError):
                    event = None
                if isinstance(event, dict):
                    _take(found, event, line)
                else:
                    found.faults.add(line, f"{_MARK}: no whole JSON behind it")
    return found


def _take(found: _Found, event: Mapping[str, Any], line: int) -> None:
    key, value, about = event.get("key"), event.get("value"), event.get("metadata")
    about = about if isinstance(about, dict) else {}
    if key == "run_stop":
        found.stopped, found.status = True, text(about.get("status") or "")
    if event.get("event_type") != "POINT_IN_TIME" or not isinstance(key, str):
        found.others[text(key or "no key")] += 1
        return
    tracked = value if isinstance(value, dict) else {key: value}
    places = {
        c: told
        for c in _COUNTERS
        if isinstance(about.get(c), int | float)
        and (told := number(about[c])) is not None
        and abs(told) < WIDEST_STEP
    }
    values = {
        text(name): told
        for name, said in tracked.items()
        if not isinstance(said, bool) and (told := number(said)) is not None and name != "epoch_num"
    }
    if places and values:
        for name, said in about.items():  # the learning rate stands here, beside the loss
            beside = name not in _COUNTERS and name != _LINENO and not isinstance(said, bool)
            if beside and isinstance(said, int | float) and (told := number(said)) is not None:
                values.setdefault(text(name), told)
        found.values.append((line, seconds(event.get("time_ms")), values, places))
    elif not isinstance(value, dict) and value is not None:
        found.settings.setdefault(key, value)
        found.set_by[key] += 1
    else:
        found.others[text(key)] += 1


def _facts(found: _Found) -> dict[str, Fact]:
    said = {_MEANT.get(k, k): v for k, v in found.settings.items()}
    facts = find_facts(said, "settings in the log")
    if not found.stepped:  # what is known of a step tells nothing of a sample
        for name in ("batch_sequences", "tokens_per_step", "total_steps", "warmup_steps"):
            facts.pop(name, None)
    return facts


def _placed(found: _Found, notes: list[str]) -> list[int | None]:
    """Return the optimizer step of each event, or its place by the benchmark's own counter.

    An event with another counter alone, an evaluation for example, has the same place where
    that counter is as far as this one; else it has that of the event before it.
    """
    often = {c: sum(c in places for *_, places in found.values) for c in _COUNTERS}
    main = max(_COUNTERS, key=lambda c: often[c])
    known_places = [p[main] for *_, p in found.values if main in p]
    low, high = min(known_places), max(known_places)
    made: list[float] = []
    borrowed = 0
    last = low
    for *_, places in found.values:
        own = places.get(main)
        if own is None:
            other = next(iter(places.values()))
            alike = low <= other <= 2 * high and other == int(other)
            own = other if alike else last
            borrowed += not alike
        last = own
        made.append(own)
    if borrowed:
        notes.append(f"{borrowed:,} events without {main!r} take the place of the one before")
    if main == "step_num":
        found.stepped = True
        return counted(made, notes)
    batch, length = (whole(found.settings.get(n)) for n in ("global_batch_size", _LENGTH))
    for divisor, what in (
        ((batch or 0) * (length or 0), f"tokens: divided by global_batch_size and {_LENGTH}"),
        (batch or 0, "samples: divided by global_batch_size"),
    ):
        if divisor > 1 and all(place % divisor == 0 for place in made):
            found.stepped = True
            notes.append(f"places are counted in {what}, {divisor:,}, to get steps")
            return [int(place // divisor) for place in made]
    if high >= _EPOCHS:
        notes.append(f"steps are counted in samples or tokens, as the benchmark logs them ({main})")
    return counted(made, notes)


def _left_out(found: _Found, tracked: Container[str]) -> list[str]:
    """Tell of events that stand in no row, those of tracked values that lost their place too."""
    for key in [k for k in found.settings if k in tracked]:
        found.others[text(key)] += found.set_by[key]
        del found.settings[key]
    if not found.others:
        return []
    names = ", ".join(key for key, _ in found.others.most_common(SHOWN))
    more = f" and {len(found.others) - SHOWN:,} more kinds" if len(found.others) > SHOWN else ""
    return [
        f"{found.others.total():,} events without a number and a place stand in no row: {names}{more}"
    ]


def _ending(found: _Found) -> str:
    """Say what ran and how it stopped."""
    said = ("submission_benchmark", "submission_org", "submission_platform")
    what = ", ".join(text(found.settings[k]) for k in said if k in found.settings) or "MLPerf"
    if not found.stopped:
        return f"{what}: no run_stop: the run crashed, was killed or goes on"
    return f"{what}: run_stop says {found.status or 'no status'}"
