"""Reader ``keras``: what Keras prints of ``fit``, bars or a line an epoch."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from stabcli.assembly import Reading
from stabcli.readers import reader
from stabcli.sources import Source
from stabcli.textlog import Grammar, Line, Says, claims, known, passes, readings
from stabcli.textlog.grammar import Config
from stabcli.textlog.machines import FLAGS, NVIDIA_SMI, gpus_of
from stabcli.textlog.pairs import HAS_LOSS, MARKS
from stabcli.units import plural

_BAR = r"^[\b\s]*(?P<at>\d+)/(?P<of>\d+)[ \t]*(?:\[[=>.]+\]|[━╸╺]+)"
_EPOCH = r"^[\b\s]*(?:(?P<at>\d+)/(?P<of>\d+)[ \t]+)?-[ \t]+(?P<seconds>\d+)m?s[ \t]+-[ \t]"
"""A line of a whole epoch; older versions do not say how many iterations it had."""
_PAIR = r"(?<=[ \t])(?P<name>[A-Za-z_][^\s:]{0,99})(?::[ \t]*|[ \t]+)(?P<value>-?[^\s-]\S*)"
"""A name stands behind a dash and before a colon; where one of them is damaged, it is one still."""
_HEADING = Line(
    mark="Epoch",
    pattern=r"^Epoch[ \t]+(?P<epoch>\d+)[ \t]*/[ \t]*(?P<epochs>\d+)[ \t]*$",
    step="bar",
    main=False,
)
"""What stands above an epoch, whose bar or line does not name it."""
_COLUMNS = ("at", "of", "epoch", "epochs", "seconds")


def _line(pattern: str, mark: str) -> Line:
    return Line(
        mark=mark,
        pattern=rf"{pattern}(?={HAS_LOSS})",
        pair=_PAIR,
        without=frozenset({"ETA"}),
        step="bar",
    )


def _steps(frame: pl.DataFrame, config: Config, notes: list[str]) -> pl.DataFrame:
    """Number the iterations through all epochs; evaluations are no training."""
    absent = [c for c in _COLUMNS if c not in frame.columns]
    frame = frame.with_columns(pl.lit(None, dtype=pl.Float64).alias(c) for c in absent)
    unknown = pl.col("seconds").is_not_null() & pl.col("at").is_null()
    frame = frame.with_columns(pl.when(unknown).then(1.0).otherwise(pl.col("at", "of")).name.keep())
    frame = _of_training(frame, notes)
    frame = frame.with_columns(pl.col("epoch", "epochs").fill_null(strategy="forward"))
    frame = frame.filter(pl.col("at").is_not_null())
    if not frame.height:
        return frame
    samples = {float(count) for count, _ in config.get("pass_samples", [])}
    if samples.intersection(frame["of"]):
        frame = passes.iterations(frame, config, notes)
    frame = passes.numbered(frame, notes).drop("seconds")
    # A bar is drawn again and again: what it showed last of a step is it.
    return frame.filter(pl.col("step") != pl.col("step").shift(-1, fill_value=-1))


def _of_training(frame: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    """Leave out ``evaluate``: what stands below the end of an epoch and above the next heading."""
    heading = pl.col("epoch").is_not_null()
    frame = frame.with_columns(heading.cum_sum().alias("@block"))
    end = (pl.col("at") >= pl.col("of")).fill_null(value=False)
    ended = end.cum_sum().over("@block") - end > 0
    other = (pl.col("of") != pl.col("of").drop_nulls().first().over("@block")) | ~end
    another = ended & ~heading & (other | pl.col("seconds").is_not_null())
    evaluated = another.cum_max().over("@block") & (pl.col("@block") > 0)
    frame = frame.with_columns(evaluated.alias("@evaluated"))
    lines = int(frame["@evaluated"].sum())
    if lines:
        notes.append(f"{plural(lines, 'row')} of evaluations after an epoch left out")
    return frame.filter(~pl.col("@evaluated")).drop("@evaluated", "@block")


GRAMMAR = known(
    Grammar(
        name="keras",
        lines=(*(_line(pattern, mark) for pattern in (_BAR, _EPOCH) for mark in MARKS), _HEADING),
        says=(
            Says(mark="Train on ", pattern=r"^Train on (?P<pass_samples>\d{1,15}) samples"),
            FLAGS,
            NVIDIA_SMI,
        ),
        steps=_steps,
        facts=gpus_of,
        tier=3,  # such bars stand in logs of others, too
    )
)


def matches(source: Source) -> bool:
    """Claim a text log with Keras' bars, or its lines such as ``60/60 - 4s - loss: 0.5 - …``."""
    return claims(source, GRAMMAR)


@reader(matches, writes="Keras: bars, or a line an epoch (verbose=2)")
def keras(source: Source) -> Iterator[Reading]:
    """Read what stands below ``Epoch 1/10``: the values a bar shows, or those of the epoch's line.

    Steps are numbered through all epochs. Versions that count samples say so before they train;
    where they do not say how many make a step, lines are counted. What ``evaluate`` prints is
    passed by.
    """
    yield from readings(source, GRAMMAR)
