"""Sections of the console report: rows of a label and a text, in the order they are read."""

from __future__ import annotations

import re
from collections import defaultdict

from stabcli.diagnosis import Diagnosis
from stabcli.incidents import Incident, by_gravity
from stabcli.metrics import METRICS
from stabcli.report import _sampling, _words
from stabcli.run import Run
from stabcli.segments import changes
from stabcli.units import number, percent, printable, span

Rows = list[tuple[str, str]]
"""Label and text; an empty label goes on with what stands above."""

FOLDED = 4
"""Notices of a rule beyond which the largest of them is told."""
PRICED = (
    "gpus",
    "gpu",
    "parameters",
    "active_parameters",
    "tokens_per_step",
    "batch_sequences",
    "sequence_length",
    "gpu_hours_per_trillion",
    "gpu_price",
    "checkpoint_every",
    "checkpoints",
)
"""Facts that prices and plans rest on; the JSON report has all of them."""

KINDS = {
    "no mixture of experts": {"aux_loss", "z_loss", "expert_load_ratio"},
    "no RL policy": {
        "objective_loss",
        "entropy",
        "reward",
        "reward_std",
        "val_reward",
        "kl",
        "clip_fraction",
        "response_length",
        "response_clip_fraction",
        "dead_group_fraction",
        "chosen_rewards",
        "rollout_corr",
        "vf_explained_var",
    },
    "no fp16 loss scale": {"loss_scale", "skipped_steps"},
}
"""Kinds of training, or of its numbers, that not every run is, and the metrics only they have."""

CHANGES = 4
"""Planned changes that are told one by one."""
PLANS = 2
"""Incidents whose plans are shown: all ways out of the worst, the best way out of the next."""


def what_was_read(run: Run) -> Rows:
    """Tell what the reader made of the log."""
    steps = run.frame["step"].to_numpy()
    interval = run.log_interval or 1
    every = "" if interval == 1 else f", one row in {interval:,}"
    parts = [
        run.reader,
        _words.plural(run.frame.height, "row"),
        f"{span(int(steps.min()), int(steps.max()))}{every}",
    ]
    if len(run.attempts) > 1:
        parts.append(_words.plural(len(run.attempts), "attempt"))
    if run.bad.count:
        parts.append(_words.plural(run.bad.count, "bad line"))
    rows = [("read", " · ".join(parts))]
    mapped = [
        canonical if canonical == own else f"{canonical} = {_words.short(own)}"
        for canonical, own in run.columns.items()
        if canonical != own or canonical != "step"
    ]
    if mapped:
        rows.append(("columns", ", ".join(mapped)))
    if told := _changes(run):
        rows.append(("changed", told))
    rows += [("bad line", f"{line:,}: {printable(why)}") for line, why in run.bad.first[:2]]
    for index, note in enumerate(run.notes):
        rows.append(("" if index else "note", printable(note)))
    return rows


def _changes(run: Run) -> str:
    """Tell where the run was changed on purpose; empty where it was not."""
    found = changes(run)
    said = [
        f"{_words.short(run.word(c.metric))} {number(c.before)} → {number(c.after)}"
        f" at step {c.step:,}"
        for c in found[:CHANGES]
    ]
    if len(found) > CHANGES:
        said.append(f"{len(found) - CHANGES:,} more")
    return "; ".join(said) + ": compared anew from there" if said else ""


def facts(run: Run) -> Rows:
    """Tell what of the whole run a price or a plan may rest on, and where it is from."""
    sources: dict[str, list[str]] = defaultdict(list)
    for name, fact in run.facts.items():
        if name not in PRICED:
            continue
        source = fact.source.rpartition(", ")[0] or fact.source
        sources[source].append(f"{name} {_words.value(fact.value)}")
    said = [f"{', '.join(known)} ({printable(source)})" for source, known in sources.items()]
    return [("facts", "; ".join(said))] if said else []


