"""Reader ``per-epoch``: loops that count their iterations anew in each epoch, in lines or bars."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import polars as pl

from stabcli.assembly import Reading
from stabcli.readers import reader
from stabcli.sources import Source
from stabcli.textlog import Grammar, Line, claims, known, passes, readings
from stabcli.textlog.grammar import Config
from stabcli.textlog.machines import FLAGS, NVIDIA_SMI, gpus_of
from stabcli.textlog.pairs import HAS_LOSS, MARKS, PAIR

_AT = r"\[?[ \t]*(?<!\d)(?P<at>\d+)[ \t]*/[ \t]*(?P<of>\d+)(?![\d.])"
_EPOCH = (
    r"(?<![\w\"'/.])(?i:(?:train(?:ing)?[ _]?)?epoch|train(?:ing)?)(?:\(train\))?[ \t:=#]*"
    r"\[?[ \t]*(?P<epoch>\d+)(?:[ \t]*/[ \t]*(?P<epochs>\d+))?[ \t]*\]?"
)
_BETWEEN = r"[\s,:|{}\[\-]*(?:(?i:step|iter(?:ation)?|batch|it)s?[\s:=]*)?"
"""What stands between the epoch and the iteration: ``, Step [``, `` | ``, ``][``."""
_SAID = r".{0,250}?"
"""What stands before a bar, or between its parts."""
_EVALUATES = rf"(?!{_SAID}(?i:\b(?:val|valid|validation|validating|eval|evaluat\w+|test|testing)\b){_SAID}\d%\|)"
_BAR = r"(?:\d%\|[^|\r]*\||[━╸╺]+)[ \t]*(?P<at>\d+)/(?P<of>\d+)(?![\d.])"
_NOT_MEASURED = frozenset({"eta", "Epoch", "epoch", "Step", "step", "Iter", "iter", "Batch",
                           "batch", "Train", "train"})  # fmt: skip
_LIGHTNING = "v_num"
"""Stands in the bars of Lightning, whose first epoch is 0."""


def _line(pattern: str, mark: str) -> Line:
    return Line(mark=mark, pattern=pattern, pair=PAIR, without=_NOT_MEASURED, step="bar")


def _steps(frame: pl.DataFrame, _: Config, notes: list[str]) -> pl.DataFrame:
    """Number the iterations through all epochs: those of the epochs before, and its own."""
    if "at" not in frame.columns:
        return frame.clear()
    if "epoch" in frame.columns:
        frame = frame.with_columns(pl.col("epoch").fill_null(strategy="forward"))
    frame = frame.filter(pl.col("at").is_not_null())
    frame = passes.numbered(frame, notes, from_zero=_LIGHTNING in frame.columns)
    # A bar is drawn again and again: what it showed last of a step is it.
    frame = frame.drop(_LIGHTNING, strict=False)
    return frame.filter(pl.col("step") != pl.col("step").shift(-1, fill_value=-1))


def _finish(frame: pl.DataFrame, _: list[str]) -> pl.DataFrame:
    """Take the time of an iteration, which stands beside that of its data, for what it is."""
    for whole, part in (("time", "data_time"), ("Time", "Data"), ("time", "data")):
        if {whole, part} <= set(frame.columns):
            return frame.rename({whole: "step_seconds", part: "data_time"})
    return frame


def _grammar(name: str, tier: int, *patterns: str) -> Grammar:
    lines = tuple(_line(pattern, mark) for pattern in patterns for mark in MARKS)
    return known(
        Grammar(
            name=name,
            lines=lines,
            says=(FLAGS, NVIDIA_SMI),
            steps=_steps,
            finish=_finish,
            facts=gpus_of,
            tier=tier,
        )
    )


LINES = _grammar("per-epoch", 1, rf"^(?=.*?{_EPOCH}{_BETWEEN}{_AT})(?={HAS_LOSS})")
BARS = _grammar(
    "per-epoch, bars",
    3,
    rf"^{_EVALUATES}(?={_SAID}{_EPOCH}{_SAID}{_BAR})(?={HAS_LOSS})",
    rf"^{_EVALUATES}(?={_SAID}{_BAR})(?={HAS_LOSS})",
)


def matches(source: Source) -> bool:
    """Claim a text log whose lines or bars show an epoch, an iteration of it and a loss."""
    return claims(source, LINES) or claims(source, BARS)


@reader(matches, writes="MMEngine, XTuner, timm, Lightning's bars, loops with tqdm")
def per_epoch(source: Source) -> Iterator[Reading]:
    """Read lines like ``Epoch [2/10], Step [100/600], Loss: 0.5``, and bars that show a loss.

    Steps are numbered through all epochs. Of a value and the average of it behind it, ``6.59
    (6.60)``, the value is taken. Bars of an evaluation are passed by.
    """
    grammar = LINES if claims(source, LINES) else BARS
    what = (
        "no reader knows this format: the values named in"
        f" {'lines' if grammar is LINES else 'progress bars'} with a loss were taken"
    )
    for reading in readings(source, grammar):
        yield replace(reading, notes=(what, *reading.notes))
