"""Reader ``nemo``: progress lines, stages without a loss, what is repeated or a mean."""

import math
from pathlib import Path

import pytest

from stabcli.readers import read_runs
from tests.textlogs import column, read, sample, truth

LINE = "Training epoch {}, iteration {}/4 | lr: 0.0002998 | reduced_train_loss: {}\n"


def test_values_are_those_of_the_run():
    """Four digits of each value; an evaluation counts once, though every line repeats it."""
    run = sample("nemo/bad_batch.log")

    assert column(run, "loss") == pytest.approx(truth("loss"), abs=6e-4)
    assert column(run, "learning_rate") == pytest.approx(truth("lr"), rel=1e-3)
    assert column(run, "step_seconds") == pytest.approx(truth("step_time"), rel=1e-3)
    assert list(column(run, "val_loss").values()) == pytest.approx(
        [truth("val_loss")[600]], abs=6e-4
    )
    assert "samples_seen" not in run.columns, "a mean over the lines counts nothing"


def test_what_the_log_says_of_itself():
    """The optimizer's settings, the processes, and the checkpoints."""
    facts = sample("nemo/bad_batch.log").facts
    wanted = {
        "peak_lr": 0.003,
        "weight_decay": 0.1,
        "grad_clip": 1.0,
        "optimizer": "adam",
        "gpus": 8,
        "checkpoints": (601, 701),
    }

    assert {name: facts[name].value for name in wanted} == wanted


def test_stages_without_a_loss():
    """A pipeline stage that computes no loss prints 0, which is none; a NaN stays."""
    run = sample("nemo/oddities.log")

    assert run.frame["step"].to_list() == list(range(30))
    loss = column(run, "loss")
    assert [s for s, x in loss.items() if math.isnan(x)] == [20]
    assert loss[3] == pytest.approx(truth("loss")[504], abs=6e-4)
    assert any("is 0" in note for note in run.notes)


def test_steps_of_epochs_go_on(tmp_path: Path):
    """Without a global step the iterations of an epoch are counted on."""
    text = "".join(LINE.format(e, i, "2.5") for e in range(3) for i in range(5))
    run = read(tmp_path / "log", text)

    assert (run.reader, run.frame["step"].to_list()) == ("nemo", list(range(15)))
    assert len(run.attempts) == 1


def test_global_step_goes_before_the_iteration(tmp_path: Path):
    """Where both stand in the line the global step is it, the last field or not."""
    text = "".join(
        LINE.format(1, i, f"2.5 | global_step: {100 + i}{more}")
        for i, more in enumerate(["", " | consumed_samples: 5.12e+04", ""])
    )
    run = read(tmp_path / "log", text)

    assert run.frame["step"].to_list() == [100, 101, 102]


def test_real_log(shared_data: Path):
    """Four trainings of a demonstration: interrupted, resumed, 85 lines in all."""
    (path,) = shared_data.glob("text/NVIDIA__NeMo/**/*.txt")
    runs, _ = read_runs([str(path)])

    assert {run.reader for run in runs} == {"nemo"}
    assert sum(run.frame.height for run in runs) == 85
    assert max(int(run.frame["step"][-1]) for run in runs) == 19
    assert runs[0].facts["gpus"].value == 8
