"""Fixture for pytest: a test that fails where a training log does not pass ``stabcli check``."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable

import pytest


@pytest.fixture
def stabcli_check() -> Callable[..., None]:
    """Return a function that fails the test unless a log passes.

    ``stabcli_check(log, "--require", "loss", "--max-final-loss", "2.5")``: a log and the flags
    of ``stabcli check``. A run that cannot be judged fails as well.
    """

    def check(log: str | os.PathLike[str], *flags: str) -> None:
        __tracebackhide__ = True
        from stabcli.cli import run

        shown = io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
            status = run(["check", str(log), *flags])
        if status:
            pytest.fail(f"stabcli check ended with {status}\n{shown.getvalue()}", pytrace=False)

    return check
