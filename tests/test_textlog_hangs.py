"""Text logs: no line, however long and alike it is, keeps a grammar busy for long.

A pattern that looks through all of a line from each of its places is no trouble in lines that
trainers print, and hangs in the source code, tables and progress bars that stand among them.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from stabcli.readers import readers
from stabcli.textlog.grammar import GRAMMARS
from stabcli.textlog.lines import Parser

SECONDS = 10
LENGTH = 30_000
"""Characters: what grows with their square is seen from here on, with their cube by far."""
UNITS = (
    "a.b/", "a-", "a ", "1,", "1 ", "1/", "%| ", " | ", "[1/2]", "....", "::", "=",
    "loss: 3 ", "loss: 3 eval epoch 3 step 4 ", "loss = x(epoch, 3/4) ", "Epoch [3] loss: 1 ",
    "loss: 3 epoch 3 5%| eval ", "1%|#| 1/2 [", "{'loss': 3, ", "iteration 1/2 | ", "[rank0]: ",
    "name value ", '"loss": "3", ',
)  # fmt: skip

list(readers)


@contextmanager
def no_longer_than(seconds: int, what: str) -> Iterator[None]:
    """Fail what takes longer; a search is broken off in its middle."""

    def stop(*_: object) -> None:
        raise TimeoutError(what)

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", sorted(GRAMMARS))
def test_long_lines_do_not_hang(name: str):
    """Each mark of a grammar before, behind and within a line that repeats itself."""
    grammar = GRAMMARS[name]
    for mark in dict.fromkeys(line.mark for line in grammar.lines):
        for unit in UNITS:
            long = unit * (LENGTH // len(unit))
            for text in (mark + long, long + mark, f"step 3 {mark}: 3 {long}"):
                with no_longer_than(SECONDS, f"{mark!r} and {unit!r}"):
                    Parser(grammar).parse(text)
