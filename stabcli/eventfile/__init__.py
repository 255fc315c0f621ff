"""Event files of TensorBoard: a decoder of its own, with numpy and nothing else.

It reads every scalar, unlike the library of TensorBoard, which keeps a sample, and it does not
stop at the first damaged record.
"""

from stabcli.eventfile.contents import Damage, EventFile, Scalars
from stabcli.eventfile.decode import read_events
from stabcli.eventfile.folders import (
    HELD_OUT,
    TRAINING,
    Plan,
    event_files,
    is_event_name,
    plans,
    single,
)
from stabcli.eventfile.framing import starts_like_events
from stabcli.eventfile.rows import Stream, Table, build

__all__ = [
    "HELD_OUT",
    "TRAINING",
    "Damage",
    "EventFile",
    "Plan",
    "Scalars",
    "Stream",
    "Table",
    "build",
    "event_files",
    "is_event_name",
    "plans",
    "read_events",
    "single",
    "starts_like_events",
]
