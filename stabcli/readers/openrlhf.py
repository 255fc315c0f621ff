"""Reader ``openrlhf``: the console of OpenRLHF's policy training."""

from __future__ import annotations

from collections.abc import Iterator

from stabcli.assembly import Reading
from stabcli.readers import reader
from stabcli.sources import Source
from stabcli.textlog import Grammar, Line, claims, known, readings

GRAMMAR = known(
    Grammar(
        name="openrlhf",
        lines=(
            Line(
                mark="Global step ",
                pattern=r"\bGlobal step (?P<step>\d+): (?=\{')",
                pair=r"'(?P<name>[^']+)':\s*(?P<value>'[^']*'|[\w.]+\([^)]*\)|[^,{}\[\]]+)(?=[,}])",
            ),
        ),
        names={"step_seconds": "timing/step_total"},
        scales={"step_seconds": 1.0},
        tier=-1,  # a dictionary with a reward could be of transformers' Trainer, too
    )
)


def matches(source: Source) -> bool:
    """Claim a text log with lines such as ``Global step 1: {'policy_loss': 0.0, …}``."""
    return claims(source, GRAMMAR)


@reader(matches, writes="OpenRLHF: console of policy training")
def openrlhf(source: Source) -> Iterator[Reading]:
    """Read the dictionary of each global step; the bars of single batches are passed by."""
    yield from readings(source, GRAMMAR)
