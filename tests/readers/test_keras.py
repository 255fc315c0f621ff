"""Reader ``keras``: what ``fit`` prints, bars or a line an epoch."""

import math
from pathlib import Path

import pytest

from stabcli.readers import read_runs
from tests.textlogs import FIRST, LAST, column, read, sample, truth

EPOCHS = {e: (2.5 / e, 2.6 / e) for e in range(1, 20)} | {20: (math.nan, math.inf)}
LINES = [
    (
        "Epoch {e}/20\n60/60 - 4s - loss: {x} - accuracy: 0.93 - val_loss: {v} - val_accuracy: 0.95"
        " - 4s/epoch - 2ms/step"
    ),
    (
        "Epoch {e}/20\n60/60 - 4s - 2ms/step - accuracy: 0.93 - loss: {x} - val_accuracy: 0.95"
        " - val_loss: {v}"
    ),
    "Epoch {e}/20\n60/60 - 4s - loss: {x} - accuracy: 0.93 - val_loss: {v} - val_accuracy: 0.95",
    (
        "Epoch {e}/20\n60/60 [====>.....] - ETA: 1s - loss: 9.0\r60/60 [=========] - 4s 2ms/step"
        " - loss: {x} - accuracy: 0.93 - val_loss: {v} - val_accuracy: 0.95"
    ),
    (
        "Epoch {e}/20\n60/60 ━━━━━━━━━━━━ 4s 2ms/step - accuracy: 0.93 - loss: {x}"
        " - val_accuracy: 0.95 - val_loss: {v}"
    ),
]
OLD = "Epoch {e}/20\n - 4s - loss: {x} - accuracy: 0.93 - val_loss: {v} - val_accuracy: 0.95"


def log(spelling: str) -> str:
    """Return a log of twenty epochs."""
    return "".join(spelling.format(e=e, x=x, v=v) + "\n" for e, (x, v) in EPOCHS.items())


@pytest.mark.parametrize(("spelling", "length"), [*((line, 60) for line in LINES), (OLD, 1)])
def test_a_row_an_epoch(spelling: str, length: int, tmp_path: Path):
    """Each epoch is a row with all its values, NaN included; its step is the last of the epoch."""
    run = read(tmp_path / "log", log(spelling))

    assert run.reader == "keras"
    for name, i in (("loss", 0), ("val_loss", 1)):
        said = {e * length: values[i] for e, values in EPOCHS.items()}
        assert column(run, name) == pytest.approx(said, nan_ok=True)
    assert set(run.frame["accuracy"]) == {0.93}
    assert set(run.frame["val_accuracy"]) == {0.95}
    assert run.frame["epoch"].to_list() == [float(e) for e in EPOCHS]
    assert run.facts["total_steps"].value == 20 * length
    assert len(run.attempts) == 1
    assert run.bad.count == 0


def test_epochs_without_a_number_of_steps(tmp_path: Path):
    """Old versions name no steps: the epochs are taken for them, and a note says so."""
    run = read(tmp_path / "log", log(OLD))

    assert any("epochs were taken as the steps" in note for note in run.notes)


@pytest.mark.parametrize(
    "evaluation",
    [
        "60/60 - 0s - loss: 9.0 - 358ms/epoch - 1ms/step\n",
        "15/15 - 0s - loss: 9.0\n",
        "15/15 [==============================] - 0s 1ms/step - loss: 9.0\n",
        " 1/60 [..............] - ETA: 1s - loss: 9.0\r60/60 [=====] - 0s 1ms/step - loss: 9.0\n",
    ],
)
def test_an_evaluation_is_no_training(evaluation: str, tmp_path: Path):
    """What ``evaluate`` prints, after a training or between its epochs, is no step of it."""
    text = log(LINES[0]).replace("Epoch 7/20\n", evaluation + "Epoch 7/20\n") + evaluation
    run = read(tmp_path / "log", text)

    assert run.frame["step"].to_list() == [60 * e for e in EPOCHS]
    assert 9.0 not in run.frame["loss"].to_list()
    assert any("evaluations after an epoch" in note for note in run.notes)


@pytest.mark.parametrize(
    ("lines", "steps"),
    [
        ("{at}/600 [===>....] - ETA: 0s - loss: {x}\n", range(1, 31)),
        ("600/600 - 1s - loss: {x}\n", range(1, 4)),
    ],
)
def test_samples_are_no_steps(lines: str, steps: range, tmp_path: Path):
    """Versions that count samples say how many there are: a step is the first batch of the bar."""
    text = "Train on 600 samples, validate on 100 samples\n"
    for e in range(1, 4):
        text += f"Epoch {e}/3\n"
        batches = range(60, 601, 60) if "{at}" in lines else (600,)
        text += "".join(lines.format(at=at, x=2.5) for at in batches)
    run = read(tmp_path / "log", text)

    assert run.frame["step"].to_list() == list(steps)
    assert run.frame["samples_seen"].max() == 1800
    assert any("of samples, not of steps" in note for note in run.notes)


def test_two_trainings_in_one_log(tmp_path: Path):
    """What begins anew after the last epoch is another run."""
    path = tmp_path / "log"
    path.write_text(log(LINES[0]) * 2)
    runs, _ = read_runs([str(path)])

    assert [run.frame["step"].to_list() for run in runs] == [[60 * e for e in EPOCHS]] * 2


def test_bars():
    """The steps of the run that the sample prints, in order."""
    run = sample("keras/fit.log")

    assert column(run, "loss") == pytest.approx(truth("loss"), abs=6e-5)
    assert column(run, "val_loss") == pytest.approx(truth("val_loss"), abs=6e-5)
    assert column(run, "learning_rate") == pytest.approx(truth("lr"), rel=1e-4)


def test_lines():
    """A row for each ten steps, with their mean."""
    run = sample("keras/fit_lines.log")
    loss = truth("loss")
    means = {
        s: sum(loss[t] for t in range(s - 9, s + 1)) / 10 for s in range(FIRST + 9, LAST + 1, 10)
    }

    assert column(run, "loss") == pytest.approx(means, abs=6e-5)
    assert column(run, "val_loss") == pytest.approx(truth("val_loss"), abs=6e-5)
