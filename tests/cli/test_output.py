"""What goes to stderr beside a report: a long walk through folders says that it goes on."""

import io
import sys
from pathlib import Path

from stabcli.cli import _output


class Terminal(io.StringIO):
    """A stderr that is a terminal."""

    def isatty(self) -> bool:
        return True


def said(monkeypatch, stream: io.StringIO, times: list[float]) -> list[str]:
    """Return what is said of files that are looked at at these times."""
    clock = iter([0.0, *times])
    monkeypatch.setattr(_output, "monotonic", lambda: next(clock, times[-1]))
    monkeypatch.setattr(sys, "stderr", stream)
    patience = _output.Patience(first=1.0, then=10.0)
    for i in range(3):
        patience(i, Path("/data/run/log.txt"))
    return stream.getvalue().splitlines()


def test_a_long_walk_says_on_a_terminal_that_it_goes_on(monkeypatch):
    """After a second there is a line with where it is and what to do; before that there is none."""
    assert said(monkeypatch, Terminal(), [0.1, 0.2, 0.3]) == []
    (line,) = said(monkeypatch, Terminal(), [0.5, 1.5, 1.5, 1.6])
    assert line.startswith("stabcli: /data/run: 1 files and folders looked into so far")
    assert "give the folders of the runs" in line


def test_a_pipe_is_told_nothing(monkeypatch):
    """What goes into a file or a pipe is the same however long it took."""
    assert said(monkeypatch, io.StringIO(), [0.5, 1.5, 1.5, 1.6]) == []
