"""Machines: what tables in many logs say of the GPUs."""

from __future__ import annotations

import re

from stabcli.run import Fact
from stabcli.textlog.grammar import Config, Says

NVIDIA_SMI = Says(
    mark="NVIDIA ",
    pattern=r"^\|\s+(?P<gpu_row>\d+\s+NVIDIA [A-Za-z0-9 .-]+?)(?:\.\.\.)?\s+(?:On|Off|N/A)?\s+\|",
)
"""A row of the table that ``nvidia-smi`` prints: number and name of a GPU."""

DOTTED = Says(
    mark="...",
    pattern=r"(?:^|\])\s*(?P<key>[a-z]\w*) \.{2,}\s+(?P<value>[^\s.]\S*?)(?=\.{3,}|\s|$)",
)
"""A row of a dump of arguments: ``  seq_length ............ 2048``."""
FLAGS = Says(mark=" --", pattern=r"\s--(?P<key>[a-z][\w-]*)[ =](?P<value>[^\s-]\S*)")
"""Flags of a command line that the log repeats."""


def gpus_of(config: Config) -> dict[str, Fact]:
    """Return kind and number of the GPUs that ``nvidia-smi`` listed, those of one machine."""
    rows = config.get("gpu_row", [])
    named = [(found[1], found[2]) for text, _ in rows if (found := re.match(r"(\d+)\s+(.+)", text))]
    if not named:
        return {}
    source = f"line {rows[0][1]}, table of nvidia-smi"
    names = {name for _, name in named}
    facts = {"gpus": Fact(value=len({n for n, _ in named}), source=source)}
    if len(names) == 1:
        facts["gpu"] = Fact(value=names.pop(), source=source)
    return facts
