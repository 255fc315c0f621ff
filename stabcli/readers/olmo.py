"""Reader ``olmo``: the console of OLMo and OLMo-core, a line a value."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from stabcli.assembly import Reading
from stabcli.readers import reader
from stabcli.sources import Source
from stabcli.textlog import Grammar, Line, Says, claims, known, readings
from stabcli.textlog.grammar import Config
from stabcli.textlog.records import MARK, joined


def _steps(frame: pl.DataFrame, _: Config, notes: list[str]) -> pl.DataFrame:
    return joined(frame, {0}, notes)


GRAMMAR = known(
    Grammar(
        name="olmo",
        lines=(
            Line(
                mark="[step=",
                pattern=r"\[step=(?P<step>(?P<record>\d+))(?:/(?:(?P<total>\d+)|\?\?\?))?"
                r"(?:,epoch=(?P<epoch>\d+))?(?:,eta=[^\]]*)?\]",
                names={"record": MARK},
            ),
            Line(
                mark="=",
                pattern=r"^\s{4,}(?=[A-Za-z][\w-]*/[^=]*[^=\s]=[^\s=]+\s*$)",
                pair=r"(?P<name>[^\s=][^=]*)=(?P<value>\S+)",
                names={
                    "train/Perplexity": "perplexity of training",
                    "train/PPL": "perplexity of training",
                },
                step="last",
                main=False,
            ),
        ),
        says=(
            Says(mark="otal parameters", pattern=r"(?i)\btotal parameters:?\s+(?P<parameters>[\d,]+)"),
            Says(mark="otal number of param", pattern=r"parameters: (?P<parameters>[\d,]+)\s*$"),
            Says(mark="eckpoint", pattern=r"(?i)\bsav(?:ed|ing) .*?checkpoint.*?/step(?P<saved>\d+)\b"),
        ),
        names={
            "mfu": "throughput/device/MFU",
            "tokens_per_second_per_gpu": "throughput/device/TPS",
        },
        scales={"mfu": 0.01},
        steps=_steps,
    )
)  # fmt: skip


def matches(source: Source) -> bool:
    """Claim a text log with heads such as ``[step=1200/739328,epoch=0]``."""
    return claims(source, GRAMMAR)


@reader(matches, writes="OLMo, OLMo-core: console")
def olmo(source: Source) -> Iterator[Reading]:
    """Read a head and the values below it as one row; throughput is that of one GPU, MFU a percentage."""
    yield from readings(source, GRAMMAR)
