"""Reader ``litgpt``: the console of LitGPT."""

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
_TIME = "time of a micro-batch"
_LOSS = "loss of a micro-batch"
_HEAD = (
    r"Epoch (?P<epoch>\d+) \| iter (?P<iter>\d+) step (?P<step>\d+) \| loss train:"
    rf" (?P<loss>{_NUMBER}), val: (?P<_val>\S+) \| iter time: (?P<time>[\d.]+ ms)"
)


def _finish(frame: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    """Take what is said of micro-batches for the step where nothing else is or each has only one."""
    if "loss" not in frame.columns and _LOSS in frame.columns:
        notes.append("no line is marked as the end of a step: losses are those of micro-batches")
        frame = frame.rename({_LOSS: "loss"})
    elif "loss" in frame.columns:
        done = frame.filter(pl.col("loss").is_not_null())["step"]
        later = pl.col("step") > done.min()  # the step that a log ends in has not been counted yet
        lost = frame.filter(later & ~pl.col("step").is_in(done.implode()))["step"].n_unique()
        if lost:
            notes.append(f"no line is marked as the end of {lost:,} steps: their loss is unknown")
    if {"iter", _TIME} <= set(frame.columns):
        train = frame.filter(pl.col("iter").is_not_null())
        if (train["iter"] == train["step"]).all():
            return frame.rename({_TIME: "iter time"})
    return frame


def _facts(config: Config) -> dict[str, Fact]:
    """Multiply the devices of a node with the nodes, of which there is one where none is told of."""
    devices = config.get("devices")
    if not devices:
        return {}
    nodes = config.get("num_nodes", [("1", devices[0][1])])[0]
    source = f"line {devices[0][1]}, devices x num_nodes"
    return {"gpus": Fact(value=int(devices[0][0]) * int(nodes[0]), source=source)}


GRAMMAR = known(
    Grammar(
        name="litgpt",
        lines=(
            Line(
                mark="| loss train:",
                pattern=_HEAD + r" \(step\)",
                names={"time": _TIME},
            ),
            Line(
                mark="| loss train:",
                pattern=_HEAD + r"(?=\s+remaining|\s*$)",
                names={"time": _TIME, "loss": _LOSS},
            ),
            Line(
                mark=": val loss",
                pattern=rf"\biter (?P<_iter>\d+): val loss (?P<val>{_NUMBER}), val time:",
                names={"val": "val loss"},
                step="last",
                main=False,
            ),
        ),
        says=(
            Says(mark="otal parameters", pattern=r"[Tt]otal parameters: (?P<parameters>[\d,]+)"),
            Says(mark="Seed set to", pattern=r"Seed set to (?P<seed>\d+)"),
            Says(mark="'devices'", pattern=r"'devices': (?P<devices>\d+)"),
            Says(mark="'num_nodes'", pattern=r"'num_nodes': (?P<num_nodes>\d+)"),
            Says(mark="aving checkpoint", pattern=r"aving checkpoint to .*?step-0*(?P<saved>\d+)"),
        ),
        names={"val_loss": "val loss"},
        finish=_finish,
        facts=_facts,
    )
)


def matches(source: Source) -> bool:
    """Claim a text log with LitGPT's iteration lines."""
    return claims(source, GRAMMAR)


@reader(matches, writes="LitGPT: console")
def litgpt(source: Source) -> Iterator[Reading]:
    """Read iteration lines and validations.

    The loss of a step is in the line of its last micro-batch; the lines of the others count the
    steps done before.
    """
    yield from readings(source, GRAMMAR)
