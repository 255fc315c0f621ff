"""Reader ``nemo``: the console of NeMo 2."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from stabcli.assembly import Reading
from stabcli.readers import reader
from stabcli.sources import Source
from stabcli.textlog import Grammar, Line, Says, claims, known, readings

_LOSS = "reduced_train_loss"
_HEAD = r"\bTraining epoch (?P<epoch>\d+), iteration "
_NAMES = {"consumed_samples": "consumed_samples (mean)"}
"""Means over the steps since the line before, so that they count nothing."""
_PAIR = r"\|\s*(?P<name>[^|:]+?):\s*(?P<value>[^|]*[^|\s])"


def _finish(frame: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    """Take out the losses of pipeline stages that have none, and repetitions of the last one held out."""
    if _LOSS in frame.columns and (count := int((frame[_LOSS] == 0.0).sum())):
        notes.append(f"{count:,} times {_LOSS!r} is 0: the stage computes none, left out")
        value = pl.when(pl.col(_LOSS) != 0.0).then(pl.col(_LOSS))
        frame = frame.with_columns(value.alias(_LOSS))
    if "val_loss" in frame.columns:
        before = pl.col("val_loss").forward_fill().shift(1)
        new = before.is_null() | before.ne_missing(pl.col("val_loss"))
        frame = frame.with_columns(val_loss=pl.when(new).then(pl.col("val_loss")))
        notes.append("'val_loss' stands in every line after an evaluation: the first one was taken")
    return frame


GRAMMAR = known(
    Grammar(
        name="nemo",
        lines=(
            Line(
                mark="Training epoch",
                pattern=_HEAD
                + r"\d+/-?\d+ (?=\|(?:.*\|)?\s*global_step: (?P<step>\d+)\s*(?:\||$))",
                pair=_PAIR,
                names=_NAMES,
                without=frozenset({"global_step"}),
            ),
            Line(
                mark="Training epoch",
                pattern=_HEAD + r"(?P<step>\d+)/-?\d+ (?=\|)",
                pair=_PAIR,
                names=_NAMES,
            ),
        ),
        says=(
            Says(
                mark="OptimizerConfig(",
                pattern=r"\b(?P<key>optimizer|lr|weight_decay|clip_grad)='?(?P<value>[^,')]+)",
            ),
            Says(mark="Starting with", pattern=r"Starting with (?P<gpus>\d+) processes"),
            Says(mark="heckpoint save for", pattern=r"checkpoint save for step (?P<saved>\d+)"),
        ),
        starts="Setting up optimizer with config",
        ends="stopped: `max_",
        finish=_finish,
    )
)


def matches(source: Source) -> bool:
    """Claim a text log with the progress lines of NeMo 2."""
    return claims(source, GRAMMAR)


@reader(matches, writes="NeMo 2: console")
def nemo(source: Source) -> Iterator[Reading]:
    """Read progress lines; values are means over the steps since the line before, to four digits."""
    yield from readings(source, GRAMMAR)
