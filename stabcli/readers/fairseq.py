"""Reader ``fairseq``: the console of fairseq and metaseq."""

from __future__ import annotations

import math
from collections.abc import Iterator

import polars as pl

from stabcli.assembly import Reading
from stabcli.readers import reader
from stabcli.run import Fact
from stabcli.sources import Source
from stabcli.textlog import KIND, Grammar, Line, Says, claims, known, readings
from stabcli.textlog.grammar import Config
from stabcli.textlog.numbers import number

_JSON = r'"(?P<name>\w+)": "?(?P<value>[^",{}]+)"?(?=[,}])'
_NAMES = {"ppl": "perplexity of training"}
_ARGUMENTS = r"clip_norm|seed|weight_decay|warmup_updates|max_update|save_interval_updates|lr"
_TRAIN = (0.0, 1.0)
"""Kinds of lines that tell of updates."""


def _finish(frame: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    frame = _hidden(_without_placeholders(frame, notes), notes)
    if "ups" in frame.columns:
        seconds = pl.when(pl.col("ups") > 0).then(1 / pl.col("ups"))
        frame = frame.with_columns(seconds.alias("1/ups"))
    notes.append("losses are printed to base 2: taken times ln 2")
    return frame


def _without_placeholders(frame: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    """Take out losses that were not computed, and the rate of the first line."""
    for name, placeholder in (("loss", -1.0), ("valid_loss", -1.0), ("wps", 0.0)):
        if name in frame.columns and (count := int((frame[name] == placeholder).sum())):
            notes.append(f"{count:,} times {name!r} is {placeholder:g}: not known, left out")
            value = pl.when(pl.col(name) != placeholder).then(pl.col(name))
            frame = frame.with_columns(value.alias(name))
    return frame


def _hidden(frame: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    """Make the gradient norm NaN where it was left out: fairseq logs only finite ones."""
    if not {"gnorm", "ups"} <= set(frame.columns):
        return frame
    updates = pl.col(KIND).is_in(_TRAIN)
    both = frame.filter(updates & pl.col("gnorm").is_not_null() & pl.col("ups").is_not_null())
    absent = updates & pl.col("gnorm").is_null() & pl.col("ups").is_null()
    count = int(frame.select(absent.sum()).item())
    if not both.height or not count:
        return frame
    notes.append(
        f"{count:,} lines have no 'gnorm' and no 'ups': fairseq leaves them out where no"
        " gradient was finite"
    )
    value = pl.when(absent).then(math.nan).otherwise(pl.col("gnorm"))
    return frame.with_columns(gnorm=value)


def _facts(config: Config) -> dict[str, Fact]:
    """Read arguments under fairseq's names."""
    facts: dict[str, Fact] = {}
    for key, name in (
        ("clip_norm", "grad_clip"),
        ("warmup_updates", "warmup_steps"),
        ("max_update", "total_steps"),
        ("save_interval_updates", "checkpoint_every"),
    ):
        text, line = config.get(key, [("", 0)])[0]
        value = number(text)
        if value is not None and (value > 0 or name in ("grad_clip", "warmup_steps")):
            whole = value if name == "grad_clip" else int(value)
            facts[name] = Fact(value=whole, source=f"line {line}, {key}")
    return facts


GRAMMAR = known(
    Grammar(
        name="fairseq",
        lines=(
            Line(
                mark="train_inner",
                pattern=r'\|\s*train_inner\s*\|\s*\{(?=.*"num_updates": "?(?P<step>\d+)[",}])',
                pair=_JSON,
                names=_NAMES,
                without=frozenset({"num_updates"}),
            ),
            Line(
                mark="num_updates=",
                pattern=r"\bepoch (?P<epoch>\d+):\s+\d+ / \d+ (?=.*\bnum_updates=(?P<step>\d+),)",
                pair=r"(?P<name>\w+)=(?P<value>[^,\s]+)",
                names=_NAMES,
                without=frozenset({"num_updates"}),
            ),
            Line(
                mark="valid_num_updates",
                pattern=r"\|\s*valid(?:/combined)?\s*\|\s*\{"
                r'(?=.*"valid_num_updates": "?(?P<step>\d+)[",}])',
                pair=_JSON,
                without=frozenset({"valid_num_updates", "epoch"}),
                main=False,
            ),
            Line(
                mark="valid on 'valid' subset",
                pattern=r"valid on 'valid' subset (?=\|.*\bnum_updates (?P<step>\d+)(?!\d))",
                pair=r"\|\s*(?P<name>\w+) (?P<value>[^\s|]+)",
                prefix="valid_",
                without=frozenset({"num_updates"}),
                main=False,
            ),
            Line(
                mark="overflow detected",
                pattern=r"gradient overflow detected.*?setting loss scale to: (?P<loss_scale>[\d.]+)",
                step="next",
                main=False,
            ),
            Line(
                mark="gradients are N",
                pattern=r"FloatingPointError: gradients are (?P<gnorm>Na[Nn])",
                step="last",
                main=False,
            ),
        ),
        says=(
            Says(mark="model params", pattern=r"num\. (?:shared )?model params: (?P<parameters>[\d,]+)"),
            Says(mark="training on", pattern=r"training on (?P<gpus>\d+) (?:devices|GPUs)"),
            Says(mark="clip_norm", pattern=rf"\b(?P<key>{_ARGUMENTS})'?[=:] ?[\['\"]*(?P<value>[-\d.e]+)"),
            Says(mark="aved checkpoint", pattern=r"aved checkpoint .*@ (?P<saved>\d+) updates"),
        ),
        names={
            "tokens_per_second": "wps",
            "batch_tokens": "wpb",
            "batch_sequences": "bsz",
            "elapsed_seconds": "wall",
            "step_seconds": "1/ups",
        },
        scales={"loss": math.log(2), "val_loss": math.log(2), "step_seconds": 1.0},
        finish=_finish,
        facts=_facts,
    )
)  # fmt: skip


def matches(source: Source) -> bool:
    """Claim a text log with lines of ``train_inner``."""
    return claims(source, GRAMMAR)


@reader(matches, writes="fairseq, metaseq: console, as JSON or as text")
def fairseq(source: Source) -> Iterator[Reading]:
    """Read lines of updates and of the set held out that is called ``valid``; others are passed by.

    Losses are to base 2 and come out in nats. Perplexities need no change.
    """
    yield from readings(source, GRAMMAR)
