"""Reader ``prime-rl``: the console of prime-rl, its trainer and its orchestrator."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from stabcli.assembly import Reading
from stabcli.readers import reader
from stabcli.sources import Source
from stabcli.textlog import Grammar, Line, claims, known, readings

_NUMBER = r"[-+]?(?:[\d.]+(?:[eE][-+]?\d+)?|nan|inf)"
_POLICY = {"Loss": "policy loss", "Entropy": "policy entropy"}


def _finish(frame: pl.DataFrame, _: list[str]) -> pl.DataFrame:
    """Call the loss and entropy of a policy so: supervised runs print the same words."""
    if "Mismatch KL" in frame.columns or "Reward" in frame.columns:
        return frame.rename({k: v for k, v in _POLICY.items() if k in frame.columns})
    return frame


GRAMMAR = known(
    Grammar(
        name="prime-rl",
        lines=(
            Line(
                mark="Step ",
                pattern=r"\bStep (?P<step>\d+) \|(?=.*(?:\||^|\s)\s*(?:Loss|Reward):? )"
                r"(?:\s+(?P<time>[\d.]+ ?s)\s*(?=\|))?",
                pair=r"(?:\||(?<=\d \|))\s*(?P<name>[A-Z][A-Za-z. ]*?[A-Za-z.]):?\s+"
                rf"(?P<value>{_NUMBER}(?: ?(?:%|GiB|tokens/s|s)(?=[\s|]|$))?)",
                names={"Time": "time"},
            ),
        ),
        names={
            "grad_norm": "Grad. Norm",
            "learning_rate": "LR",
            "tokens_per_second": "Throughput",
            "step_seconds": "time",
            "mfu": "MFU",
            "entropy": "policy entropy",
        },
        scales={"mfu": 1.0, "step_seconds": 1.0},
        finish=_finish,
    )
)


def matches(source: Source) -> bool:
    """Claim a text log with lines such as ``Step 12 | 1.23s | Loss 0.1234 | Entropy 0.43``."""
    return claims(source, GRAMMAR)


@reader(matches, writes="prime-rl: console")
def prime_rl(source: Source) -> Iterator[Reading]:
    """Read step lines; the loss is that of a policy where one is trained. Times have no date."""
    yield from readings(source, GRAMMAR)
