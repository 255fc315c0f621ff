"""Reader ``torchtitan``: the console of torchtitan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

import polars as pl

from stabcli.assembly import Reading
from stabcli.readers import reader
from stabcli.run import Fact
from stabcli.sources import Source
from stabcli.textlog import Grammar, Line, Says, claims, known, readings
from stabcli.textlog.grammar import Config
from stabcli.textlog.numbers import number

_PAIR = r"(?P<name>[a-z_]+):\s*(?P<value>[^\s(]+)"
_PEAKS: Mapping[float, str] = {
    312e12: "A100",
    989e12: "H100",
    756e12: "H100 PCIe",
    2.25e15: "B200",
    2.5e15: "GB200",
    1300e12: "MI300X",
}
"""Peak FLOP/s that torchtitan takes for MFU -> the GPU; tools/utils.py, get_peak_flops."""


def _finish(frame: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    """Take out the losses of pipeline stages that compute none: they are printed as -1."""
    for name in ("loss", "validation loss"):
        if name in frame.columns and (count := int((frame[name] == -1.0).sum())):
            notes.append(f"{count:,} times {name!r} is -1: the stage computes none, left out")
            value = pl.when(pl.col(name) != -1.0).then(pl.col(name))
            frame = frame.with_columns(value.alias(name))
    return frame


def _facts(config: Config) -> dict[str, Fact]:
    facts: dict[str, Fact] = {}
    if "mesh" in config:
        mesh, line = config["mesh"][0]
        sizes = [int(n) for n in mesh.split(",") if n.strip()]
        facts["gpus"] = Fact(value=prod(sizes), source=f"line {line}, sizes of the device mesh")
    if "peak" in config:
        peak, line = config["peak"][0]
        gpu = _PEAKS.get(number(peak) or 0.0)
        if gpu:
            facts["gpu"] = Fact(value=gpu, source=f"line {line}, peak FLOP/s {peak}")
    size, length = (config.get(k, [("", 0)])[0] for k in ("batch_sequences", "sequence_length"))
    if size[0].isdigit() and length[0].isdigit() and "tokens_per_step" not in config:
        source = f"line {size[1]}, global batch size x sequence length"
        facts["tokens_per_step"] = Fact(value=int(size[0]) * int(length[0]), source=source)
    return facts


GRAMMAR = known(
    Grammar(
        name="torchtitan",
        lines=(
            Line(
                mark="step:",
                pattern=r"validate step:\s*(?P<step>\d+)\s+(?=loss:)",
                pair=_PAIR,
                names={"loss": "validation loss"},
                without=frozenset({"memory", "tps", "wps"}),
            ),
            Line(
                mark="step:",
                pattern=r"(?<!validate )\bstep:\s*(?P<step>\d+)\s+(?=loss:\s*\S+\s+(?:grad_norm|memory):)",
                pair=_PAIR,
                names={"memory": "memory (GiB)", "wps": "tps"},
            ),
        ),
        says=(
            Says(
                mark="global batch size",
                pattern=r"global batch size (?P<batch_sequences>\d+)(?:.*?(?P<tokens_per_step>[\d,]+) "
                r"tokens per train step)?(?:.*?(?:sequence|context) length (?P<sequence_length>\d+))?"
                r".*?total steps (?P<total_steps>\d+)(?: \(warmup (?P<warmup_steps>\d+)\))?",
            ),
            Says(mark="total parameters", pattern=r"size: (?P<parameters>[\d,]+) total parameters"),
            Says(
                mark="Peak FLOPS", pattern=r"Peak FLOPS used for computing MFU: (?P<peak>[\d.e+]+)"
            ),
            Says(mark="aving the checkpoint", pattern=r"step[- ](?P<saved>\d+)"),
            Says(mark="device mesh with", pattern=r"mesh with \[.*?\], \[(?P<mesh>[\d, ]+)\]"),
            Says(mark="Training completed", pattern=r"(?P<outcome>Training completed)"),
        ),
        starts="raining starts at step",
        names={"val_loss": "validation loss", "tokens_per_second_per_gpu": "tps"},
        scales={"mfu": 1.0},
        finish=_finish,
        facts=_facts,
    )
)


def matches(source: Source) -> bool:
    """Claim a text log with torchtitan's step lines."""
    return claims(source, GRAMMAR)


@reader(matches, writes="torchtitan: console")
def torchtitan(source: Source) -> Iterator[Reading]:
    """Read step and validation lines; tokens per second are those of one GPU."""
    yield from readings(source, GRAMMAR)
