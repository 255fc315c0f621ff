"""Reader ``generic-text``: loops that nobody knows, where they print a step and a loss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import polars as pl

from stabcli.assembly import Reading
from stabcli.readers import reader
from stabcli.sources import Source
from stabcli.stepping import steps_of_epochs
from stabcli.textlog import Grammar, Line, claims, known, readings
from stabcli.textlog.grammar import Config
from stabcli.textlog.machines import FLAGS, NVIDIA_SMI, SAVED, gpus_of
from stabcli.textlog.pairs import HAS_LOSS, MARKS, NUMBER, PAIR

_STEP = (
    r"(?<![\w'/.])(?i:(?:global|train|training|optimizer)?[ _]?(?:step|iter|iteration|update))"
    r"s?\]?(?:\(train\)|\.{3} ?\()?[\"']?[ \t]*[:=#]?[ \t]*\[?[ \t]*(?P<step>\d[\d,]*)(?:[ \t]*/[ \t]*(?P<total>\d[\d,]*))?(?![\w.])"
)
_STEPS = frozenset(
    f"{before}{word}"
    for word in ("step", "Step", "iter", "Iter", "iteration", "Iteration", "update", "steps")
    for before in ("", "global_", "train_")
)


def _line(mark: str) -> Line:
    pattern = rf"^(?!\s*[\[{{]?\")(?=.*?{_STEP})(?={HAS_LOSS})"
    return Line(mark=mark, pattern=pattern, pair=PAIR, without=_STEPS)


GRAMMAR = known(
    Grammar(
        name="generic-text",
        lines=tuple(map(_line, MARKS)),
        says=(FLAGS, NVIDIA_SMI, SAVED),
        facts=gpus_of,
        tier=2,
    )
)
_STEP_WORD = r"(?i:\b(?:step|iter|iteration|update|batch)s?\b)"
"""Stands in no line that is one of a whole epoch."""


def _epochs(frame: pl.DataFrame, _: Config, notes: list[str]) -> pl.DataFrame:
    """Take epochs as steps, where they can be."""
    if "epoch" not in frame.columns:
        return frame
    steps = steps_of_epochs(frame["epoch"], "epoch", notes)
    return frame if steps is None else frame.with_columns(steps.alias("step"))


TABLE = known(
    Grammar(
        name="generic-text, table",
        lines=tuple(
            Line(
                mark=blank,
                pattern=rf"^\s*(?P<step>\d+)[ \t]+(?P<loss>{NUMBER})\s*$",
                share=share,
            )
            for blank, share in ((" ", 0.9), ("\t", 1.0))
        ),
        tier=3,
    )
)
"""Two columns and nothing else: such lines alone say little, so that all must be like that."""


_EPOCH = (
    r"(?i:\bepochs?\b)[ \t]*[:=#]?[ \t]*[\[(]?(?P<epoch>\d+(?:\.\d+)?)"
    r"(?:[ \t]*/[ \t]*\d+)?(?![\w.])"
)
EPOCHS = known(
    Grammar(
        name="generic-text, epochs",
        lines=tuple(
            Line(
                mark=mark,
                pattern=rf"^(?!\s*[\[{{]?\")(?!.*{_STEP_WORD})(?=.*?{_EPOCH})"
                rf"(?={HAS_LOSS})",
                pair=PAIR,
                without=frozenset({"epoch", "Epoch", "EPOCH", "epochs", "Epochs"}),
                step="bar",
                share=0.05,
            )
            for mark in MARKS
        ),
        says=(FLAGS, NVIDIA_SMI),
        steps=_epochs,
        facts=gpus_of,
        tier=4,
    )
)
"""Lines of a loop that counts epochs and nothing else."""


def matches(source: Source) -> bool:
    """Claim a text log with a step and a loss in many lines, if no framework's reader claims it."""
    return any(claims(source, grammar) for grammar in (GRAMMAR, TABLE, EPOCHS))


@reader(matches, writes="loops that nobody knows, with a step and a loss in a line")
def generic_text(source: Source) -> Iterator[Reading]:
    """Read lines with a step and a loss, and what else is named in them.

    Nothing is made up: a column has the name that the line gives it, and only names that all
    logs share are understood. A file of two columns of numbers is taken as step and loss.
    """
    columns = claims(source, TABLE)
    epochs = not columns and claims(source, EPOCHS)
    what = (
        "two columns of numbers were taken as step and loss"
        if columns
        else f"no reader knows this format: lines with {'an epoch' if epochs else 'a step'} and a"
        " loss were taken, and the values named in them"
    )
    for reading in readings(source, TABLE if columns else EPOCHS if epochs else GRAMMAR):
        yield replace(reading, notes=(what, *reading.notes))
