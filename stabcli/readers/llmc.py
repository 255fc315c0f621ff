"""Reader ``llmc``: console and ``main.log`` of llm.c."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from stabcli.assembly import Reading
from stabcli.readers import reader
from stabcli.run import Fact
from stabcli.sources import Source
from stabcli.textlog import Grammar, Line, Says, claims, known, readings
from stabcli.textlog.grammar import Config

_NUMBER = r"[-+]?(?:[\d.]+(?:[eE][-+]?\d+)?|nan|inf)"
_TABLE = {
    "total batch size": "tokens_per_step",
    "sequence length T": "sequence_length",
    "learning rate (LR)": "peak_lr",
    "warmup iterations": "warmup_steps",
    "weight decay": "weight_decay",
    "num_processes": "gpus",
}
"""Rows of the table at the start of a log -> facts."""


def _finish(frame: pl.DataFrame, _: list[str]) -> pl.DataFrame:
    """Take out the MFU that is not known: -100 %."""
    if "mfu" in frame.columns:
        return frame.with_columns(mfu=pl.when(pl.col("mfu") >= 0).then(pl.col("mfu")))
    return frame


def _facts(config: Config) -> dict[str, Fact | None]:
    facts: dict[str, Fact | None] = {"batch_sequences": None}  # the total batch size is in tokens
    for row, name in _TABLE.items():
        value, line = config.get(row, [("", 0)])[0]
        try:
            read = float(value)
        except ValueError:
            continue
        whole = name not in ("peak_lr", "weight_decay")
        facts[name] = Fact(value=int(read) if whole else read, source=f"line {line}, {row}")
    for row, name in (("device", "gpu"), ("precision", "precision")):
        value, line = config.get(row, [("", 0)])[0]
        if value:
            facts[name] = Fact(value=value, source=f"line {line}, {row}")
    return facts


GRAMMAR = known(
    Grammar(
        name="llmc",
        lines=(
            Line(
                mark="| loss ",
                pattern=rf"\bstep\s+(?P<step>\d+)/(?P<total>\d+) \| loss (?P<loss>{_NUMBER})"
                rf" \(\S+z\)\| norm (?P<norm>{_NUMBER}) \(\S+z\)\| lr (?P<lr>\S+)"
                r" \| (?P<time>[\d.]+ ms) \| (?P<mfu>-?[\d.]+%) \w+ MFU \| (?P<tok_s>[\d.]+) tok/s",
                names={"tok_s": "tok/s"},
            ),
            Line(
                mark="s:",
                pattern=r"^s:(?P<step>\d+)\s+(?=(?:trl|tel|eval):\S)",
                pair=r"(?P<name>[a-z]+):(?P<value>\S+)",
                names={"tel": "val loss (tel)", "trl": "loss (trl)", "eval": "hellaswag (eval)"},
            ),
            Line(
                mark="val loss",
                pattern=rf"^val loss (?P<val>{_NUMBER})",
                names={"val": "val loss"},
                step="last",
                main=False,
            ),
        ),
        says=(
            Says(mark="| ", pattern=r"^\|\s*(?P<key>[\w ()]+?)\s*\|\s*(?P<value>[^|]+?)\s*\|\s*$"),
            Says(mark="num_param", pattern=r"num_parameters:? \|?\s*(?P<num_parameters>\d+)"),
        ),
        names={"loss": "loss (trl)", "val_loss": "val loss (tel)", "step_seconds": "time"},
        scales={"mfu": 1.0},
        finish=_finish,
        facts=_facts,
    )
)


def matches(source: Source) -> bool:
    """Claim a text log with the step lines of llm.c."""
    return claims(source, GRAMMAR)


@reader(matches, writes="llm.c: console and main.log")
def llmc(source: Source) -> Iterator[Reading]:
    """Read step and validation lines. The console counts steps from 1, main.log from 0."""
    yield from readings(source, GRAMMAR)
