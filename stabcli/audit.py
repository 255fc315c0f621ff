"""Audit: which of the field's stabilising techniques a run uses, by its kind of training.

Unknown is never missing: where neither configuration nor log tells, the audit says what to log.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stabcli.configs import Config
from stabcli.diagnosis import Diagnosis
from stabcli.metrics import PREFERENCE_WORDS, is_rl, normalise
from stabcli.rules import Finding
from stabcli.run import Fact, Run
from stabcli.techniques import STATUSES, Judgement, Kind, Status, Subject, Technique, techniques
from stabcli.units import count, number

GUESS = 0.75
"""Share of the loss of a random guess, the log of the vocabulary, from which nothing is learnt."""
LEARNT = 3.0
"""Loss in nats/token below which a model has learnt its language, whatever its vocabulary."""
UNLEARNT = 5.0
"""Loss in nats/token above which it has not: a guess among 256 bytes is ln 256 = 5.55."""
BEGINNING = 10
"""Step up to which a first logged loss tells how a run began."""
PRETRAINING_TOKENS = 1e10
"""Planned tokens from which a training is a pretraining."""
RL_WORDS = ("grpo", "ppo", "reinforce", "rloo", "rlhf", "dapo", "gae", "rl")
TUNING_WORDS = ("sft", "dpo", "orpo", "kto", "simpo", "lora", "rm")
PRETRAINING_WORDS = ("pt", "pretrain", "pretraining")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One technique, judged."""

    technique: Technique
    judgement: Judgement
    bears_on: tuple[Finding, ...] = ()
    """Findings of the run that the technique, not known to be in place, bears on: the first of
    each incident."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """All techniques of one kind of training, held against one run or configuration."""

    name: str
    source: str
    """The log or configuration as the user gave it."""
    kind: Kind
    why: str
    """What the kind was told by."""
    lines: tuple[Line, ...]
    """Missing first, then unknown, then in place."""
    diagnosis: Diagnosis | None = None
    """The run; None for a configuration alone."""
    notes: tuple[str, ...] = ()
    """What could not be read, and what the audit rests on."""

    def of(self, status: Status) -> tuple[Line, ...]:
        """Return the lines of one status."""
        return tuple(line for line in self.lines if line.judgement.status == status)


def audit_run(diagnosis: Diagnosis, kind: Kind | None = None) -> Audit:
    """Hold a run against the techniques of its kind, or of the kind given."""
    run = diagnosis.run
    told, why = (kind, "--kind") if kind else kind_of(run.facts, run)
    subject = Subject(kind=told, facts=run.facts, diagnosis=diagnosis)
    notes = [f"{run.bad.count:,} bad lines were not read"] if run.bad.count else []
    return Audit(
        name=run.name,
        source=run.source,
        kind=told,
        why=why,
        lines=_lines(subject),
        diagnosis=diagnosis,
        notes=tuple(notes),
    )


def audit_config(
    config: Config, facts: Mapping[str, Fact] | None = None, kind: Kind | None = None
) -> Audit:
    """Hold a configuration against the techniques of its kind, or of the kind given.

    Args:
        config: The configuration.
        facts: What the user says besides; it overrules the configuration.
        kind: The kind of training.
    """
    known = {**config.facts, **(facts or {})}
    told, why = (kind, "--kind") if kind else kind_of(known)
    notes = [f"line {line:,}: {reason}" for line, reason in config.bad.first]
    if config.bad.count > len(notes):
        notes.append(f"{config.bad.count - len(notes):,} more lines could not be read")
    notes.append(
        f"a configuration alone: {len(config.facts):,} of its {config.keys:,} settings tell something here"
    )
    return Audit(
        name=config.name,
        source=config.source,
        kind=told,
        why=why,
        lines=_lines(Subject(kind=told, facts=known)),
        notes=tuple(notes),
    )


def _lines(subject: Subject) -> tuple[Line, ...]:
    judged = [(t, t.judge(subject)) for t in techniques if subject.kind in t.kinds]
    lines = [
        Line(technique=t, judgement=j, bears_on=_bears_on(subject, t, j))
        for t, j in judged
        if j is not None
    ]
    return tuple(sorted(lines, key=lambda line: STATUSES.index(line.judgement.status)))


def _bears_on(subject: Subject, technique: Technique, judgement: Judgement) -> tuple[Finding, ...]:
    """Return the findings that a technique might have kept away, or made cheaper."""
    if subject.diagnosis is None or judgement.status == "in place":
        return ()
    found = []
    for incident in subject.diagnosis.incidents:
        if technique.lasting and incident.recovered is not None:
            continue
        alike = (
            f
            for f in incident.findings
            if f.severity != "notice"
            and f.rule.removeprefix("seed-") in technique.guards
            and (judgement.until is None or (f.attempt == 0 and f.first <= judgement.until))
        )
        found.append(next(alike, None))
    return tuple(f for f in found if f is not None)


def kind_of(facts: Mapping[str, Fact], run: Run | None = None) -> tuple[Kind, str]:
    """Return the kind of training, and what told it."""
    for look in (_named, _adapted, _columns, _tokens, _first_loss):
        found = look(facts, run)
        if found is not None:
            return found
    if run is not None and run.reader.startswith("hf-"):
        return "sft", "assumed of transformers' Trainer, for nothing tells; --kind overrules it"
    return "pretraining", "assumed, for nothing tells; --kind overrules it"


def _named(facts: Mapping[str, Fact], _: Run | None) -> tuple[Kind, str] | None:
    known = facts.get("algorithm")
    if known is None:
        return None
    words = set(re.findall("[a-z]+", str(known.value).lower()))
    named: tuple[tuple[Kind, tuple[str, ...]], ...] = (
        ("rl", RL_WORDS), ("sft", TUNING_WORDS), ("pretraining", PRETRAINING_WORDS),
    )  # fmt: skip
    for kind, of_kind in named:
        if words & set(of_kind):
            return kind, f"algorithm {known.value} ({known.source})"
    return None


def _adapted(facts: Mapping[str, Fact], run: Run | None) -> tuple[Kind, str] | None:
    if run is not None and is_rl(_words(run)):
        return None  # RL starts from a trained model too, often with adapters
    for name in ("lora_rank", "base_model"):
        if name in facts:
            return "sft", f"{name} {facts[name].value} ({facts[name].source})"
    return None


def _words(run: Run) -> list[str]:
    """Return the names that the log itself uses."""
    return [run.word(m) for m in run.measurements]


def _columns(_: Mapping[str, Fact], run: Run | None) -> tuple[Kind, str] | None:
    if run is None:
        return None
    words = _words(run)
    tuned = [w for w in words if normalise(w).endswith(PREFERENCE_WORDS)]
    if tuned:
        return "sft", f"column {tuned[0]}: preference tuning"
    if is_rl(words) or run.has("reward"):
        shown = next((w for w in words if is_rl([w])), run.word("reward"))
        return "rl", f"column {shown}"
    return None


def _tokens(facts: Mapping[str, Fact], _: Run | None) -> tuple[Kind, str] | None:
    per_step, total = facts.get("tokens_per_step"), facts.get("total_steps")
    if per_step is None or total is None:
        return None
    planned = float(per_step.value) * float(total.value)  # type: ignore[arg-type]
    if planned < PRETRAINING_TOKENS:
        return None
    return "pretraining", f"{count(planned)} tokens are planned"


def _first_loss(facts: Mapping[str, Fact], run: Run | None) -> tuple[Kind, str] | None:
    """Tell by how much the model knew when the run began."""
    if run is None or not run.has("loss"):
        return None
    row = int(np.flatnonzero(run.logged("loss"))[0])
    step, loss = int(run.frame["step"][row]), float(run.array("loss")[row])
    if step > BEGINNING or not math.isfinite(loss):
        return None
    begins = f"the loss is {number(loss, 3)} at step {step:,}"
    vocabulary = facts.get("vocab_size")
    if vocabulary is not None:
        guess = math.log(float(vocabulary.value))  # type: ignore[arg-type]
        if loss >= GUESS * guess:
            return "pretraining", f"{begins}; a guess is {number(guess, 3)}"
    if loss >= UNLEARNT:
        return "pretraining", f"{begins}: nothing was learnt before"
    if loss < LEARNT:
        return "sft", f"{begins}: the model had learnt before"
    return None