def what_to_do(d: Diagnosis, grave: list[Incident]) -> Rows:
    """Tell how to recover from the worst incidents."""
    plans = dict(zip(map(id, d.incidents), d.plans, strict=True))
    planned = [i for i in by_gravity(grave) if plans[id(i)]]
    rows: Rows = []
    for i in planned[:PLANS]:
        which = f"{i.rule} at step {i.worst.first:,}: " if len(planned) > 1 else ""
        ways = plans[id(i)] if i is planned[0] else plans[id(i)][:1]
        for way, plan in enumerate(ways):
            redo = _words.price(plan.redo)
            text = plan.text + (f" To train again: {redo}." if redo else "")
            label = "or" if way else "then" if rows else "to do"
            rows.append((label, text if way else which + text))
            if plan.why and not way and i is planned[0]:
                rows.append(("why", plan.why))
    return rows


def bill(d: Diagnosis, grave: list[Incident]) -> Rows:
    """Tell what was thrown away, and on what grounds that is said."""
    wasted = _words.price(d.cost.total)
    rows: Rows = []
    if wasted and (grave or d.cost.total.steps):
        share = d.cost.goodput
        whole = "the run" if d.cost.unseen is None else "what the log tells of"
        good = "" if share is None else f"; {percent(share)} of {whole} was productive"
        rows.append(("wasted", wasted + good))
    if grave:
        rows += facts(d.run)
        for index, line in enumerate(d.cost.assumptions):
            rows.append(("" if index else "given that", printable(line)))
    return rows


def what_else(d: Diagnosis, grave: list[Incident]) -> Rows:
    """Tell what was merely noticed, what was checked, what was not, and what cannot be seen."""
    rows: Rows = []
    if not grave and d.cost.efficiency.doubt:
        rows.append(("MFU", printable(d.cost.efficiency.doubt)))
    noticed: dict[str, list[Incident]] = defaultdict(list)
    for i in d.incidents:
        if i.severity == "notice":
            noticed[i.rule].append(i)
    if noticed:
        said = "; ".join(_noticed(d.run, rule, members) for rule, members in noticed.items())
        rows.append(("notices", said))
    if not grave and d.checked:
        rows.append(("checked", ", ".join(d.checked)))
    if d.skipped:
        rows.append(("unchecked", _unchecked(d)))
    rows += [("unseen", line) for line in _sampling.blind_spots(d.run)]
    return rows


def _unchecked(d: Diagnosis) -> str:
    """Group the rules that could not look by what they lacked.

    Rules for a kind of training that this run is not are counted, not named.
    """
    known = set(METRICS).union(*KINDS.values())
    why: dict[str, list[str]] = defaultdict(list)
    counted: dict[str, int] = defaultdict(int)
    for s in d.skipped:
        lacked = set(re.findall(r"\w+", s.why)) & known
        kind = next((k for k, metrics in KINDS.items() if lacked and lacked <= metrics), None)
        if kind is not None and not any(d.run.has(m) for m in KINDS[kind]):
            counted[kind] += 1
        else:
            why[s.why.removeprefix("the log has ")].append(s.rule)
    said = [f"{printable(w)} ({', '.join(names)})" for w, names in why.items()]
    said += [f"{kind} ({_words.plural(n, 'rule')})" for kind, n in counted.items()]
    hint = "; --format brief names them all" if counted else ""
    return "; ".join(said) + hint


def _noticed(run: Run, rule: str, members: list[Incident]) -> str:
    share = next((t for i in members for t in i.tags if t.startswith("share-")), None)
    if share:
        return f"{rule} ({share.removeprefix('share-')} of the rows)"
    if len(members) == 1:
        where = span(members[0].first, members[0].last)
        said = _words.missing(members[0].worst, _words.short(run.word(members[0].worst.metric)))
        return f"{rule} ({where}: {said})" if said else f"{rule} ({where})"
    said = f"{len(members)} × {rule} (steps {_words.places([i.first for i in members], 4)}"
    scored = [i.worst for i in members if i.worst.score is not None]
    if len(members) > FOLDED and scored:
        top = max(scored, key=lambda f: f.score or 0.0)
        name = _words.short(run.word(top.metric))
        said += f"; the largest: {name} {number(top.value)} at step {top.peak:,}"
    return f"{said})"
