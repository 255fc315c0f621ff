"""How commands end: a verdict, wrong usage and a bug never look alike."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stabcli import __version__, read
from stabcli.cli import run
from tests.cli.commands import Stabcli
from tests.conftest import ROOT, SAMPLES


def test_help_is_fine(stabcli: Stabcli):
    """Asking for help ends with 0 and lists the commands."""
    result = stabcli("--help")

    assert (result.status, result.err) == (0, "")
    assert "scan" in result.out


def test_no_command_is_wrong_usage(stabcli: Stabcli):
    """Without a command there is the help, and status 2: a script forgot something."""
    result = stabcli()

    assert result.status == 2
    assert "Commands:" in result.out


def test_version(stabcli: Stabcli):
    """The version is printed by both ways through the program."""
    assert stabcli("--version").out == f"stabcli {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["scna"], "scan"),
        (["scan"], "LOG"),
        (["scan", "a.jsonl", "--fial-on", "error"], "--fail-on"),
        (
            ["scan", "a.jsonl", "--format", "jsno"],
            "--format jsno: no such choice: did you mean json?",
        ),
        (["scan", "a.jsonl", "--fail-on", "eror"], "did you mean error?"),
        (["scan", "a.jsonl", "--rule", "loss-spik"], "did you mean loss-spike?"),
        (["scan", "a.jsonl", "--preset", "sed"], "--preset sed: no such preset"),
        (["scan", "a.jsonl", "--reader", "jsnl"], "did you mean jsonl?"),
        (["scan", "a.jsonl", "--set", "loss-spike.eror=9"], "did you mean error?"),
        (["scan", "a.jsonl", "--set", "loss-spike=9"], "write RULE.SETTING=VALUE"),
        (["scan", "a.jsonl", "--set", "loss-spike.error"], "write NAME=VALUE"),
        (["scan", "a.jsonl", "--set", "loss-spike.error=high"], "takes a number"),
        (["scan", "a.jsonl", "--set", "loss-spike.error=nan"], "takes a number of 0 or more"),
        (["scan", "a.jsonl", "--set", "loss-spike.join=-1"], "takes a whole number of 0 or more"),
        (["scan", "a.jsonl", "--set", "loss-shift.rows=1"], "loss-shift: cannot look with rows=1"),
        (["scan", "a.jsonl", "--set", "loss-spyke.error=9"], "did you mean loss-spike?"),
        (["scan", "a.jsonl", "--metric", "nope"], "--metric nope: no such column of numbers"),
        (["check", "a.jsonl", "--metric", "lss"], "did you mean loss?"),
        (["scan", "a.jsonl", "--rule", "xyzzy"], "no such rule: stabcli rules lists them"),
        (["scan", "a.jsonl", "--reader", "xyzzy"], "no such reader: stabcli formats lists them"),
        (["explain", "xyzzy"], "nothing of that name: see stabcli rules"),
        (["explain", "collapse"], "value-collapse?"),
        (["explain", "hack"], "did you mean reward-hacking, router-hacking?"),
        (["scan", "a.jsonl", "--gpus", "many"], "--gpus: takes a whole number"),
        (["scan", "a.jsonl", "--gpus", "-1"], "--gpus: takes a whole number"),
        (["scan", "a.jsonl", "--fact", "gpusz=1"], "did you mean gpus?"),
        (["scan", "a.jsonl", "--map", "los=train"], "--map los=train"),
        (["scan", "a.jsonl", "--map", "loss=nothing"], "has no column 'nothing'"),
        (["explain", "loss-spik"], "did you mean loss-spike?"),
        (["export", "a.jsonl", "-o", "a.xlsx"], "unknown ending"),
    ],
)
def test_wrong_usage_is_one_line_and_2(stabcli: Stabcli, arguments: list[str], said: str):
    """Whatever was typed wrong: one line that says what to do, status 2, no traceback."""
    stabcli.healthy("a.jsonl")
    result = stabcli(*arguments)

    assert result.status == 2
    assert result.out == ""
    assert result.err.startswith("stabcli: ")
    assert result.err.count("\n") == 1
    assert said in result.err
    assert len(result.err) < 400  # no list that fills a screen


def test_a_crash_is_3_with_a_traceback(stabcli: Stabcli, monkeypatch: pytest.MonkeyPatch):
    """A bug keeps its traceback, asks to be reported, and cannot be taken for a verdict."""

    def broken(*_, **__):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("stabcli.diagnosis.diagnose", broken)
    result = stabcli("scan", stabcli.healthy())

    assert result.status == 3
    assert "Traceback" in result.err
    assert "bug in stabcli" in result.err.splitlines()[-1]


def test_interrupted_is_130(stabcli: Stabcli, monkeypatch: pytest.MonkeyPatch):
    """Ctrl-C ends quietly with 130."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("stabcli.diagnosis.diagnose", interrupted)
    result = stabcli("scan", stabcli.healthy())

    assert (result.status, result.err) == (130, "")


@pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="no SIGPIPE on this system")
@pytest.mark.parametrize("arguments", [["--help"], ["rules"], ["scan", "a.jsonl"]])
def test_closed_pipe_is_quiet(stabcli: Stabcli, arguments: list[str]):
    """A reader that has gone, such as head, causes neither a message nor a verdict."""
    stabcli.healthy("a.jsonl")
    out, into = os.pipe()
    os.close(out)
    done = subprocess.run(
        [sys.executable, "-m", "stabcli", *arguments],
        stdout=into,
        stderr=subprocess.PIPE,
        cwd=stabcli.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    os.close(into)

    assert done.stderr == b""
    assert done.returncode == 141


def test_messages_cannot_speak_to_the_terminal(stabcli: Stabcli):
    """A file's name is shown, not obeyed."""
    result = stabcli("scan", "\x1b]0;no\nsuch")

    assert result.err == "stabcli: \\x1b]0;no\\nsuch: no such file: check the path\n"


def test_program_is_a_module(tmp_path: Path):
    """`python -m stabcli` is the same program."""
    done = subprocess.run(
        [sys.executable, "-m", "stabcli", "scan", "missing.jsonl"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "stabcli: missing.jsonl: no such file: check the path\n"


@pytest.mark.parametrize("where", [">&-", ">/dev/full"])
def test_output_that_cannot_be_written_is_one_line(where: str):
    """A closed or full standard output is no bug of ours."""
    if "full" in where and not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    log = SAMPLES / "jsonl" / "clean_head.jsonl.gz"
    done = subprocess.run(
        f"{sys.executable} -m stabcli scan {log} {where}",
        shell=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("stabcli: standard output ")
    assert done.stderr.count("\n") == 1


def test_an_export_is_read_again_whatever_its_format(tmp_path: Path):
    """Attempts, lines and values come back from every ending that export writes."""
    source = SAMPLES / "jsonl" / "restart.jsonl"
    (first,) = read(source)
    for ending in ("csv", "jsonl", "parquet"):
        path = tmp_path / f"again.{ending}"
        assert run(["export", str(source), "-o", str(path)]) == 0
        (again,) = read(path)
        assert [a.rows for a in again.attempts] == [a.rows for a in first.attempts]
        assert again.frame["loss"].to_list() == pytest.approx(first.frame["loss"].to_list())
