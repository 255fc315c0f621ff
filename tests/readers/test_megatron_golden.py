"""Reader megatron-golden: golden values of Megatron-LM's functional tests."""

import json
import math

import pytest

from stabcli.errors import LogError
from stabcli.readers import read_runs
from tests.conftest import SAMPLES
from tests.readers.tracker_runs import assert_written, claimed, column, the_run
from tests.tracker_writing import ROWS, golden

LOSSES = [(s, {k: v for k, v in values.items() if k != "eval/loss"}) for s, values in ROWS]
NAMES = {"train/loss": "lm loss", "train/grad_norm": "grad-norm"}


def written(tmp_path, held, indent=None):
    path = tmp_path / "golden_values.json"
    path.write_text(json.dumps(held, indent=indent))
    return path


@pytest.mark.parametrize("indent", [None, 4])
@pytest.mark.parametrize("listed", [False, True])
def test_both_generations_are_read(tmp_path, listed, indent):
    """Values by step, or in a list from the first step on; infinities may stand bare."""
    path = written(tmp_path, {**golden(listed=listed), "iteration_timing_avg": 0.1}, indent)
    run = the_run(path)

    assert claimed(path) == ["megatron-golden"]
    assert_written(run, LOSSES, names=NAMES)
    assert run.columns["step_seconds"] == "iteration-time"
    assert run.notes == ()
    assert run.name.endswith("/golden_values.json")


def test_steps_that_were_never_reached_are_no_incident(tmp_path):
    """Where every series says nan there was no step; where one does, it is a NaN."""
    held = golden()
    for series in held.values():
        series["values"].update({str(s): "nan" for s in range(20, 30)})
    held["iteration-time"]["values"]["5"] = "nan"
    run = the_run(written(tmp_path, held))

    assert run.frame["step"].to_list() == list(range(20))
    assert [s for s, v in column(run, "lm loss").items() if math.isnan(v)] == [17]
    assert 5 not in column(run, "iteration-time")
    assert run.notes == (
        "10 steps at which every series is nan were never reached: left out (20 to 29)",
        "1 steps were not timed (nan in a series of times)",
    )


def test_what_is_broken_is_told(tmp_path):
    held = golden()
    held["lm loss"]["values"].update({"x": 1.0, "7": "oops", "8.5": 2.0})
    held["odd"] = {"start_step": 1, "values": 7}
    run = the_run(written(tmp_path, held))

    assert run.bad.count == 3
    assert 7 not in column(run, "lm loss")


def test_cut_and_empty_ones_are_one_line(tmp_path):
    path = written(tmp_path, golden())
    path.write_text(path.read_text()[:300])
    with pytest.raises(LogError, match=r"no whole JSON: .*: it was cut short; export it again"):
        read_runs([str(path)])
    path = written(
        tmp_path, {"lm loss": {"start_step": 0, "end_step": 0, "step_interval": 1, "values": {}}}
    )
    with pytest.raises(LogError, match="no series with a value in it"):
        read_runs([str(path)])


def test_the_sample_is_what_was_logged():
    run = the_run(SAMPLES / "megatron-golden/golden_values_bad_batch.json")
    lines = the_run(SAMPLES / "jsonl/bad_batch.jsonl")
    steps = [1, *range(5, 951, 5)]
    for metric in ("loss", "grad_norm"):
        part = lines.frame.filter(lines.frame["step"].is_in(steps)).select("step", metric)
        assert run.frame.select("step", metric).equals(part), metric


@pytest.mark.parametrize(
    ("test", "last"),
    [
        ("gpt/gpt3_15b_8t_release", 50_860),
        ("mixtral/mixtral_8x7b_alltoall_tp2pp4ep4_release", 22_685),
    ],
)
def test_real_ones(shared_data, test, last):
    """The padding at the end is labelled benign, and is no row."""
    place = shared_data / "text/NVIDIA__Megatron-LM/tests/functional_tests/test_cases" / test
    path = place / "golden_values_dev_dgx_h100.json"
    run = the_run(path)
    held = json.loads(path.read_text())["lm loss"]["values"]

    assert claimed(path) == ["megatron-golden"]
    assert column(run, "lm loss") == {int(s): v for s, v in held.items() if v != "nan"}
    assert run.frame["step"].max() == last


def test_a_series_that_lost_its_values_is_told(tmp_path):
    """What has the marks of a series but no values is counted as bad; figures alone are not."""
    held = {**golden(listed=False), "iteration_timing_avg": 0.1, "note": {"by": "CI"}}
    held["grad-norm"] = {"start_step": 1, "end_step": 50, "step_interval": 5, "vaCues": {"1": 2.0}}
    run = the_run(written(tmp_path, held))

    assert run.bad.count == 1
    assert "grad-norm: a series without values" in run.bad.first[0][1]
