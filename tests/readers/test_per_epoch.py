"""Reader ``per-epoch``: iterations that are counted anew in each epoch."""

import math
from pathlib import Path

import pytest

from stabcli.readers import read_runs
from tests.textlogs import column, read, sample, truth

LENGTH = 20
"""Iterations of an epoch in the logs made here."""
LOSSES = {s: 3.0 - s / 100 for s in range(1, 50)} | {50: math.nan}

ONE_BASED = [
    "Epoch [{e}/3], Step [{i}/20], Loss: {x}",
    "epoch {e} iter [{i}/20] loss: {x} time: 0.5s",
    "Epoch {e}/3 Batch {i}/20 - loss: {x} - acc: 0.5",
    "| epoch   {e} | {i:5d}/   20 batches | lr 20.00 | ms/batch 12.34 | loss {x}",
    "2024/01/01 10:00:00 - mmengine - INFO - Epoch(train)  [{e}][  {i}/20]  lr: 2.0  loss: {x}",
    "INFO - {{ Epoch:[  {e}/  3], step:[    {i}/   20], loss: {x}, global_norm: [1.23]}}",
    "[Train][Epoch {e}/3][Iter: {i}/20]lr: 0.1, CELoss: 2.5, loss: {x}, ips: 27.0 samples/s",
    "Epoch {e}/3  {i:3d}%|##   | {i}/20 [00:01<00:20,  2.1it/s, loss={x}, lr=1e-4]",
]
ZERO_BASED = [
    "Train Epoch: {e} [{i}/20]\tLoss: {x}",
    "Epoch: [{e}]  [  {i}/20]  eta: 0:12:34  lr: 0.000001  loss: {x} (2.9)  grad_norm: 0.39 (nan)",
    "Train: {e} [   {i}/20 (  5%)]  Loss: {x} (2.9)  Time: 0.456s, 2245.61/s  LR: 1.000e-03",
    "epoch {e} loss {x}:  {i:3d}%|##   | {i}/20 [00:01<00:20,  2.1it/s]",
    "loss: {x}:  {i:3d}%|##   | {i}/20 [00:01<00:20,  2.1it/s]",
    "Epoch {e}/2  ━━━━━╸━━━━━ {i}/20 0:00:12 • 0:01:28 9.9it/s v_num: 3.000 train_loss: {x}",
]


