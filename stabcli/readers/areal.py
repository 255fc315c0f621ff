"""Reader ``areal``: the console of AReaL's trainers, a table of statistics a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import polars as pl

from stabcli.assembly import Reading
from stabcli.readers import reader
from stabcli.sources import Source
from stabcli.textlog import Grammar, Line, claims, known, readings
from stabcli.textlog.grammar import Config
from stabcli.textlog.records import MARK, joined

_ENDS = {
    "grad_norm": ("/update/grad_norm", "/grad_norm"),
    "learning_rate": ("/update/lr", "/lr"),
    "entropy": ("/update/entropy/avg", "/entropy/avg"),
    "objective_loss": ("/update/actor_loss/avg", "/actor_loss/avg"),
    "loss": ("sft/loss/avg",),
    "reward": ("/task_reward/avg", "rollout/reward"),
}
"""Canonical name -> ends of the names that AReaL builds of the parts of a trainer."""


def _steps(frame: pl.DataFrame, _: Config, notes: list[str]) -> pl.DataFrame:
    """Make a row of a step and the tables below it; of several tables each stands for itself."""
    return joined(frame, {0, 1}, notes)


GRAMMAR = known(
    Grammar(
        name="areal",
        lines=(
            Line(
                mark="Train step ",
                pattern=r"(?:Epoch (?P<epoch>\d+)/\d+ )?(?:Step \d+/\d+ )?"
                r"Train step (?P<step>(?P<record>\d+))/(?P<total>\d+) done\b",
                names={"record": MARK},
            ),
            Line(
                mark="Stats (",
                pattern=r"\bStats \((?P<record>\d+)/\d+\):\s*$",
                names={"record": MARK},
                step="bar",
                main=False,
            ),
            Line(
                mark="│",
                pattern=r"^[ \t]*(?=│[ \t]*[A-Za-z_][^│]{0,200}│[ \t]*[^\s│]+[ \t]*│)",
                pair=r"│[ \t]*(?P<name>[A-Za-z_][^│]{0,200}?)[ \t]*│[ \t]*(?P<value>[^\s│]+)[ \t]*(?=│)",
                step="bar",
                main=False,
            ),
        ),
        steps=_steps,
    )
)


def matches(source: Source) -> bool:
    """Claim a text log with lines such as ``Epoch 1/10 Step 5/468 Train step 5/4680 done.``."""
    return claims(source, GRAMMAR)


@reader(matches, writes="AReaL: console")
def areal(source: Source) -> Iterator[Reading]:
    """Read the tables of statistics below each step, however many stand side by side."""
    for reading in readings(source, GRAMMAR):
        columns = reading.table.columns
        found = {
            metric: next((c for end in ends for c in columns if c.endswith(end)), "")
            for metric, ends in _ENDS.items()
        }
        yield replace(reading, names={m: c for m, c in found.items() if c})
