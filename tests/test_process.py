"""The process of a command is light; a program that imports stabcli keeps its settings."""

import subprocess
import sys

import pytest

TOLD = "print(os.environ.get('OPENBLAS_NUM_THREADS'), gc.get_threshold()[0] > 10_000)"
COMMAND = f"""
import atexit, gc, os, sys
from stabcli.__main__ import main
atexit.register(lambda: {TOLD})
main()
"""


def _last(code: str, *arguments: str, threads: str | None = None) -> str:
    env = {"OPENBLAS_NUM_THREADS": threads} if threads else {}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=env,
    )
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("command", "threads", "told"),
    [
        ("rules", None, "1 True"),
        ("rules", "4", "4 True"),
        ("replay-batch", None, "None True"),
    ],
)
def test_a_command_starts_no_threads_it_does_not_need(command, threads, told):
    """One thread for matrices, unless the user wants more or a replay multiplies them."""
    assert _last(COMMAND, command, "--help", threads=threads) == told


def test_a_program_that_imports_stabcli_keeps_its_settings():
    """Neither the library nor its readers touch the environment or the collector."""
    assert _last(f"import gc, os, stabcli, stabcli.readers; {TOLD}") == "None False"