@pytest.mark.parametrize("end", ["\n", "\r"])
@pytest.mark.parametrize(
    ("spelling", "first"), [(s, 1) for s in ONE_BASED] + [(s, 0) for s in ZERO_BASED]
)
def test_steps_go_on_through_the_epochs(spelling: str, first: int, end: str, tmp_path: Path):
    """Steps and losses as these loops print them, NaN included; no epoch is taken for a restart."""
    lines = [
        spelling.format(e=(s - 1) // LENGTH + first, i=(s - 1) % LENGTH + 1, x=x)
        for s, x in LOSSES.items()
    ]
    run = read(tmp_path / "log", end.join(lines) + "\n")

    assert run.reader == "per-epoch"
    assert column(run, "loss") == pytest.approx(LOSSES, nan_ok=True)
    assert len(run.attempts) == 1
    assert any("counted anew in each epoch" in note for note in run.notes)


@pytest.mark.parametrize("name", ["lines.log", "bars.log"])
def test_samples(name: str):
    """The steps of the run that the samples print, in order."""
    run = sample(f"per-epoch/{name}")

    assert column(run, "loss") == pytest.approx(truth("loss"), abs=6e-5)
    assert not any("commas" in note for note in run.notes)


def test_evaluation_bars_are_passed_by():
    """The bar of an evaluation is no step; the loss that it found stands in the bar of training."""
    assert column(sample("per-epoch/bars.log"), "val_loss") == pytest.approx(
        truth("val_loss"), abs=6e-5
    )


def test_bars_of_an_evaluation_with_a_loss(tmp_path: Path):
    """A loss in the bar of an evaluation is none of training."""
    text = ""
    for e in range(3):
        for i in range(1, 21):
            text += f"Train {e}: {5 * i}%|##| {i}/20 [00:01<00:20, 2.1it/s, loss=2.5]\r"
        for i in range(1, 6):
            text += f"Eval: {20 * i}%|##| {i}/5 [00:01<00:20, 2.1it/s, loss=9.5]\r"
    run = read(tmp_path / "log", text)

    assert run.frame["step"].to_list() == list(range(1, 61))
    assert set(run.frame["loss"].to_list()) == {2.5}


def test_steps_that_already_go_on(tmp_path: Path):
    """A log that names epochs but counts its steps through all of them is taken at its word."""
    text = "".join(
        f"Epoch {s // 20 + 1} Step {s}/60 lr: 1.0e-05 loss: 2.5, tgs: 15000.0\n"
        for s in range(1, 61)
    )
    run = read(tmp_path / "log", text)

    assert run.frame["step"].to_list() == list(range(1, 61))


def test_a_restart_is_one(tmp_path: Path):
    """A loop that goes back by an epoch was restarted."""
    text = ""
    for e in (1, 2, 3, 2, 3, 4):
        text += "".join(f"Epoch [{e}/9], Step [{i}/20], Loss: 2.5\n" for i in range(1, 21))
    run = read(tmp_path / "log", text)

    assert [(a.first_step, a.last_step) for a in run.attempts] == [(1, 60), (21, 80)]


@pytest.mark.parametrize("name", ["train_loss", "train_loss_step", "loss"])
@pytest.mark.parametrize("nan", ["nan.0", "nan", "inf.0", "-inf."])
def test_bars_fill_up_what_is_not_finite(name: str, nan: str, tmp_path: Path):
    """Lightning's bars make five characters of each value, of NaN as well."""
    bar = "Epoch 0: {0:3d}%|##   | {0}/100 [00:01<00:20,  2.1it/s, v_num=3, {1}={2}]"
    text = "\r".join(bar.format(i, name, "2.500" if i < 60 else nan) for i in range(1, 101))
    run = read(tmp_path / "log", text + "\n")

    assert run.frame["step"].to_list() == list(range(1, 101))
    assert run.frame["loss"].is_finite().sum() == 59
    assert run.frame["loss"].null_count() == 0


def test_epochs_of_other_lengths(tmp_path: Path):
    """A run that goes on with half the batch size has twice the iterations from then on."""
    text = "".join(
        f"Epoch [{e}/4], Step [{i}/20], Loss: 2.5\n" for e in (1, 2) for i in range(1, 21)
    )
    text += "".join(
        f"Epoch [{e}/4], Step [{i}/40], Loss: 2.5\n" for e in (3, 4) for i in range(1, 41)
    )
    run = read(tmp_path / "log", text)

    assert run.frame["step"].to_list() == list(range(1, 121))
    assert run.facts["total_steps"].value == 120


def test_what_begins_anew_after_the_last_epoch_is_another_run(tmp_path: Path):
    """Two trainings in one file are two runs, whose steps nobody has to train again."""
    one = "".join(
        f"Epoch [{e}/2], Step [{i}/20], Loss: 2.5\n" for e in (1, 2) for i in range(1, 21)
    )
    path = tmp_path / "log"
    path.write_text(one * 2)
    runs, _ = read_runs([str(path)])

    assert [run.frame["step"].to_list() for run in runs] == [list(range(1, 41))] * 2


@pytest.mark.parametrize(
    "line",
    [
        "2026/05/04 10:00:{s:02d} - INFO - Epoch(train) [1][{s}/50] time: 0.32 data_time: 0.02 loss: 2.4",
        "Epoch: [1][ {s}/50]\tTime  0.320 ( 0.400)\tData  0.020 ( 0.030)\tLoss 2.4e+00 (2.4e+00)",
        "Train: 0 [  {s}/50 (  4%)]  Loss: 2.4 (2.4)  Time: 0.320s, 2497.56/s  Data: 0.020 (0.010)",
    ],
)
def test_times_of_steps_and_of_their_data(line: str, tmp_path: Path):
    """The time of an iteration stands beside that of its data, and times of lines are read."""
    run = read(tmp_path / "log", "".join(line.format(s=s) + "\n" for s in range(1, 51)))

    assert set(run.frame["step_seconds"].to_list()) == {0.32}
    assert set(run.frame["data_time"].to_list()) == {0.02}
    if line.startswith("2026"):
        assert run.frame["wall_time"].diff().drop_nulls().unique().to_list() == [1.0]
