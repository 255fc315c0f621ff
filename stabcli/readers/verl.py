"""Reader ``verl``: the console of verl's trainers."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from stabcli.assembly import LINE, Reading
from stabcli.readers import reader
from stabcli.run import Fact
from stabcli.sources import Source
from stabcli.textlog import KIND, Grammar, Line, Says, claims, known, readings
from stabcli.textlog.grammar import Config
from stabcli.textlog.records import MARK, joined

_SCALED = ("actor/lr(1e-4)", 1e-4), ("train/lr(1e-3)", 1e-3)
"""Older versions print the learning rate as a multiple."""
_ROUNDED = ("mfu/actor", "perf/mfu/actor", "actor/lr", "critic/lr")
"""Printed as 0.000 where they are not known or too small for three decimals."""


_PAIR = r"(?:- )?(?P<name>[^\s:][^:]{0,200}?):(?P<value>[\w.]+\([^)]{0,80}\)|[^\s:]+)(?=\s- |\s*$)"
_OWN = r"(?:actor|critic|perf|training|timing_s|response_length|global_seqlen|val-core|val-aux)"
"""First words of metrics by which a log is told."""
_ALONE, _BELOW = 1.0, [2.0, 3.0]
"""Kinds of lines: a step alone in its line, and metrics below it, one in each."""


def _steps(frame: pl.DataFrame, _: Config, notes: list[str]) -> pl.DataFrame:
    """Make rows of steps whose metrics stand below them, a line each, as Ray's job logs show them."""
    kinds = frame[KIND]
    if not (kinds == _ALONE).any():  # lines of a list that only happen to look like metrics
        return frame.filter(~pl.col(KIND).is_in(_BELOW))
    rows = joined(frame, {0, int(_ALONE)}, notes)
    values = [c for c in rows.columns if not c.startswith("@") and c != "step"]
    holds = pl.any_horizontal(pl.lit(value=False), *(pl.col(c).is_not_null() for c in values))
    empty = rows.filter(~holds)
    if empty.height:
        where = ", ".join(f"{line:,}" for line in empty[LINE].head(3))
        notes.append(f"steps without a metric left out: {empty.height:,}, in line {where}")
    return rows.filter(holds)


def _finish(frame: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    for name, factor in _SCALED:
        if name in frame.columns:
            whole = name.partition("(")[0]
            frame = frame.with_columns((pl.col(name) * factor).alias(name)).rename({name: whole})
    lost = [c for c in _ROUNDED if c in frame.columns and (frame[c].drop_nulls() == 0.0).all()]
    if lost:
        notes.append(
            f"always 0, which says that it is not known or was rounded off: {', '.join(lost)}"
        )
    return frame.drop(lost)


def _facts(config: Config) -> dict[str, Fact]:
    """Multiply nodes and the GPUs of each; the trainer's stand last in the dump, behind others'."""
    gpus, nodes = config.get("n_gpus_per_node"), config.get("nnodes")
    if not gpus or not nodes:
        return {}
    source = f"lines {gpus[-1][1]} and {nodes[-1][1]}, n_gpus_per_node x nnodes"
    return {"gpus": Fact(value=int(gpus[-1][0]) * int(nodes[-1][0]), source=source)}


GRAMMAR = known(
    Grammar(
        name="verl",
        lines=(
            Line(
                mark="step:",
                pattern=r"(?:^|(?<=\s))step:(?P<step>\d+) - (?=\S+?:\S)",
                pair=_PAIR,
            ),
            Line(
                mark="step:",
                pattern=r"^step:(?P<step>(?P<record>\d+))[ \t]*$",
                names={"record": MARK},
                main=False,
            ),
            Line(
                mark=" - ",
                pattern=rf"^[ \t]*- (?={_OWN}/[\w.@/-]+:\S+[ \t]*$)",
                pair=_PAIR,
                step="last",
            ),
            Line(
                mark=" - ",
                pattern=r"^[ \t]*- (?=[\w.@-]+/[\w.@/-]+:\S+[ \t]*$)",
                pair=_PAIR,
                step="last",
                main=False,
            ),
        ),
        names={
            "batch_tokens": "perf/total_num_tokens",
            "learning_rate": "actor/lr",
            "entropy": "actor/entropy",
            "objective_loss": "actor/pg_loss",
        },
        says=(
            Says(mark="n_gpus_per_node'", pattern=r"'n_gpus_per_node': (?P<n_gpus_per_node>\d+)"),
            Says(mark="nnodes'", pattern=r"'nnodes': (?P<nnodes>\d+)"),
            Says(mark="global_step_", pattern=r"(?i)\bsav\w+ .*?global_step_(?P<saved>\d+)"),
        ),
        scales={"mfu": 1.0},
        steps=_steps,
        finish=_finish,
        facts=_facts,
    )
)


def matches(source: Source) -> bool:
    """Claim a text log with lines such as ``step:34 - actor/entropy:0.2226 - …``."""
    return claims(source, GRAMMAR)


@reader(matches, writes="verl: console")
def verl(source: Source) -> Iterator[Reading]:
    """Read step lines with all their metrics, or steps with a metric a line below them.

    Step 0 is the validation before training.
    """
    yield from readings(source, GRAMMAR)
