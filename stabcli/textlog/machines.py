"""Machines: what many logs say of the GPUs, of flags and of checkpoints, whoever wrote them."""

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
SAVED = Says(
    mark="av",
    pattern=r"(?i)\bsav(?:ed|ing)\b[^\n]{0,120}?(?:step|iter|iteration|checkpoint|ckpt)[_\-= ]?"
    r"(?P<saved>\d+)(?=\D|$)(?!\s*(?:%|s\b|sec|checkpoints|gb|mb))",
)
"""A sentence that says at which step a checkpoint was saved."""


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
