"""Reader ``torchtune``: the log file of torchtune's ``DiskLogger``, and its ``StdoutLogger``."""

from __future__ import annotations

from collections.abc import Iterator

from stabcli.assembly import Reading
from stabcli.readers import reader
from stabcli.sources import Source
from stabcli.textlog import Grammar, Line, claims, known, readings

GRAMMAR = known(
    Grammar(
        name="torchtune",
        lines=(
            Line(
                mark="Step ",
                pattern=r"^Step (?P<step>\d+) \| (?=[A-Za-z][\w/]*:\S)",
                pair=r"(?<!\S)(?P<name>[A-Za-z][\w/]*):(?P<value>tensor\([^)]*\)|\S+)",
            ),
        ),
        scales={"mfu": 1.0},
    )
)


def matches(source: Source) -> bool:
    """Claim a text log with lines such as ``Step 5 | loss:1.2345 lr:2e-05``."""
    return claims(source, GRAMMAR)


@reader(matches, writes="torchtune: log_*.txt, console")
def torchtune(source: Source) -> Iterator[Reading]:
    """Read step lines; one metric may stand in a line, and lines of one step are one row."""
    yield from readings(source, GRAMMAR)
