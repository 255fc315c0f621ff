"""Reader clearml: offline sessions, and scalars that a server hands out."""

import json
import math

import pytest

from stabcli.diagnosis import diagnose
from stabcli.errors import LogError
from stabcli.readers import read_runs
from tests.conftest import SAMPLES
from tests.readers.tracker_runs import assert_written, claimed, column, the_run
from tests.tracker_writing import (
    ROWS,
    clearml_events,
    clearml_scalars,
    clock,
    lines,
    write_clearml,
    zipped,
)

FINITE = [(s, {k: v for k, v in values.items() if math.isfinite(v)}) for s, values in ROWS]
TASK = json.dumps({"name": "run"})


def scalars(path, held):
    path.write_text(json.dumps(held))
    return path


def test_an_archive_is_read(tmp_path):
    path = write_clearml(tmp_path / "s.zip", FINITE)
    run = the_run(path)

    assert claimed(path) == ["clearml"]
    assert_written(run, FINITE)
    assert run.name == "run"
    assert run.frame["wall_time"].to_list() == [clock(s) for s, _ in ROWS]
    assert (run.facts["gpus"].value, run.facts["gpus"].source) == (
        8,
        "hyperparameters of the task, gpus",
    )
    assert run.notes == ()


@pytest.mark.parametrize("indent", [None, 2])
def test_scalars_are_read(tmp_path, indent):
    path = tmp_path / "scalars.json"
    path.write_text(json.dumps(clearml_scalars(FINITE), indent=indent))

    assert claimed(path) == ["clearml"]
    assert_written(the_run(path), FINITE)


def test_a_loss_of_nothing_among_others_is_a_hidden_nan(tmp_path):
    """ClearML writes 0.0 for NaN; the zeros of the gradient norm are left and told of."""
    for path in (
        write_clearml(tmp_path / "s.zip"),
        scalars(tmp_path / "s.json", clearml_scalars()),
    ):
        run = the_run(path)
        loss = column(run, "train/loss")

        assert [s for s, v in loss.items() if math.isnan(v)] == [17]
        assert [s for s, v in column(run, "train/grad_norm").items() if v == 0.0] == [9, 11]
        assert run.frame.filter(run.frame["hidden"])["step"].to_list() == [17]
        assert any(n.startswith("losses of exactly 0.0 among others") for n in run.notes)
        assert any("2 of 'train/grad_norm', first at step 9" in n for n in run.notes)
        assert "hidden-nonfinite" in {f.rule for i in diagnose(run).incidents for f in i.findings}


def test_zeros_that_hide_nothing_are_left(tmp_path):
    """A loss that comes near to nothing, a loss that is 0 throughout, and that of a policy."""
    near = [(s, {"train/loss": 10.0**-s if s < 9 else 0.0}) for s in range(20)]
    never = [(s, {"train/loss": 0.0, "train/grad_norm": 1.0}) for s in range(20)]
    policy = [(s, {"train/loss": 0.0 if s == 5 else 0.5, "train/reward": 1.0}) for s in range(20)]
    for rows in (near, never, policy):
        run = the_run(scalars(tmp_path / "s.json", clearml_scalars(rows)))

        assert "hidden" not in run.frame.columns
        assert_written(run, rows)


def test_long_series_may_be_averages(tmp_path):
    """From 5,000 points on a server averages: said of those series, and of no others."""
    held = clearml_scalars([(s, {"train/loss": 2.0 + s % 3}) for s in range(5000)])
    held["eval"] = clearml_scalars([(s, {"eval/loss": 2.0}) for s in range(4999)])["eval"]
    run = the_run(scalars(tmp_path / "s.json", held))

    (note,) = run.notes
    assert note.startswith("'train/loss': 5,000 points or more, of which get_reported_scalars")
    assert "spikes may be flattened; get_all_reported_scalars hands out every value" in note


def test_the_machine_and_single_values_stay_apart(tmp_path):
    events = clearml_events(FINITE)
    single = {"type": "training_stats_scalar", "metric": "Summary", "variant": "best", "value": 3.0}
    machine = {**single, "metric": ":monitor:gpu", "variant": "gpu_0", "iter": 3}
    plot = {"type": "plot", "metric": "p", "variant": "p", "iter": 1, "plot_str": "{}"}
    same = {**single, "metric": "acc", "variant": "acc", "iter": 3}
    path = zipped(
        tmp_path / "s.zip",
        {
            "metrics.jsonl": lines([*events, [{**single, "iter": -(2**31)}, machine, plot, same]]),
            "task.json": TASK,
        },
    )
    run = the_run(path)

    assert_written(run, FINITE)
    assert column(run, "acc") == {3: 3.0}
    assert run.notes == (
        "values of the machine (:monitor:) not read: 1",
        "single values of the whole run, left out: 'Summary/best'",
    )


def test_an_axis_of_times_is_no_axis_of_steps(tmp_path):
    held = {
        "train": {
            "loss": {"name": "loss", "x": [int(clock(s) * 1e3) for s in range(9)], "y": [1.5] * 9}
        }
    }
    run = the_run(scalars(tmp_path / "s.json", held))

    assert run.frame["step"].to_list() == list(range(1, 10))
    assert run.frame["wall_time"].to_list() == [clock(s) for s in range(9)]
    assert "the x axis is the time, not the iteration" in run.notes


def test_what_is_broken_is_told(tmp_path):
    held = clearml_scalars(FINITE)
    held["odd"] = {"short": {"x": [1, 2], "y": [1]}, "none": {}, "text": {"x": [1], "y": ["a"]}}
    held["list"] = [1]
    run = the_run(scalars(tmp_path / "s.json", held))
    assert_written(run, FINITE)
    assert run.bad.count == 3

    text = "{broken\n7\n[7]\n" + lines(clearml_events(FINITE)) + "[{"
    run = the_run(zipped(tmp_path / "s.zip", {"metrics.jsonl": text, "task.json": "{"}))
    assert_written(run, FINITE)
    assert run.bad.count == 4
    assert run.name == "s.zip"


def test_nothing_reported_and_nothing_whole(tmp_path):
    path = zipped(tmp_path / "s.zip", {"metrics.jsonl": "", "task.json": TASK})
    with pytest.raises(LogError, match=r"s.zip: no scalar in it: give a task that reported some"):
        read_runs([str(path)])
    text = json.dumps(clearml_scalars())
    (tmp_path / "s.json").write_text(text[: len(text) // 2])
    with pytest.raises(LogError, match=r"s.json: no whole JSON: .*: it was cut short"):
        read_runs([str(tmp_path / "s.json")])
    (tmp_path / "deep.json").write_text('{"a": {"b": {"x": [1], "y": ' + "[" * 100_000)
    with pytest.raises(LogError, match=r"deep.json: n"):
        read_runs([str(tmp_path / "deep.json")])


def test_what_clearml_itself_wrote_is_what_was_logged():
    """What was not finite is 0.0 in the archive; the losses among it are NaN again."""
    run = the_run(SAMPLES / "clearml/diverged.zip")
    csv = the_run(SAMPLES / "csv/diverged_metrics.csv")
    for metric in ("loss", "learning_rate"):
        ours = run.frame.select("step", metric).drop_nulls()
        assert ours.equals(csv.frame.select("step", metric).drop_nulls()), metric
    for metric in ("grad_norm", "val_loss"):
        theirs = csv.frame.select("step", metric).drop_nulls()
        stored = theirs.with_columns(theirs[metric].fill_nan(0.0))
        assert run.frame.select("step", metric).drop_nulls().equals(stored), metric
