"""Reader ``modded-nanogpt``: logs of the NanoGPT speedruns and of parameter-golf."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import polars as pl

from stabcli.assembly import Reading
from stabcli.readers import reader
from stabcli.run import Fact
from stabcli.sources import Source
from stabcli.textlog import Grammar, Line, Says, claims, known, readings
from stabcli.textlog.grammar import Config
from stabcli.textlog.machines import NVIDIA_SMI, gpus_of


def _finish(frame: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    """Take out the mean time of all steps so far; it is NaN, 0/0, until steps are timed."""
    if {"step_avg", "train_time"} <= set(frame.columns):
        notes.append("step_avg, the mean over all steps so far, was left out: train_time says more")
        return frame.drop("step_avg")
    return frame


_FIELDS = "batch_size|sequence_length|learning_rate|warmup_iters|weight_decay"
"""Fields of the class of hyperparameters in the source code that a log begins with."""


def _facts(config: Config) -> dict[str, Fact | None]:
    """Read the GPUs that are listed, and a batch that the source gives as a product: ``8*64``."""
    facts: dict[str, Fact | None] = {**gpus_of(config)}
    size, length = (config.get(k, [("", 0)])[0] for k in ("batch_size", "sequence_length"))
    factors = [part for part in size[0].split("*") if part]
    if factors and all(part.isdigit() for part in factors) and length[0].isdigit():
        sequences = prod(int(part) for part in factors)
        facts["batch_sequences"] = Fact(value=sequences, source=f"line {size[1]}, batch_size")
        source = f"lines {size[1]} and {length[1]}, batch_size x sequence_length"
        facts["tokens_per_step"] = Fact(value=sequences * int(length[0]), source=source)
    return facts


GRAMMAR = known(
    Grammar(
        name="modded-nanogpt",
        lines=(
            Line(
                mark="step:",
                pattern=r"^step:(?P<step>\d+)/(?P<total>\d+)\s+(?=[\w/]+:\S)",
                pair=r"(?P<name>[\w/]+):(?P<value>\S+)",
            ),
        ),
        says=(
            NVIDIA_SMI,
            Says(mark="model_params:", pattern=r"model_params:(?P<parameters>\d+)"),
            Says(
                mark="train_batch_tokens:", pattern=r"train_batch_tokens:(?P<tokens_per_step>\d+)"
            ),
            Says(mark="train_seq_len:", pattern=r"train_seq_len:(?P<sequence_length>\d+)"),
            Says(mark="world_size:", pattern=r"world_size:(?P<world_size>\d+)"),
            Says(mark=" : int =", pattern=rf"^\s+(?P<key>{_FIELDS})\s+: int = (?P<value>[\d*]+)"),
            Says(
                mark=" : float =",
                pattern=rf"^\s+(?P<key>{_FIELDS})\s+: float = (?P<value>[\d.e-]+)",
            ),
            Says(mark="seed:", pattern=r"^seed:(?P<seed>\d+)"),
        ),
        ends="peak memory ",
        names={"elapsed_seconds": "train_time"},
        finish=_finish,
        facts=_facts,
    )
)


def matches(source: Source) -> bool:
    """Claim a text log with lines such as ``step:125/3375 val_loss:4.85 train_time:56129ms``."""
    return claims(source, GRAMMAR)


@reader(matches, writes="modded-nanogpt, parameter-golf: logs that begin with their source code")
def modded_nanogpt(source: Source) -> Iterator[Reading]:
    """Read step lines, whatever pairs of name and value are in them.

    Training lines count from 1, validation lines from 0. Runs that follow one another in a file
    are runs of their own.
    """
    yield from readings(source, GRAMMAR)
