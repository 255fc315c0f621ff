"""Grammars: how one framework writes a logged step. A reader of a text log is little more than one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import polars as pl

from stabcli.run import Fact

Config = Mapping[str, list[tuple[str, int]]]
"""What banners and argument dumps say: name -> values, each with the line that says it."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One kind of line that carries measurements.

    Named groups of ``pattern`` become columns, except ``step`` (the step of the row), ``total``
    (the last step planned) and those whose names begin with ``_`` (they may vary and say
    nothing). Beside them the rest of the line may hold pairs of a name and a value.
    """

    mark: str
    """Text that stands in every such line: cheap to search for."""
    pattern: str
    """Searched for in the line without its prefixes; ``^`` is where these end."""
    separator: str | None = None
    """What parts fields that say ``name: value``, e.g. ``|``; such lines are read many at once."""
    pair: str | None = None
    """For lines not so parted: finds ``(?P<name>…)`` and ``(?P<value>…)`` behind ``pattern``."""
    prefix: str = ""
    """Put before the names of the pairs, e.g. ``validation ``."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Name of a group or pair -> name of the column, where they differ."""
    without: frozenset[str] = frozenset()
    """Names of pairs that measure nothing."""
    step: Literal["own", "last", "next", "bar"] = "own"
    """Whose step it is where the line has none: that of the row before it, of the next one, or
    that of the progress bar before it."""
    main: bool = True
    """Whether a log of this framework can be told by such lines."""

    share: float = 0.0
    """Share of all lines that must be such for a log to be told by them."""

    @cached_property
    def head(self) -> re.Pattern[str]:
        """The pattern, compiled."""
        return re.compile(self.pattern.removeprefix("^"))

    @cached_property
    def anchored(self) -> bool:
        """Whether the pattern must stand at the begin of the line, behind its prefixes."""
        return self.pattern.startswith("^")

    @cached_property
    def pairs(self) -> re.Pattern[str] | None:
        """The pattern of a pair, compiled."""
        return re.compile(self.pair) if self.pair else None


@dataclass(frozen=True, kw_only=True)
class Says:
    """One kind of line that says how the run is set up.

    Named groups are names of a configuration; ``key`` and ``value`` hold name and value both.
    """

    mark: str
    """Text that stands in every such line."""
    pattern: str
    """Searched for in the line as it stands, without colours."""

    @cached_property
    def found(self) -> Callable[[str], Iterator[re.Match[str]]]:
        """Find the pattern in a line, as often as it is there."""
        return re.compile(self.pattern).finditer


Steps = Callable[[pl.DataFrame, Config, list[str]], pl.DataFrame]
"""Gives rows their steps where the lines have none."""
Finish = Callable[[pl.DataFrame, list[str]], pl.DataFrame]
"""What a format does to the rows of a run, in the order of the log; notes go into the list."""
Facts = Callable[[Config], Mapping[str, Fact | None]]
"""What a format makes of a configuration beyond the names that all formats share; None takes back
what a name seemed to say."""


def _unchanged(frame: pl.DataFrame, _: list[str]) -> pl.DataFrame:
    return frame


def _nothing(_: Config) -> Mapping[str, Fact | None]:
    return {}


@dataclass(frozen=True, kw_only=True, eq=False)
class Grammar:
    """How one framework writes its log."""

    name: str
    """That of its reader."""
    lines: tuple[Line, ...]
    """Kinds of lines that carry measurements; the first that matches a line is it."""
    says: tuple[Says, ...] = ()
    """Kinds of lines that say how the run is set up."""
    starts: str | None = None
    """Stands in a line that a (re)start prints, once or more."""
    ends: str | None = None
    """Stands in a line that the end of a training prints: what begins anew after it is another run."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Canonical name -> column, where its name alone does not tell."""
    scales: Mapping[str, float] = field(default_factory=dict)
    """Canonical name -> factor from the log's unit."""
    finish: Finish = _unchanged
    """Makes hidden values visible and placeholders null."""
    steps: Steps | None = None
    """Gives rows their steps where the lines have none."""
    facts: Facts = _nothing
    """Reads facts that need arithmetic."""
    tier: int = 0
    """0: a framework's own log; 1: lines that stand in logs of others, too; 2: a guess."""
    bars: bool = False
    """Whether steps are shown by progress bars."""
    planned: str = ""
    """Name in ``says`` of the steps planned, by which the right progress bar is told."""


GRAMMARS: dict[str, Grammar] = {}
"""Every grammar of which a reader was imported, by name."""


def known(grammar: Grammar) -> Grammar:
    """Take a grammar into the comparison by which ``claims`` decides whose a log is."""
    GRAMMARS[grammar.name] = grammar
    return grammar
