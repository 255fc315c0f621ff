"""Joining: which files are one run, and one run out of them.

Files are joined only on proof, and a note says which. What is only likely stays apart, and where
that may surprise, a note says why.

* gathering   what was found in files and folders, before anything is joined
* homes       where a run lives: the folder that all of its files are about
* rounding    how a log rounded its numbers, and whether two values may be one
* agreement   whether two logs tell of one run: by values that only that run had
* copies      the same log twice
* merging     two tables of one run become one
* ranks       one log a process
* chains      a log a restart, and logs that were rotated
* settling    all of it, in order
* said        what text logs say of their settings before the first step, and rows of the rest
* disk        checkpoints that lie beside a log
* beside      what else lies there: configurations, and what other text says of troubles
"""

from stabcli.joining.beside import configured, troubled
from stabcli.joining.disk import saved_on_disk
from stabcli.joining.gathering import NOT_LOGS, Gathered, LeftOut, listed
from stabcli.joining.said import bannered
from stabcli.joining.settling import joined

__all__ = [
    "NOT_LOGS",
    "Gathered",
    "LeftOut",
    "bannered",
    "configured",
    "joined",
    "listed",
    "saved_on_disk",
    "troubled",
]
