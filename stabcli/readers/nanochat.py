"""Reader ``nanochat``: the console of nanochat's training scripts."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from stabcli.assembly import Reading
from stabcli.readers import reader
from stabcli.run import Fact
from stabcli.sources import Source
from stabcli.textlog import Grammar, Line, Says, claims, known, readings
from stabcli.textlog.grammar import Config
from stabcli.textlog.machines import NVIDIA_SMI, gpus_of


def _finish(frame: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    """Take out an MFU of 0, which says that the GPU's peak is not known."""
    notes.append("the loss of nanochat is a running mean: a spike of one step shows at a tenth")
    for name in ("bf16_mfu", "mfu"):
        if name in frame.columns and frame[name].max() == 0.0:
            frame = frame.drop(name)
    return frame


def _facts(config: Config) -> dict[str, Fact]:
    facts = gpus_of(config)
    for name in ("world_size", "nproc"):
        if name in config:
            value, line = config[name][0]
            facts["gpus"] = Fact(value=int(value), source=f"line {line}, {name}")
            break
    return facts


GRAMMAR = known(
    Grammar(
        name="nanochat",
        lines=(
            Line(
                mark=" | loss:",
                pattern=r"\bstep (?P<step>\d+)(?:/(?P<total>\d+))? \((?P<_done>[\d.]+)%\)\s*(?=\|)",
                separator="|",
                without=frozenset({"epoch", "eta", "lr(adamw"}),
            ),
            Line(
                mark="Validation bpb",
                pattern=r"\bStep (?P<step>\d+) \| Validation bpb: (?P<val_bpb>[\d.]+|nan|inf)",
                names={"val_bpb": "Validation bpb"},
                main=False,
            ),
        ),
        says=(
            NVIDIA_SMI,
            Says(mark="world size", pattern=r"Distributed world size: (?P<world_size>\d+)"),
            Says(mark="NPROC", pattern=r"^Using NPROC_PER_NODE=(?P<nproc>\d+)"),
            Says(
                mark="otal batch size", pattern=r"Total batch size (?P<tokens_per_step>[\d,]+) =>"
            ),
            Says(mark="umber of param", pattern=r"Number of parameters: (?P<parameters>[\d,]+)"),
            Says(mark="GPU: ", pattern=r"^GPU: (?P<gpu>[^|]+?) \| Peak FLOPS"),
        ),
        ends="Minimum validation bpb",
        names={"elapsed_seconds": "total time"},
        scales={"mfu": 0.01},
        finish=_finish,
        facts=_facts,
    )
)


def matches(source: Source) -> bool:
    """Claim a text log with nanochat's step lines."""
    return claims(source, GRAMMAR)


@reader(matches, writes="nanochat: console")
def nanochat(source: Source) -> Iterator[Reading]:
    """Read step and validation lines. Pre-training and what follows it are runs of their own."""
    yield from readings(source, GRAMMAR)
