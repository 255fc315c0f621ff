"""Reader ``nanotron``: the console of nanotron."""

from __future__ import annotations

import math
from collections.abc import Iterator

import polars as pl

from stabcli.assembly import Reading
from stabcli.readers import reader
from stabcli.run import Fact
from stabcli.sources import Source
from stabcli.textlog import Grammar, Line, Says, claims, known, readings
from stabcli.textlog.grammar import Config

_WORDS = ("sequence_length", "checkpoint_interval", "seed", "clip_grad", "weight_decay",
          "learning_rate", "lr_warmup_steps")  # fmt: skip
"""Arguments in the dump of the configuration whose names say all."""
_SIZES = ("dp", "pp", "tp", "cp")
"""Sizes of the parallel groups, whose product is the number of GPUs."""

_TOKENS = "global_batch_size (tokens)"
"""Named apart, for everywhere else a global batch size counts sequences."""


def _finish(frame: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    notes.append("values are printed to three digits: what is finer than that is not seen")
    return frame


def _facts(config: Config) -> dict[str, Fact]:
    if not {"dp", "pp", "tp"} <= set(config):
        return {}
    sizes = {key: config[key][0] for key in _SIZES if key in config}
    product = math.prod(int(text) for text, _ in sizes.values())
    source = f"line {sizes['dp'][1]} and others, product of {', '.join(sizes)}"
    return {"gpus": Fact(value=product, source=source)}


GRAMMAR = known(
    Grammar(
        name="nanotron",
        lines=(
            Line(
                mark="iteration:",
                pattern=r"\biteration: (?P<step>\d+) / (?P<total>\d+) (?=\|)",
                pair=r"\|\s*(?P<name>[\w/.]+):\s*(?P<value>[^|\s]+)",
                names={"global_batch_size": _TOKENS},
                without=frozenset({"eta"}),
            ),
        ),
        says=(
            Says(
                mark="otal number of parameters",
                pattern=r"[Tt]otal number of parameters: (?P<parameters>[\d.,]+[KMBT]?)",
            ),
            *(Says(mark=f"{w}=", pattern=rf"\b(?P<{w}>(?<=\b{w}=)[\d.e+-]*\d)") for w in _WORDS),
            *(Says(mark=f"{w}=", pattern=rf"\b{w}=(?P<{w}>\d{{1,6}})\b") for w in _SIZES),
            Says(mark="aving checkpoint", pattern=r"aving checkpoint at .*?/(?P<saved>\d+)\b"),
        ),
        names={"batch_tokens": _TOKENS},
        finish=_finish,
        facts=_facts,
    )
)


def matches(source: Source) -> bool:
    """Claim a text log with nanotron's iteration lines."""
    return claims(source, GRAMMAR)


@reader(matches, writes="nanotron: console")
def nanotron(source: Source) -> Iterator[Reading]:
    """Read iteration lines: counts such as 1.05M in full; the global batch size counts tokens."""
    yield from readings(source, GRAMMAR)
