"""Techniques: each says whether a run uses one way to keep a training stable.

A technique is a file ``techniques/<name>.py`` holding one function of that name under
``@technique``; its docstring is its documentation. What neither configuration nor log tells is
unknown, and unknown is never missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from stabcli.diagnosis import Diagnosis
from stabcli.registry import Documented, Registry
from stabcli.run import Fact, Run
from stabcli.units import Step, number

Kind = Literal["pretraining", "sft", "rl"]
"""Kinds of training: from nothing, supervised on top of a trained model, by reward."""
KINDS: tuple[Kind, ...] = get_args(Kind)
Status = Literal["missing", "unknown", "in place"]
STATUSES: tuple[Status, ...] = get_args(Status)
"""In the order a person should read them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is audited: a run with what is known of it, or a configuration alone."""

    kind: Kind
    facts: Mapping[str, Fact]
    """What configuration and log say."""
    diagnosis: Diagnosis | None = None
    """The run, looked at; None for a configuration alone."""

    @property
    def run(self) -> Run | None:
        """The run, where there is one."""
        return None if self.diagnosis is None else self.diagnosis.run

    def has(self, *metrics: str) -> bool:
        """Say whether a run is there and logged all of these metrics."""
        return self.run is not None and self.run.has(*metrics)

    def number(self, fact: str) -> float | None:
        """Return a numeric fact; None where nothing says it."""
        known = self.facts.get(fact)
        return float(known.value) if known and isinstance(known.value, (int, float)) else None

    def word(self, fact: str) -> str | None:
        """Return a fact as lower-case text; None where nothing says it."""
        known = self.facts.get(fact)
        return None if known is None else str(known.value).lower()

    def cite(self, *facts: str) -> str:
        """Tell facts with their sources: ``grad_clip 1 (config.json, max_grad_norm)``."""
        said = []
        for name in facts:
            known = self.facts[name]
            value = known.value
            shown = number(value) if isinstance(value, (int, float)) else str(value)
            said.append(f"{name} {shown} ({known.source})")
        return ", ".join(said)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What a technique says of a subject."""

    status: Status
    evidence: str
    """What was seen, and where; in ``unknown`` what was looked for."""
    until: Step | None = None
    """Last step at which it could have helped; None where it could throughout."""


def missing(evidence: str, *, until: Step | None = None) -> Judgement:
    """Say that a technique is not used."""
    return Judgement(status="missing", evidence=evidence, until=until)


def unknown(evidence: str, *, until: Step | None = None) -> Judgement:
    """Say that nothing tells whether a technique is used."""
    return Judgement(status="unknown", evidence=evidence, until=until)


def in_place(evidence: str) -> Judgement:
    """Say that a technique is used."""
    return Judgement(status="in place", evidence=evidence)


Judge = Callable[[Subject], Judgement | None]


@dataclass(frozen=True, slots=True)
class Technique(Documented):
    """A judge and everything known of it; made by ``@technique`` only."""

    judge: Judge
    """Judges a subject; returns None where the question does not come up."""
    kinds: tuple[Kind, ...]
    """The kinds of training that use it."""
    guards: tuple[str, ...]
    """Rules whose findings it bears on."""
    effect: str
    """What it does about them, as the beginning of a sentence."""
    lasting: bool
    """Whether it bears only on what never recovered."""

    @property
    def function(self) -> Judge:
        """The function it is made of."""
        return self.judge

    @property
    def sources(self) -> tuple[str, ...]:
        """Where its claims come from."""
        return tuple(s.strip() for s in re.split(r"(?:^|\s)- ", self.section("Sources")) if s)


techniques: Registry[Technique] = Registry(__name__, "technique")


def technique(
    *,
    kinds: tuple[Kind, ...] = KINDS,
    guards: tuple[str, ...] = (),
    effect: str = "",
    lasting: bool = False,
) -> Callable[[Judge], Judge]:
    """Register the judge below as a technique named after it; see ``Technique``."""

    def register(judge: Judge) -> Judge:
        techniques.add(Technique(judge, kinds, guards, effect, lasting))
        return judge

    return register
