"""Reader ``nanogpt``: consoles of nanoGPT, llama2.c and build-nanogpt, and the latter's ``log.txt``."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from stabcli.assembly import Reading
from stabcli.readers import reader
from stabcli.sources import Source
from stabcli.textlog import Grammar, Line, Says, claims, known, readings

_NUMBER = r"[-+]?(?:[\d.]+(?:[eE][-+]?\d+)?|nan|inf)"


def _finish(frame: pl.DataFrame, _: list[str]) -> pl.DataFrame:
    """Take out the MFU of the first iterations: -100 % says that it is not known yet."""
    if "mfu" in frame.columns:
        return frame.with_columns(mfu=pl.when(pl.col("mfu") >= 0).then(pl.col("mfu")))
    return frame


GRAMMAR = known(
    Grammar(
        name="nanogpt",
        lines=(
            Line(
                mark="iter ",
                pattern=rf"\biter (?P<step>\d+): loss (?P<loss>{_NUMBER}),"
                r" time (?P<time>[\d.]+ms)(?:, mfu (?P<mfu>-?[\d.]+%))?",
            ),
            Line(
                mark=": train loss",
                pattern=rf"\bstep (?P<step>\d+): train loss (?P<train>{_NUMBER}),"
                rf" val loss (?P<val>{_NUMBER})",
                names={"train": "train loss (evaluated)", "val": "val loss"},
            ),
            Line(
                mark="| loss:",
                pattern=r"\bstep\s+(?P<step>\d+)\s*(?=\|\s*loss:)",
                separator="|",
            ),
            Line(
                mark=" | loss ",
                pattern=rf"^(?P<step>\d+) \| loss (?P<loss>{_NUMBER}) \| lr (?P<lr>{_NUMBER})"
                r" \| (?P<time>[\d.]+ms) \| mfu (?P<mfu>-?[\d.]+%)",
            ),
            Line(
                mark="validation loss:",
                pattern=rf"validation loss: (?P<val>{_NUMBER})",
                names={"val": "val loss"},
                step="next",
                main=False,
            ),
            Line(mark=" train ", pattern=rf"^(?P<step>\d+) train (?P<loss>{_NUMBER})\s*$"),
            Line(
                mark=" val ",
                pattern=rf"^(?P<step>\d+) val (?P<val>{_NUMBER})\s*$",
                names={"val": "val loss"},
                main=False,
            ),
            Line(
                mark=" hella ",
                pattern=rf"^(?P<step>\d+) hella (?P<hellaswag>{_NUMBER})\s*$",
                main=False,
            ),
        ),
        says=(
            Says(
                mark="tokens per iteration",
                pattern=r"tokens per iteration will be: (?P<tokens_per_step>[\d,]+)",
            ),
            Says(
                mark="number of param", pattern=r"^number of parameters: (?P<parameters>[\d.]+[MB])"
            ),
            Says(
                mark="desired batch",
                pattern=r"[Tt]otal desired batch size: (?P<tokens_per_step>\d+)",
            ),
        ),
        ends="Initializing a new model from scratch",
        names={"val_loss": "val loss", "step_seconds": "time"},
        scales={"mfu": 1.0},
        finish=_finish,
    )
)


def matches(source: Source) -> bool:
    """Claim a text log with the iteration lines of nanoGPT or build-nanogpt."""
    return claims(source, GRAMMAR)


@reader(matches, writes="nanoGPT, llama2.c: console; build-nanogpt: console and log.txt")
def nanogpt(source: Source) -> Iterator[Reading]:
    """Read iteration and evaluation lines. The training loss of an evaluation stays apart."""
    yield from readings(source, GRAMMAR)
