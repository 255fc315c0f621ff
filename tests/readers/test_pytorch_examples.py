"""Reader ``pytorch-examples``: loops grown from PyTorch's quickstart or its MNIST example."""

import math
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.textlogs import column, read, sample, truth

LOSSES = {s: 3.0 - s / 200 for s in range(1, 300)} | {300: math.nan}
"""Loss of each step, in epochs of 100."""


def quickstart(batch: int, every: int, *, done: bool, last: int | None = None) -> str:
    """Return what the quickstart prints of those steps, counting a batch before or once it is done.

    The last batch of an epoch may be short: then it is counted as if all had been.
    """
    text, last = "", last or batch
    for s, x in LOSSES.items():
        epoch, at = divmod(s - 1, 100)
        if not at:
            text += f"Epoch {epoch + 1}\n-------------------------------\n"
        if at % every == 0:
            samples = (at + done) * (batch if at < 99 else last)
            text += f"loss: {x:>7f}  [{samples:>5d}/{99 * batch + last:>5d}]\n"
        if at == 99:
            text += f"Test Error: \n Accuracy: 50.4%, Avg loss: {4 - epoch:>8f} \n\n"
    return text + "Done!\n"


def example(steps: Iterable[int], line: str, *, batch: int = 64, last: int = 64) -> str:
    """Return what the MNIST example prints of some steps; the last batch of an epoch may be short."""
    text = ""
    for s in steps:
        epoch, at = divmod(s - 1, 100)
        samples = at * (batch if at < 99 else last)
        size = 99 * batch + last
        text += line.format(e=epoch + 1, at=samples, of=size, p=f"{at:.0f}", x=LOSSES[s]) + "\n"
        if at == 99:
            text += f"\nTest set: Average loss: {4 - epoch:.4f}, Accuracy: 9500/10000 (95%)\n\n"
    return text


LINE = "Train Epoch: {e} [{at}/{of} ({p}%)]\tLoss: {x:.6f}"
SPELLINGS = [
    LINE,
    "Train Epoch: {e} [{at:>6}/{of:>6} ({p}%)]  Loss: {x}",
    "Process 0: Epoch {e} [{at}/{of} ({p}%)]\tLoss: {x}",
    "4711\tTrain Epoch: {e} [{at}/{of} ({p}%)]\tloss: {x}",
]


@pytest.mark.parametrize("every", [5, 10])
def test_quickstart_that_counts_what_is_done(every: int, tmp_path: Path):
    """The first bracket is the batch size: steps, losses and evaluations as they were."""
    run = read(tmp_path / "log", quickstart(64, every, done=True))

    said = {s: x for s, x in LOSSES.items() if (s - 1) % every == 0}
    assert run.reader == "pytorch-examples"
    assert column(run, "loss") == pytest.approx(said, nan_ok=True, abs=1e-6)
    assert column(run, "samples_seen") == {s: 64.0 * s for s in said}
    assert column(run, "val_loss") == {100 * e + 101 - every: 4.0 - e for e in range(3)}
    assert set(column(run, "val_accuracy").values()) == {0.504}
    assert any("a step is 64 of them" in note for note in run.notes)
    assert run.bad.count == 0
    assert len(run.attempts) == 1


def test_quickstart_that_does_not_say_its_batch_size(tmp_path: Path):
    """Lines are counted, samples are kept, and a note says so."""
    run = read(tmp_path / "log", quickstart(64, 10, done=False))

    losses = [x for s, x in LOSSES.items() if (s - 1) % 10 == 0]
    assert run.frame["step"].to_list() == list(range(30))
    assert run.frame["loss"].to_list() == pytest.approx(losses, abs=1e-6)
    assert run.frame["samples_seen"].to_list() == [640.0 * i for i in range(30)]
    assert any("lines, 640 samples apart, were counted as steps" in note for note in run.notes)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("flags", ["", "main.py --batch-size 64\n", "Namespace(batch_size=64)\n"])
def test_example(spelling: str, flags: str, tmp_path: Path):
    """Samples are seen as such; with the batch size that the log says steps are steps."""
    steps = range(1, 301, 10)
    run = read(tmp_path / "log", flags + example(steps, spelling))

    at = [s - 1 if flags else (s - 1) // 10 for s in steps]
    assert run.reader == "pytorch-examples"
    assert run.frame["step"].to_list() == at
    assert run.frame["loss"].to_list() == pytest.approx([LOSSES[s] for s in steps], abs=1e-6)
    assert run.frame["samples_seen"].to_list() == [64.0 * (s - 1) for s in steps]
    assert any("of samples, not of steps" in note for note in run.notes)


def test_evaluations_of_the_example(tmp_path: Path):
    """They belong to the step before them."""
    run = read(tmp_path / "log", "main.py --batch-size 64\n" + example(LOSSES, LINE))

    assert column(run, "val_loss") == {99: 4.0, 199: 3.0, 299: 2.0}
    assert set(column(run, "val_accuracy").values()) == {0.95}
    assert math.isnan(column(run, "loss")[299])


@pytest.mark.parametrize("last", [1, 7, 32, 52, 60, 63])
@pytest.mark.parametrize("every", [1, 3, 9])
def test_a_short_last_batch(every: int, last: int, tmp_path: Path):
    """It is counted as if all had been as short, and is the last step of its epoch all the same."""
    steps = [s for s in LOSSES if (s - 1) % 100 % every == 0]
    run = read(tmp_path / "log", "main.py --batch-size 64\n" + example(steps, LINE, last=last))

    assert run.frame["step"].to_list() == [s - 1 for s in steps]
    assert len(run.attempts) == 1


@pytest.mark.parametrize("last", [1, 7, 32, 52, 60, 63])
@pytest.mark.parametrize("every", [3, 9])
def test_a_short_last_batch_of_the_quickstart(every: int, last: int, tmp_path: Path):
    """The same, where the batch size is the first bracket."""
    steps = [s for s in LOSSES if (s - 1) % 100 % every == 0]
    run = read(tmp_path / "log", quickstart(64, every, done=True, last=last))

    assert run.frame["step"].to_list() == steps
    assert len(run.attempts) == 1


@pytest.mark.parametrize("every", [1, 10, 50, 100])
def test_batches_are_no_samples(every: int, tmp_path: Path):
    """Loops that print batches in the same words are taken at their word."""
    text = ""
    for e in range(1, 4):
        for i in range(0, 938, every):
            text += LINE.format(e=e, at=i, of=938, p=100 * i // 938, x=2.5) + "\n"
    run = read(tmp_path / "log", text)

    assert run.frame["step"].to_list() == [
        938 * e + i for e in range(3) for i in range(0, 938, every)
    ]
    assert "samples_seen" not in run.frame.columns


def test_a_restart_is_one(tmp_path: Path):
    """A loop that goes back by an epoch was restarted."""
    text = quickstart(64, 10, done=True)
    two = text.index("Epoch 2")
    run = read(tmp_path / "log", text + text[two:])

    assert [(a.first_step, a.last_step) for a in run.attempts] == [(1, 291), (101, 291)]


@pytest.mark.parametrize(("name", "first"), [("quickstart.log", 0), ("mnist.log", 1)])
def test_samples(name: str, first: int):
    """The steps of the run that the samples print; the MNIST example counts from 0."""
    run = sample(f"pytorch-examples/{name}")

    said = {s - first: x for s, x in truth("loss").items()}
    assert column(run, "loss") == pytest.approx(said, abs=6e-7)
    said = {s - first: x for s, x in truth("val_loss").items()}
    assert column(run, "val_loss") == pytest.approx(said, abs=6e-5)
