"""Reader ``pytorch-examples``: loops grown from PyTorch's quickstart or its MNIST example."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from stabcli.assembly import LINE, Reading
from stabcli.readers import reader
from stabcli.sources import Source
from stabcli.textlog import Grammar, Line, Says, claims, known, passes, readings
from stabcli.textlog.grammar import Config
from stabcli.textlog.machines import FLAGS, NVIDIA_SMI, gpus_of
from stabcli.textlog.pairs import HAS_LOSS, MARKS, NUMBER, PAIR

_AT = r"\[[ \t]*(?P<at>\d+)[ \t]*/[ \t]*(?P<of>\d+)"
_NOT_MEASURED = frozenset({"Epoch", "epoch", "Process", "process"})
_NOT_KEPT = ("percent", "correct", "examples")

EXAMPLE = tuple(
    Line(
        mark=mark,
        pattern=rf"^(?=.{{0,80}}?\b(?i:epoch)[ \t:]*(?P<epoch>\d+)[ \t]*{_AT}"
        rf"[ \t]*\([ \t]*(?P<percent>\d+(?:\.\d+)?)[ \t]*%\))(?={HAS_LOSS})",
        pair=PAIR,
        without=_NOT_MEASURED,
        step="bar",
    )
    for mark in MARKS
)
"""``Train Epoch: 1 [640/60000 (1%)]  Loss: 2.3``."""
QUICKSTART = tuple(
    Line(
        mark=mark,
        pattern=rf"^{mark}:[ \t]*(?P<quick>{NUMBER})[ \t]*{_AT}[ \t]*\][ \t]*$",
        names={"quick": "loss"},
        step="bar",
    )
    for mark in MARKS
)
"""``loss: 2.303494  [   64/60000]``."""
BESIDE = (
    Line(
        mark="poch",
        pattern=r"^\W{0,40}(?i:epoch)[ \t:#]*(?P<epoch>\d+)(?:[ \t]*/[ \t]*(?P<epochs>\d+))?\W{0,40}$",
        step="bar",
        main=False,
    ),
    Line(
        mark="vg loss",
        pattern=r"^\s*Accuracy:[ \t]*(?P<val_accuracy>\d+(?:\.\d+)?%?)[ \t]*,[ \t]*Avg loss:[ \t]*"
        rf"(?P<val_loss>{NUMBER})",
        step="bar",
        main=False,
    ),
    Line(
        mark="loss: ",
        pattern=r"^[=> \t]*(?i:test|val|validation)[ \t]+set:?[ \t]+(?i:(?:average|avg\.?)[ \t]+)?"
        rf"loss:[ \t]*(?P<val_loss>{NUMBER})"
        r"(?:,[ \t]*Accuracy:[ \t]*(?P<correct>\d+(?:\.\d+)?)/(?P<examples>\d+))?",
        step="bar",
        main=False,
    ),
)
"""What stands above the lines of an epoch in the quickstart; and what both print of an evaluation."""


def _steps(frame: pl.DataFrame, config: Config, notes: list[str]) -> pl.DataFrame:
    """Number the steps through all epochs; an evaluation is of the step before it."""
    if "at" not in frame.columns:
        return frame.clear()
    tests = frame.filter(pl.col("val_loss").is_not_null()) if "val_loss" in frame.columns else None
    if "epoch" in frame.columns:
        frame = frame.with_columns(pl.col("epoch").fill_null(strategy="forward"))
    frame = frame.filter(pl.col("at").is_not_null())
    if "percent" not in frame.columns or passes.are_samples(frame, config):
        frame = passes.iterations(frame, config, notes)
    frame = passes.numbered(frame, notes).drop("epochs", strict=False)
    if tests is not None:
        kept = [c for c in tests.columns if c not in ("at", "of", "epoch", "epochs")]
        frame = pl.concat([frame, tests.select(kept)], how="diagonal").sort(LINE)
        frame = frame.with_columns(pl.col("step").fill_null(strategy="forward"))
        if {"correct", "examples"} <= {*kept}:
            share = (pl.col("correct") / pl.col("examples")).alias("val_accuracy")
            frame = frame.with_columns(share)
    return frame.drop(*_NOT_KEPT, strict=False)


GRAMMAR = known(
    Grammar(
        name="pytorch-examples",
        lines=(*EXAMPLE, *QUICKSTART, *BESIDE),
        says=(
            Says(mark="batch_size=", pattern=r"\bbatch_size=(?P<batch_size>\d{1,9})\b"),
            FLAGS,
            NVIDIA_SMI,
        ),
        steps=_steps,
        facts=gpus_of,
    )
)


def matches(source: Source) -> bool:
    """Claim a text log with lines such as ``Train Epoch: 1 [640/60000 (1%)]  Loss: 2.3``."""
    return claims(source, GRAMMAR)


@reader(matches, writes="PyTorch's quickstart and MNIST example, and loops grown from them")
def pytorch_examples(source: Source) -> Iterator[Reading]:
    """Read losses and evaluations; what such lines count are samples, and the steps are made of them.

    The size of a batch is taken from what the log says of it, or from loops that count a batch
    once it is done; else lines are counted as steps, and a note says so. An evaluation belongs to
    the step before it.
    """
    yield from readings(source, GRAMMAR)
