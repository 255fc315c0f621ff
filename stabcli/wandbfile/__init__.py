"""Offline files of Weights & Biases: a decoder of its own, with numpy, Polars and nothing else.

* framing   blocks, records and checksums; what is damaged costs itself only
* fields    protobuf, of one record or of many at once
* history   the logged values of many records at once
* numbers   numbers written as text, many at once
* about     what else a file says: run, configuration, machine, exit code
* contents  a whole file
* folders   which files are one run, and what lies beside them
"""

from stabcli.wandbfile.about import About, host_facts
from stabcli.wandbfile.contents import Column, WandbFile, read_wandb
from stabcli.wandbfile.folders import Opened, Plan, holds_runs, plans, run_files, single
from stabcli.wandbfile.framing import MAGIC, Damage, starts_like_wandb

__all__ = [
    "MAGIC",
    "About",
    "Column",
    "Damage",
    "Opened",
    "Plan",
    "WandbFile",
    "holds_runs",
    "host_facts",
    "plans",
    "read_wandb",
    "run_files",
    "single",
    "starts_like_wandb",
]
