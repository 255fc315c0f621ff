"""Joining: which files are one run, and one run out of them.

Files are joined only on proof, and a note says which. What is only likely stays apart, and where
that may surprise, a note says why.

* gathering   what was found in files and folders, before anything is joined
* homes       where a run lives: the folder that all of its files are about
* rounding    how a log rounded its numbers, and whether two values may be one
* agreement   whether two logs tell of one run: by values that only that run had
* merging     two tables of one run become one
* ranks       one log a process
* chains      a log a restart, and logs that were rotated
* settling    all of it, in order
* beside      what lies beside the logs: configurations, and what other text says of troubles
"""

from stabcli.joining.beside import configured, troubled
from stabcli.joining.gathering import Gathered, LeftOut, listed
from stabcli.joining.settling import joined

__all__ = ["Gathered", "LeftOut", "configured", "joined", "listed", "troubled"]
