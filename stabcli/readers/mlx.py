"""Reader ``mlx``: the console of mlx-lm."""

from __future__ import annotations

from collections.abc import Iterator

from stabcli.assembly import Reading
from stabcli.readers import reader
from stabcli.sources import Source
from stabcli.textlog import Grammar, Line, Says, claims, known, readings

_NUMBER = r"[-+]?(?:[\d.]+(?:[eE][-+]?\d+)?|nan|inf)"

GRAMMAR = known(
    Grammar(
        name="mlx",
        lines=(
            Line(
                mark=": Train loss",
                pattern=rf"\bIter (?P<step>\d+): Train loss (?P<loss>{_NUMBER})(?=,)",
                pair=rf", (?P<name>[A-Z][A-Za-z/ ]*[a-z]) (?P<value>{_NUMBER}(?: GB)?)",
            ),
            Line(
                mark=": Val loss",
                pattern=rf"\bIter (?P<step>\d+): Val loss (?P<val>{_NUMBER})(?=,)",
                names={"val": "val loss"},
            ),
        ),
        says=(
            Says(mark="Starting training", pattern=r"iters: (?P<total_steps>\d+)"),
            Says(
                mark="Trainable parameters",
                pattern=r"Trainable parameters: [\d.]+% \([\d.]+M/(?P<parameters>[\d.]+M)\)",
            ),
            Says(mark=": Saved ", pattern=r"Iter (?P<saved>\d+): Saved "),
        ),
        starts="Starting training",
        names={"val_loss": "val loss"},
    )
)


def matches(source: Source) -> bool:
    """Claim a text log with lines such as ``Iter 100: Train loss 2.345``."""
    return claims(source, GRAMMAR)


@reader(matches, writes="mlx-lm: console")
def mlx(source: Source) -> Iterator[Reading]:
    """Read lines of training, means since the line before, and of validation."""
    yield from readings(source, GRAMMAR)
