"""Words: how findings, incidents, costs and plans are put for people."""

from __future__ import annotations

from collections.abc import Sequence

from stabcli import units
from stabcli.cost import Cost
from stabcli.endings import CLOCKS
from stabcli.incidents import NO_LOSS, ONE_PROCESS, STAYS, Incident
from stabcli.rules import ALIKE, BACK, PAUSED, RESCALED, Finding
from stabcli.run import Run
from stabcli.units import count, duration, gpu_hours, number, printable, steps

NAME_LENGTH = 40
"""Longest name of a column shown in full."""
LINE_LENGTH = 100
"""Longest line of a log shown in full."""


def short(text: str, length: int = NAME_LENGTH) -> str:
    """Return text from a log, safe to show, cut in the middle where it is long."""
    text = printable(text)
    if len(text) <= length:
        return text
    half = (length - 1) // 2
    return f"{text[:half]}…{text[-half:]}"


def troubles(run: Run) -> str:
    """Say of which errors a log tells that no rule judges; nothing where it tells of none."""
    kinds = list(dict.fromkeys(t.kind.replace("-", " ") for t in run.troubles))
    return f"; the text tells of: {', '.join(kinds)}" if kinds else ""


NAMED = 5
"""Files of a folder that are named where more were left out."""
FOLDERS = 8
"""Folders of which is said what was left out of them."""


def few(left_out: Sequence[str]) -> list[str]:
    """Return what was left out of folders, cut to what a screen can hold."""
    lines = []
    for line in left_out[:FOLDERS]:
        head, found, names = line.partition(", left out: ")
        named = names.split(", ")
        if found and len(named) > NAMED:
            more = f"{len(named) - NAMED:,} more"
            lines.append(f"{head}{found}{', '.join(named[:NAMED])} and {more}")
        else:
            lines.append(line)
    if len(left_out) > FOLDERS:
        rest = plural(len(left_out) - FOLDERS, "more line")
        lines.append(f"{rest} on what was left out: scan --format json has all")
    return lines


plural = units.plural


def measured(run: Run, f: Finding) -> str:
    """Say what a finding saw, in the log's own words."""
    said = f"{short(run.word(f.metric))} {number(f.value)}"
    if f.text is not None:
        said = f"{f.metric.replace('-', ' ')}: {short(f.text, LINE_LENGTH)}"
    if f.metric in CLOCKS:
        said = f"nothing logged for {duration(f.value)} before it"
    said = missing(f, short(run.word(f.metric))) or said
    if f.line is not None:
        where = f"{short(f.file)}:{f.line}" if f.file else f"line {f.line:,}"
        said = f"{said} ({where})"
    if f.expected is None:
        return said
    usual = duration(f.expected) if f.metric in CLOCKS else number(f.expected)
    return f"{said}, expected {usual}"


def missing(f: Finding, name: str) -> str | None:
    """Say that a loss of that name is not logged; None where that is not what was found."""
    if NO_LOSS in f.tags:
        return f"{name} no longer logged"
    if PAUSED not in f.tags:
        return None
    rows = next(t.removesuffix("-rows") for t in f.tags if t.endswith("-rows"))
    beside = next(t.removeprefix("beside-") for t in f.tags if t.startswith("beside-"))
    return f"{name} not logged in {rows} rows, while {short(beside)} was"


def ending(incident: Incident) -> str:
    """Say how an incident ended; empty where the question makes no sense."""
    if not incident.ends:
        return ""
    if ALIKE in incident.worst.tags:
        return "rewards are all alike from the first row on"
    if BACK in incident.worst.tags:
        return f"after step {incident.worst.last:,} as before"
    if RESCALED in incident.worst.tags:
        return "it goes on like that"
    took = ""
    if incident.recovered is not None:
        took = f" by step {incident.recovered:,}"
    worst = incident.worst
    level = "lower" if worst.expected is not None and worst.value < worst.expected else "higher"
    for tag in incident.tags:
        if tag.startswith(STAYS) and tag != STAYS + worst.metric:
            return f"{short(tag.removeprefix(STAYS))} never came back"
    return {
        "fast-recovery": f"recovered{took}",
        "slow-recovery": f"recovered slowly,{took}",
        "new-basin": f"settled {level}" if incident.unstable else "never recovered",
        "diverged": "never recovered",
        "rolled-back": "rolled back",
        "unresolved": "the log ends too soon to tell how it ended",
    }[incident.ending]


TAGS = {
    ONE_PROCESS: "of one process alone, the others stayed finite",
    "warm-up": "during warm-up",
    "resume": "just after a restart",
    "unplaced": "the text does not say after which step",
    "died": "nothing was logged after it",
    "unfinished": "more steps were planned",
    "restarted": "its attempt ended there, and another was started",
    "went-on": "the attempt went on after it",
    "ends-at-same-step": "several attempts ended at its last step",
    "gradual-onset": "it had been drifting before",
    "recurs-at-same-step": "it came again at the same step after a restart",
}
"""What is told of an incident's tags; the others are for programs."""


def tags(incident: Incident) -> list[str]:
    """Say what else is known of an incident."""
    return [said for tag, said in TAGS.items() if tag in incident.tags]


def lead(run: Run, incident: Incident) -> str:
    """Say what moved first, where that is not what was worst."""
    first, worst = incident.lead, incident.worst
    if first.metric == worst.metric or first.first >= worst.first:
        return ""
    if first.text is not None:
        return f"{first.metric.replace('-', ' ')} came first, at step {first.first:,}"
    return f"{short(run.word(first.metric))} moved first, at step {first.first:,}"


def price(cost: Cost) -> str:
    """Print what is known of a cost; empty where nothing is."""
    parts = []
    if cost.steps:
        parts.append(steps(cost.steps))
    if cost.tokens:
        parts.append(f"{count(cost.tokens)} tokens")
    if cost.gpu_hours:
        parts.append(gpu_hours(cost.gpu_hours))
    if cost.usd:
        parts.append(f"${cost.usd:,.0f}")
    return ", ".join(parts)


def places(where: Sequence[int], shown: int = 6) -> str:
    """List steps, the first few and the last."""
    if len(where) <= shown:
        return ", ".join(f"{s:,}" for s in where)
    head = ", ".join(f"{s:,}" for s in where[: shown - 1])
    return f"{head}, … {where[-1]:,}"


def value(known: float | str | tuple[int, ...]) -> str:
    """Print the value of a fact."""
    if isinstance(known, tuple):
        return places(known, 4)
    if isinstance(known, str):
        return short(known)
    if known == int(known):
        return count(known) if abs(known) >= 1e6 else f"{int(known):,}"
    return f"{known:.6g}"
