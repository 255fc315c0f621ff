"""Errors a user can meet. The command line prints the message and exits with 2: it cannot tell.

* StabError                  where, what is wrong, what to do: one line
  x LogError                 the log cannot be used
    + UnknownFormat          no reader claims the file
    + NothingThere           a pattern matches nothing, or a folder holds no log
    + NoLog                  a table or object with neither steps nor anything measured
  x SettingError             a flag or a setting is wrong
  x ReplayError              the checkpoint or the batch cannot be replayed
"""

from __future__ import annotations


class StabError(Exception):
    """The input's fault. Anything else that is raised is a bug and keeps its traceback."""


class LogError(StabError):
    """The log cannot be used."""


class UnknownFormat(LogError):
    """No reader claims the file."""


class NothingThere(LogError):
    """A pattern matches nothing, or a folder holds no log."""


class NoLog(LogError):
    """A table or object with neither steps nor anything measured: in a folder no failure."""


class SettingError(StabError):
    """A flag or a setting is wrong."""


class ReplayError(StabError):
    """The checkpoint or the batch cannot be replayed."""
