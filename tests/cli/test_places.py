"""What is set wrong is said where it was set: by a flag, in the environment, or in the file."""

import shutil
from pathlib import Path

import pytest

from tests.cli.commands import Stabcli
from tests.conftest import SAMPLES

WORDS = ("preset", "reader", "format", "fail_on")


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A log in a folder of its own, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(SAMPLES / "jsonl/clean.jsonl", tmp_path / "a.jsonl")
    return "a.jsonl"


@pytest.mark.parametrize("name", WORDS)
@pytest.mark.parametrize("command", ["scan", "check"])
def test_words(
    stabcli: Stabcli, log: str, monkeypatch: pytest.MonkeyPatch, name: str, command: str
):
    flag = f"--{name.replace('_', '-')}"
    assert stabcli(command, log, flag, "nosuch").err.startswith(f"stabcli: {flag} nosuch: no such")
    Path("stabcli.toml").write_text(f'{name} = "nosuch"\n')
    said = stabcli(command, log).err
    assert said.startswith(f"stabcli: stabcli.toml: {name} = nosuch: no such")
    monkeypatch.setenv(f"STABCLI_{name.upper()}", "worse")
    said = stabcli(command, log).err
    assert said.startswith(f"stabcli: STABCLI_{name.upper()} worse: no such")


@pytest.mark.parametrize(
    ("file", "where"),
    [
        ('[map]\nlos = "x"', "stabcli.toml: map: los=x"),
        ('[map]\nloss = "x"', "stabcli.toml: map: loss=x"),
        ("[rules.los-spike]\nnotice = 3", "stabcli.toml: rules.los-spike"),
        ("[rules.loss-spike]\nnotise = 3", "stabcli.toml: rules.loss-spike.notise"),
        ('[rules.loss-spike]\nnotice = "a"', "stabcli.toml: rules.loss-spike.notice"),
        ('[facts]\ngpus = "many"', "stabcli.toml: gpus"),
        ('[tool.stabcli]\npreset = "sed"', "pyproject.toml [tool.stabcli]: preset = sed"),
    ],
)
def test_tables(stabcli: Stabcli, log: str, file: str, where: str):
    name = "pyproject.toml" if "tool." in file else "stabcli.toml"
    Path(name).write_text(file + "\n")
    result = stabcli("scan", log)
    assert result.status == 2
    assert result.err.startswith(f"stabcli: {where}: ")


def test_a_flag_overrules_a_wrong_file(stabcli: Stabcli, log: str):
    """What the file says of a word is not looked at where a flag says it."""
    Path("stabcli.toml").write_text('preset = "nosuch"\nformat = "nosuch"\n')
    assert stabcli("scan", log, "--preset", "default", "--format", "brief").status == 0
