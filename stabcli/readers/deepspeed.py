"""Reader ``deepspeed``: what DeepSpeed's engine prints of itself, and DeepSpeed-Chat."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from stabcli.assembly import Reading
from stabcli.readers import reader
from stabcli.run import Fact
from stabcli.sources import Source
from stabcli.textlog import Grammar, Line, claims, known, readings
from stabcli.textlog.grammar import Config
from stabcli.textlog.machines import DOTTED, FLAGS

_NUMBER = r"[-+]?(?:[\d.]+(?:[eE][-+]?\d+)?|nan|inf)"


def _finish(frame: pl.DataFrame, _: list[str]) -> pl.DataFrame:
    """Turn the count of skipped steps, which is of all so far, into one a row."""
    if "skipped" not in frame.columns:
        return frame
    logged = np.flatnonzero(frame["skipped"].is_not_null().to_numpy())
    skipped = frame["skipped"].to_numpy().copy()
    more = np.diff(skipped[logged], prepend=0.0)
    skipped[logged] = np.where(more < 0, skipped[logged], more)  # less than before: started anew
    return frame.with_columns(pl.Series("skipped", skipped).fill_nan(None))


def _facts(config: Config) -> dict[str, Fact]:
    """Read what DeepSpeed's dump of its configuration calls by names of its own."""
    facts: dict[str, Fact] = {}
    for key, word in (("bfloat16_enabled", "bf16"), ("fp16_enabled", "fp16")):
        value, line = config.get(key, [("", 0)])[0]
        if value == "True":
            facts["precision"] = Fact(value=word, source=f"line {line}, {key}")
    size, line = config.get("train_batch_size", [("", 0)])[0]
    if size.isdigit():
        facts["batch_sequences"] = Fact(value=int(size), source=f"line {line}, train_batch_size")
    return facts


GRAMMAR = known(
    Grammar(
        name="deepspeed",
        lines=(
            Line(
                mark="skipped=",
                pattern=r"\bstep=(?P<step>\d+), skipped=(?P<skipped>\d+), lr=\[(?P<lr>[^,\]]+)",
            ),
            Line(
                mark="CurrSamplesPerSec",
                pattern=r"global_step=(?P<step>\d+), RunningAvgSamplesPerSec=[^,]+,"
                r" CurrSamplesPerSec=(?P<CurrSamplesPerSec>[^,\s]+)",
            ),
            Line(
                mark="iter time (s)",
                pattern=rf"steps: (?P<step>\d+) loss: (?P<loss>{_NUMBER}) iter time \(s\):"
                r" (?P<time>[\d.]+) samples/sec: (?P<samples>[\d.]+)",
                names={"time": "iter time (s)", "samples": "samples/sec"},
            ),
            Line(
                mark="Actor Loss",
                pattern=r"\bStep: (?P<step>\d+) \| PPO Epoch: \d+ \|",
                pair=rf"(?P<name>\w+ Loss): (?P<value>{_NUMBER})",
            ),
            Line(
                mark="reward score",
                pattern=rf"[Aa]verage reward score: (?P<reward>{_NUMBER})",
                step="last",
                main=False,
            ),
            Line(
                mark="Attempted loss scale",
                pattern=r"Attempted loss scale: [\d.]+, reducing to (?P<loss_scale>[\d.]+)",
                step="next",
            ),
            Line(mark="ppl: ", pattern=rf"^ppl: (?P<ppl>{_NUMBER})", step="last", main=False),
        ),
        says=(FLAGS, DOTTED),
        names={
            "skipped_steps": "skipped",
            "val_perplexity": "ppl",
            "step_seconds": "iter time (s)",
            "objective_loss": "Actor Loss",
        },
        finish=_finish,
        facts=_facts,
        tier=1,
    )
)


def matches(source: Source) -> bool:
    """Claim a text log with DeepSpeed's step lines, unless its trainer prints better ones."""
    return claims(source, GRAMMAR)


@reader(matches, writes="DeepSpeed's engine, DeepSpeed-Chat: console")
def deepspeed(source: Source) -> Iterator[Reading]:
    """Read learning rates, skipped steps, loss scales and throughput; losses where there are any."""
    yield from readings(source, GRAMMAR)
