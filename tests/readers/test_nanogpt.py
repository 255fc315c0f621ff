"""Reader ``nanogpt``: nanoGPT and build-nanogpt."""

import math
from pathlib import Path

import pytest

from stabcli.readers import read_runs
from tests.textlogs import column, read, sample, truth


def test_values_are_those_of_the_run():
    """Iteration lines give the loss, evaluation lines the validation loss; -100 % is no MFU."""
    run = sample("nanogpt/bad_batch.log")

    assert column(run, "loss") == pytest.approx(truth("loss"), abs=6e-5)
    assert column(run, "val_loss") == pytest.approx(truth("val_loss"), abs=6e-5)
    assert column(run, "step_seconds") == pytest.approx(truth("step_time"), abs=6e-6)
    assert set(column(run, "mfu").values()) == {0.125}
    assert min(column(run, "mfu")) == 506
    assert run.facts["tokens_per_step"].value == 2048


@pytest.mark.parametrize("name", ["build_nanogpt.log", "log.txt"])
def test_build_nanogpt(name: str):
    """Its validation lines stand before the step that they belong to."""
    run = sample(f"nanogpt/{name}")
    steps = range(581, 631)

    assert column(run, "loss") == pytest.approx({s: truth("loss")[s] for s in steps}, abs=6e-7)
    assert column(run, "val_loss") == pytest.approx({600: truth("val_loss")[600]}, abs=6e-5)


def test_nan(tmp_path: Path):
    """A NaN is printed as nan."""
    run = read(
        tmp_path / "log",
        "iter 3: loss nan, time 412.33ms, mfu -100.00%\niter 4: loss 2.0, time 1.0ms, mfu -100.00%\n",
    )

    assert math.isnan(column(run, "loss")[3])
    assert "mfu" not in run.frame.columns


@pytest.mark.parametrize(
    ("pattern", "rows", "last"),
    [
        ("druidowm*/**/output.log", 2547, 2546),
        ("neemias*/logs/log", 1992, 1991),
        ("neemias*/logs/train_log.txt", 1992, 1991),
    ],
)
def test_real_logs(shared_data: Path, pattern: str, rows: int, last: int):
    """As many rows and steps as counted by others."""
    (path,) = shared_data.glob(f"text/{pattern}")
    (run,), _ = read_runs([str(path)])

    assert (run.reader, run.frame.height) == ("nanogpt", rows)
    assert (run.frame["step"].min(), run.frame["step"].max()) == (0, last)


def test_llama2c():
    """llama2.c writes the step alone before the bars."""
    run = sample("nanogpt/llama2c.log")

    assert column(run, "loss") == pytest.approx(
        {s: truth("loss")[s] for s in range(581, 631)}, abs=6e-5
    )
    assert {"learning_rate", "step_seconds", "mfu"} <= set(run.frame.columns)


@pytest.mark.parametrize(
    ("said", "runs"),
    [("Initializing a new model from scratch", 2), ("Resuming training from out", 1)],
)
def test_a_model_from_scratch_is_another_run(said: str, runs: int, tmp_path: Path):
    """A second training in one file is a run of its own, one that is resumed is not."""
    one = "".join(f"iter {i}: loss 2.5000, time 412.33ms, mfu 12.00%\n" for i in range(30))
    path = tmp_path / "log"
    path.write_text(f"Initializing a new model from scratch\n{one}{said}\n{one}")

    assert len(read_runs([str(path)])[0]) == runs
