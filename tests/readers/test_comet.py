"""Reader comet: offline archives, and lists of what the API hands out."""

import json
import math

import polars as pl
import pytest

from stabcli.errors import LogError
from stabcli.readers import read_runs
from tests.conftest import SAMPLES
from tests.readers.tracker_runs import assert_written, claimed, column, the_run
from tests.tracker_writing import (
    ROWS,
    clock,
    comet_listed,
    comet_messages,
    lines,
    write_comet,
    zipped,
)

NAMES = {"eval/loss": "validate/loss"}
ABOUT = json.dumps({"offline_id": "c" * 32})


@pytest.mark.parametrize("packed", [True, False])
def test_an_archive_is_read(tmp_path, packed):
    """Compressed, or stored as Comet itself does when it cannot compress."""
    path = write_comet(tmp_path / "e.zip", packed=packed)
    run = the_run(path)

    assert claimed(path) == ["comet"]
    assert_written(run, names=NAMES)
    assert run.name == "run"
    assert run.columns["val_loss"] == "validate/loss"
    assert run.frame["wall_time"].to_list() == [clock(s) for s, _ in ROWS]
    assert run.facts["gpus"].value == 8


@pytest.mark.parametrize("ending", ["json", "indented", "jsonl"])
def test_a_list_is_read(tmp_path, ending):
    path = tmp_path / f"metrics.{ending}"
    listed = comet_listed()
    text = (
        lines(listed)
        if ending == "jsonl"
        else json.dumps(listed, indent=2 if ending == "indented" else None)
    )
    path.write_text(text)
    run = the_run(path)

    assert claimed(path) == ["comet"]
    assert_written(run, names=NAMES)
    assert run.frame["wall_time"].to_list() == [clock(s) for s, _ in ROWS]


def test_a_restart_in_both(tmp_path):
    rows = [*ROWS[:15], *ROWS[8:]]
    archive = the_run(write_comet(tmp_path / "e.zip", rows))
    listed = comet_listed(rows)
    walls = {}
    for row in listed:  # the clock goes on where the run went back
        key = row["metricName"], row["runContext"]
        walls[key] = walls.get(key, 0) + 1
        row["timestamp"] = int((clock(0) + 2.0 * _place(rows, key, walls[key])) * 1e3)
    (tmp_path / "m.json").write_text(json.dumps(listed))
    for run in (archive, the_run(tmp_path / "m.json")):
        assert [(a.first_step, a.last_step) for a in run.attempts] == [(0, 14), (8, 19)]
        assert_written(run, names=NAMES)


def _place(rows, key, count):
    """The row in which a metric came for the so-manieth time."""
    name = f"{ {'train': 'train', 'validate': 'eval'}[key[1]] }/{key[0]}"
    return [i for i, (_, values) in enumerate(rows) if name in values][count - 1]


def test_values_that_are_none_and_steps_that_are_none(tmp_path):
    extra = [
        {
            "metricName": "note",
            "metricValue": "hello",
            "timestamp": 1,
            "step": 1,
            "runContext": None,
        },
        {
            "metricName": "final",
            "metricValue": "0.5",
            "timestamp": 1,
            "step": None,
            "runContext": None,
        },
        {
            "metricName": "odd",
            "metricValue": "0.5",
            "timestamp": 1,
            "step": "x",
            "runContext": None,
        },
        {
            "metricName": "sys.gpu.0",
            "metricValue": "0.5",
            "timestamp": 1,
            "step": 1,
            "runContext": None,
        },
        {"metricValue": "0.5"},
        7,
    ]
    path = tmp_path / "m.json"
    path.write_text(json.dumps([*comet_listed(), *extra]))
    run = the_run(path)

    assert_written(run, names=NAMES)
    assert run.notes == (
        "values of the machine (sys.) not read: 1",
        "no numbers, left out: 'note'",
        "1 value without a step left out: 'final'",
    )
    assert run.bad.count == 3


def test_names_that_say_their_context_already(tmp_path):
    """``train_loss`` under ``train`` is not ``train/train_loss``."""
    listed = [
        {"metricName": n, "metricValue": "1.5", "timestamp": 1, "step": 1, "runContext": c}
        for n, c in (("train_loss", "train"), ("val_loss", "validate"), ("acc", "test"))
    ]
    path = tmp_path / "m.json"
    path.write_text(json.dumps([*listed, *[{**row, "step": 2} for row in listed]]))
    run = the_run(path)

    assert run.columns["loss"] == "train_loss"
    assert run.columns["val_loss"] == "val_loss"
    assert column(run, "test/acc") == {1: 1.5, 2: 1.5}


def test_broken_messages_cost_themselves(tmp_path):
    said = lines(comet_messages())
    path = zipped(
        tmp_path / "e.zip",
        {"experiment.json": "{", "messages.json": "{broken\n[]\n\n" + said + '{"ty'},
    )
    run = the_run(path)

    assert_written(run, names=NAMES)
    assert [line for line, _ in run.bad.first] == [1, 2, said.count("\n") + 4]


def test_archives_and_lists_without_a_metric_say_so(tmp_path):
    path = zipped(tmp_path / "e.zip", {"experiment.json": ABOUT, "messages.json": ""})
    with pytest.raises(LogError, match=r"e.zip: no metric in it: give an experiment"):
        read_runs([str(path)])
    path.write_bytes(write_comet(tmp_path / "w.zip").read_bytes()[:-30])
    with pytest.raises(LogError, match=r"e.zip: a broken archive"):
        read_runs([str(path)])
    (tmp_path / "m.json").write_text(json.dumps(comet_listed())[:-40])
    with pytest.raises(LogError, match=r"m.json: no whole JSON: .*: it was cut short"):
        read_runs([str(tmp_path / "m.json")])
    with pytest.raises(LogError, match="a folder"):
        read_runs([str(tmp_path)], format_name="comet")


def test_an_archive_of_anything_else_is_nobodys(tmp_path):
    path = zipped(
        tmp_path / "x.zip", {"messages.txt": '{"step": 1, "loss": 2.0}\n' * 9}, packed=False
    )

    assert claimed(path) == []


def test_what_comet_itself_wrote_is_what_was_logged():
    run = the_run(SAMPLES / "comet/diverged.zip")
    csv = the_run(SAMPLES / "csv/diverged_metrics.csv")
    listed = the_run(SAMPLES / "comet/bad_batch.json")
    jsonl = the_run(SAMPLES / "jsonl/bad_batch.jsonl")
    for metric in ("loss", "grad_norm", "learning_rate", "val_loss"):
        ours = run.frame.select("step", metric).drop_nulls()
        assert ours.equals(csv.frame.select("step", metric).drop_nulls()), metric
        part = jsonl.frame.filter(pl.col("step").is_between(501, 700)).select("step", metric)
        assert listed.frame.select("step", metric).drop_nulls().equals(part.drop_nulls()), metric
    assert any(math.isnan(x) for x in run.frame["loss"].drop_nulls())
