"""The library calls: `stabcli.read` and `stabcli.scan`, and that importing them costs nothing."""

import subprocess
import sys

import numpy as np
import pytest

import stabcli
from stabcli.errors import LogError, NothingThere, SettingError
from tests.cli.commands import Stabcli
from tests.cli.conftest import stabcli as command
from tests.conftest import ROOT, SAMPLES

CLEAN = SAMPLES / "jsonl" / "clean.jsonl"
SPIKE = SAMPLES / "jsonl" / "bad_batch.jsonl"
__all__ = ["command"]


def test_read_returns_runs():
    """A log is a list of runs, each a table."""
    (run,) = stabcli.read(CLEAN)

    assert run.frame.height == 1000
    assert np.isfinite(run.array("loss")).all()


def test_scan_returns_diagnoses():
    """What was found, what it cost, what to do, and what could not be looked at."""
    (found,) = stabcli.scan(str(SPIKE))

    assert found.worst == "critical"
    assert found.incidents[-1].rule == "loss-spike"
    assert found.plans[-1][0].text
    assert found.skipped
    assert stabcli.scan(CLEAN)[0].worst in (None, "notice")


def test_facts_overrule_the_log():
    """What the caller knows wins over what the log says, as a flag would."""
    (found,) = stabcli.scan(SPIKE, facts={"gpus": "4", "tokens_per_step": "1M"})

    assert found.run.fact("gpus") == 4
    assert found.cost.all.tokens == pytest.approx(1e9)


def test_rules_presets_and_settings():
    """Which rules look, and how, is the caller's choice."""
    quiet = {"loss-spike": {"notice": 1e9, "warning": 1e9, "error": 1e9}}
    (found,) = stabcli.scan(SPIKE, rules=["loss-spike"], settings=quiet)

    assert (found.checked, found.incidents) == (("loss-spike",), ())
    assert stabcli.scan(SPIKE, presets=["seed"])[0].presets == ("seed",)


def test_names_and_reader(command: Stabcli):
    """A column may be named, and a format chosen."""
    log = command.log("a.jsonl", ({"step": i, "cost_fn": 2.0} for i in range(50)))

    assert stabcli.read(log, names={"loss": "cost_fn"}, reader="jsonl")[0].has("loss")


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: stabcli.read("missing.jsonl"), LogError),
        (lambda: stabcli.read("*.jsonl"), NothingThere),
        (lambda: stabcli.read(CLEAN, reader="jsnl"), SettingError),
        (lambda: stabcli.read(CLEAN, facts={"gpusz": 3}), SettingError),
        (lambda: stabcli.read(CLEAN, facts={"gpus": "many"}), SettingError),
        (lambda: stabcli.scan(CLEAN, rules=["loss-spik"]), SettingError),
        (lambda: stabcli.scan(CLEAN, presets=["sed"]), SettingError),
    ],
)
def test_what_is_wrong_is_raised(command: Stabcli, call, error):
    """Wrong input is one of the errors a user can meet, on one line."""
    with pytest.raises(error) as raised:
        call()
    assert "\n" not in str(raised.value)


def test_folders_say_what_they_left_out(command: Stabcli):
    """Files that are no logs are a warning, a broken log is an error, no log at all as well."""
    (command.folder / "runs").mkdir()
    (command.folder / "runs" / "notes.txt").write_text("hello\n")
    with pytest.warns(UserWarning, match=r"notes\.txt"), pytest.raises(NothingThere):
        stabcli.read("runs")
    command.healthy("runs/a.jsonl")
    with pytest.warns(UserWarning, match=r"not logs, left out: notes\.txt"):
        assert len(stabcli.read("runs")) == 1
    (command.folder / "runs" / "notes.txt").unlink()
    (command.folder / "runs" / "b.jsonl").write_text('{"loss": 1.0}\n' * 10)
    with pytest.raises(LogError, match="no step"):
        stabcli.read("runs")


def test_import_is_instant():
    """Importing the package, or its pytest plugin, imports nothing heavy."""
    code = (
        "import sys, stabcli; stabcli.read, stabcli.scan\n"
        "print([m for m in ('polars', 'numpy', 'typer', 'rich') if m in sys.modules])\n"
        "import stabcli.pytest_plugin\n"
        "print([m for m in ('polars', 'numpy', 'typer') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert done.stdout == "[]\n[]\n"
