"""Reader ``comet``: what Comet's API hands out, and the archives it writes offline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from stabcli.assembly import Reading
from stabcli.errors import LogError
from stabcli.facts import find_facts
from stabcli.metrics import resolve
from stabcli.ndjson import sniff
from stabcli.readers import reader
from stabcli.sources import Source
from stabcli.trackers import zips
from stabcli.trackers.documents import document, loads
from stabcli.trackers.layouts import COMET
from stabcli.trackers.points import STEP, Points
from stabcli.trackers.values import Faults, named, number, seconds, settings, text, whole

_MESSAGES = "messages.json"
_ABOUT = "experiment.json"
_SYSTEM = ("sys.",)
"""Begin of the names of what Comet measures of the machine by itself."""
_NAMES = {
    "loss": ("train/loss", "train/train_loss"),
    "val_loss": ("validate/loss", "validate/val_loss", "test/loss"),
}
"""Canonical name -> names that Comet's own contexts make."""
_SHORT = {"validate": "val"}
"""Context -> how names begin that say it already, where that is not the whole word."""
_LATE = ("curr_step", "curr_epoch")
"""Parameters with which Comet keeps count for itself."""


def matches(source: Source) -> bool:
    """Claim a list of Comet's metrics, as an array or line by line, and an offline archive."""
    if zips.holds(source, _MESSAGES, _ABOUT):
        return True
    sniffed = sniff(source)
    return sniffed is not None and sniffed.counts(COMET)


@reader(matches, writes="Comet: offline archives, get_metrics() as JSON")
def comet(source: Source) -> Iterator[Reading]:
    """Read the values of one experiment, from its offline archive or from ``get_metrics()``.

    The context in which a value was logged goes before its name: ``train/loss``,
    ``validate/loss``. "NaN" and "Infinity" are numbers; values that are none are left out and
    named. Parameters give facts. What Comet measures of the machine (``sys.``) is not read.

    Raises:
        LogError: The archive or the list is broken, or holds no metric.
    """
    found = _Found()
    archive = zips.is_archive(source)
    if archive:
        _archive(source, found)
    else:
        _listed(source, found)
    if not len(found.points):
        broken = f" ({found.faults.count:,} broken)" if found.faults.count else ""
        raise LogError(
            f"{source.shown}: no metric in it{broken}: give an experiment that logged some"
        )
    notes: list[str] = []
    if found.system:
        notes.append(f"values of the machine (sys.) not read: {found.system:,}")
    if found.texts:
        notes.append(f"no numbers, left out: {named(found.texts)}")
    table = found.points.table(notes, apart=not archive)
    known = resolve(table.columns, {"step": STEP})
    fixed = {
        canonical: next((w for w in words if w in table.columns and w not in known.values()), None)
        for canonical, words in _NAMES.items()
        if canonical not in known
    }
    yield Reading(
        name=found.name or source.name,
        table=table,
        names={"step": STEP, **{k: v for k, v in fixed.items() if v}},
        facts=find_facts(settings(found.params), "parameters of the experiment"),
        notes=tuple(notes),
        bad=found.faults.bad(),
    )


@dataclass(slots=True)
class _Found:
    """What stands in a source."""

    points: Points = field(default_factory=Points)
    faults: Faults = field(default_factory=Faults)
    params: dict[str, Any] = field(default_factory=dict)
    texts: set[str] = field(default_factory=set)
    system: int = 0
    name: str = ""

    def add(self, metric: Mapping[str, Any], context: object, wall: object, line: int) -> None:
        """Take in a value."""
        name = metric.get(COMET)
        if not isinstance(name, str):
            self.faults.add(line, "a value without the name of its metric")
            return
        if name.startswith(_SYSTEM):
            self.system += 1
            return
        value = number(metric.get("metricValue"))
        step = metric.get("step")
        counted = whole(step)
        if value is None:
            self.texts.add(text(name))
        elif counted is None and step is not None:
            self.faults.add(line, f"no step: {text(step)[:40]!r}")
        else:
            key = _in_context(name, context)
            self.points.add(key, counted, value, wall=seconds(wall), line=line)


def _in_context(name: str, context: object) -> str:
    """Return a name with the context before it, unless it says the same already."""
    if not isinstance(context, str) or not context:
        return name
    again = name.lower().startswith(_SHORT.get(context, context.lower()))
    return name if again else f"{context}/{name}"


def _archive(source: Source, found: _Found) -> None:
    """Read the messages that an offline experiment left."""
    about = loads(zips.content(source, _ABOUT)) or {}
    for line, data in zips.lines(source, _MESSAGES, found.faults):
        if not data.strip():
            continue
        message = loads(data)
        held = message.get("payload") if isinstance(message, dict) else None
        if not isinstance(held, dict):
            found.faults.add(line, f"{_MESSAGES}: no message of Comet")
            continue
        kind = message.get("type")
        if kind == "metric_msg":
            metric = held.get("metric")
            if isinstance(metric, dict):
                found.add(metric, held.get("context"), held.get("local_timestamp"), line)
            else:
                found.faults.add(line, f"{_MESSAGES}: a metric without its value")
        elif kind == "parameter_msg":
            param = held.get("param") or held.get("params")
            if isinstance(param, dict) and param.get("paramName") not in _LATE:
                found.params[text(param.get("paramName"))] = param.get("paramValue")
        elif kind == "log_other" and held.get("key") == "Name":
            found.name = text(held.get("value"))
    if not found.name and isinstance(about, dict):
        found.name = text(about.get("offline_id") or "")


def _listed(source: Source, found: _Found) -> None:
    """Read what ``get_metrics()`` hands out: one array, or an object a line."""
    sniffed = sniff(source)
    if sniffed is not None and sniffed.kind == "lines":
        with source.path.open("rb") as file:
            rows: list[Any] = [loads(line) if line.strip() else {} for line in file]
    else:
        held = document(source)
        rows = held if isinstance(held, list) else []
    for line, row in enumerate(rows, start=1):
        if isinstance(row, dict) and not row:
            continue
        if isinstance(row, dict):
            found.add(row, row.get("runContext"), row.get("timestamp"), line)
        else:
            found.faults.add(line, "no value of a metric")
