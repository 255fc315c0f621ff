"""Reports: what was found, written for a person or for a program.

A format is a file ``report/<name>.py`` holding one function of that name under ``@report``.
It sees diagnoses, and what was decided of them, and returns text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import overload

from stabcli.diagnosis import Diagnosis
from stabcli.registry import Documented, Registry
from stabcli.verdicts import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """All that one command has to tell."""

    diagnoses: tuple[Diagnosis, ...]
    """One a run, in the order given."""
    exit_status: int
    """What the command ends with."""
    left_out: tuple[str, ...] = ()
    """Files in folders that are no logs, a line a folder."""
    unread: tuple[str, ...] = ()
    """Logs that could not be read, a line each; none of them is in ``diagnoses``."""
    verdicts: tuple[Verdict, ...] = ()
    """What was decided of each diagnosis, in their order; empty where nothing was asked."""
    remarks: tuple[str, ...] = ()
    """What else a person should hear of the settings: ignores that expired or cover nothing."""
    base: str = "."
    """Folder that files are told relative to, as the programs that read a report expect it."""


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
class Report(Documented):
    """A format; made by ``@report`` only."""

    write: Write
    mark: str | None = None
    """Text that stands near the beginning of each of its files and of no other format's.

    A file that holds it may be written over by a new report; without one no file is.
    """

    @property
    def function(self) -> Write:
        """The function it is made of."""
        return self.write


reports: Registry[Report] = Registry(__name__, "format")


@overload
def report(write: Write) -> Write: ...
@overload
def report(*, mark: str) -> Callable[[Write], Write]: ...
def report(
    write: Write | None = None, *, mark: str | None = None
) -> Write | Callable[[Write], Write]:
    """Register the function below as an output format, plain or as ``@report(mark=…)``."""

    def register(write: Write) -> Write:
        reports.add(Report(write, mark))
        return write

    return register if write is None else register(write)
