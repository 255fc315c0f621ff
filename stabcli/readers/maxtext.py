"""Reader ``maxtext``: the console of MaxText."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl

from stabcli.assembly import Reading
from stabcli.facts import find_facts
from stabcli.readers import reader
from stabcli.run import Fact
from stabcli.sources import Source
from stabcli.textlog import Grammar, Line, Says, claims, known, readings
from stabcli.textlog.grammar import Config
from stabcli.textlog.numbers import number

_FACTS: Mapping[str, str] = {
    "num_target_devices": "gpus",
    "gradient_clipping_threshold": "grad_clip",
    "warmup_steps_fraction": "warmup_ratio",
    "adam_weight_decay": "weight_decay",
    "max_target_length": "sequence_length",
    "global_batch_size_to_train_on": "batch_sequences",
    "checkpoint_period": "checkpoint_every",
    "init_weights_seed": "seed",
    "steps": "total_steps",
}
"""Names in MaxText's configuration -> facts."""
_GLOG = (
    r"(?:\b[IWE]\d{4} (?P<_hour>\d\d):(?P<_minute>\d\d):(?P<_second>\d\d\.\d+) +\d+ [\w.]+:\d+\] )?"
)
"""What absl puts before a line; its date has no year, so that it is no time."""


def _finish(frame: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    """Tell the loss of the language model from the sum with auxiliary losses."""
    if not {"loss", "lm_loss"} <= set(frame.columns):
        return frame
    if (frame["lm_loss"].drop_nulls() == 0.0).all():
        notes.append("'lm_loss' is always 0: this objective computes none, left out")
        return frame.drop("lm_loss")
    alone = pl.when(pl.col("lm_loss").is_null()).then(pl.col("loss"))
    return frame.with_columns(lm_loss=pl.coalesce("lm_loss", alone), loss=pl.col("loss")).rename(
        {"loss": "loss with auxiliary losses"}
    )


def _facts(config: Config) -> dict[str, Fact | None]:
    """Read the last dump before the run: a log may begin with those of other programs."""
    facts: dict[str, Fact | None] = {"eval_every": None}
    for key, said in config.items():
        if key == "eval_steps":  # batches of an evaluation
            continue
        value, line = said[-1]
        for name, fact in find_facts({_FACTS.get(key, key): value}, f"line {line}").items():
            facts[name] = Fact(value=fact.value, source=f"line {line}, {key}")
    if config.get("enable_checkpointing", [("", 0)])[-1][0] == "False":
        facts["checkpoint_every"] = None
    if "billions" in config:
        text, line = config["billions"][-1]
        count = number(text)
        if count:
            facts["parameters"] = Fact(value=round(count * 1e9), source=f"line {line}")
    return facts


GRAMMAR = known(
    Grammar(
        name="maxtext",
        lines=(
            Line(
                mark="completed step:",
                pattern=rf"{_GLOG}completed step: (?P<step>\d+)(?=,)",
                separator=",",
                names={"perplexity": "perplexity of training"},
            ),
            Line(
                mark="ompleted eval after",
                pattern=r"[Cc]ompleted eval after train step (?P<step>\d+)(?=,)",
                separator=",",
                prefix="eval ",
                main=False,
            ),
            Line(
                mark="eval metrics after",
                pattern=r"eval metrics after step:? ?(?P<step>\d+)(?=,)",
                separator=",",
                prefix="eval ",
                main=False,
            ),
            Line(
                mark="average loss after",
                pattern=r"average loss after step=(?P<step>\d+)\b.*?eval_loss=(?P<loss>[^\s,]+)",
                names={"loss": "eval loss"},
                main=False,
            ),
            Line(
                mark="Aborting training due to",
                pattern=r"Aborting training due to (?P<loss>NaN|Inf) loss",
                step="last",
                main=False,
            ),
        ),
        says=(
            Says(mark="Config param", pattern=r"Config param (?P<key>\w+): (?P<value>\S.*)"),
            Says(mark="number parameters", pattern=r"number parameters: (?P<billions>[\d.]+) bil"),
        ),
        names={
            "loss": "lm_loss",
            "step_seconds": "seconds",
            "tokens_per_second_per_gpu": "Tokens/s/device",
            "batch_tokens": "total_weights",
        },
        finish=_finish,
        facts=_facts,
    )
)


def matches(source: Source) -> bool:
    """Claim a text log with MaxText's step lines."""
    return claims(source, GRAMMAR)


@reader(matches, writes="MaxText: console")
def maxtext(source: Source) -> Iterator[Reading]:
    """Read step and evaluation lines; the loss is that of the language model where it stands apart."""
    yield from readings(source, GRAMMAR)
