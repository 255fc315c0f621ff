"""Reports: what was found, written for a person or for a program.

A format is a file ``report/<name>.py`` holding one function of that name under ``@report``.
It sees diagnoses and nothing else, and returns text.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from stabcli.diagnosis import Diagnosis
from stabcli.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """All that one command has to tell."""

    diagnoses: tuple[Diagnosis, ...]
    """One a run, in the order given."""
    exit_status: int
    """What the command ends with."""
    left_out: tuple[str, ...] = ()
    """Files in folders that are no logs, a line a folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """Where a report is shown."""

    width: int = 80
    """Columns."""
    colour: bool = False
    """Whether it shows colours."""
    ascii_only: bool = False
    """Whether it shows nothing but ASCII."""


Write = Callable[[Outcome, Screen], str]


@dataclass(frozen=True, slots=True)
class Report:
    """A format; made by ``@report`` only."""

    write: Write

    @property
    def name(self) -> str:
        """The name it goes by everywhere, that of its file."""
        return self.write.__name__.replace("_", "-")

    @property
    def module(self) -> str:
        """Where it was defined."""
        return self.write.__module__

    @property
    def summary(self) -> str:
        """First line of its documentation."""
        return (inspect.getdoc(self.write) or "").partition("\n")[0]


reports: Registry[Report] = Registry(__name__, "format")


def report(write: Write) -> Write:
    """Register the function below as an output format."""
    reports.add(Report(write))
    return write
