"""Reader ``nemo-rl``: lists of results below each step."""

import math
from pathlib import Path

import pytest

from stabcli.errors import UnknownFormat
from stabcli.readers import read_runs
from tests.textlogs import column, policy, read, sample

STEP = "\n" + "=" * 25 + " Step {s}/{n} " + "=" * 25 + "\n▶ Taking a training step...\n"
RESULTS = "\n📊 Training Results:\n  • Loss: {x}\n\n⏱️  Timing:\n  • Total step time: 2.50s\n"


def test_sample():
    """Reward, loss and length of each step; the accuracy of the validations."""
    run = sample("nemo-rl/grpo.log")

    for metric, own in (
        ("reward", "reward"),
        ("objective_loss", "loss"),
        ("response_length", "response_length/mean"),
    ):
        assert column(run, metric) == pytest.approx(policy(own), abs=6e-5)
    assert column(run, "Accuracy") == pytest.approx(
        {s: policy("reward")[s] for s in (40, 80, 120)}, abs=6e-5
    )
    assert column(run, "step_seconds")[1] == pytest.approx(30 + policy("entropy")[1], abs=6e-3)
    assert run.facts["total_steps"].value == 400
    assert run.bad.count == 0


def test_a_supervised_loss_is_one(tmp_path: Path):
    """Without a reward the loss is that of supervised training; NaN is a value."""
    losses = {s: 3 / s for s in range(1, 20)} | {20: math.nan}
    text = "".join(STEP.format(s=s, n=20) + RESULTS.format(x=f"{x:.4f}") for s, x in losses.items())
    text += "\n📊 Validation Results for `default` set:\n    • Validation loss: 0.6645\n"
    run = read(tmp_path / "log", text)

    assert run.reader == "nemo-rl"
    assert column(run, "loss") == pytest.approx(losses, abs=6e-5, nan_ok=True)
    assert column(run, "val_loss") == {20: 0.6645}
    assert set(run.frame["step_seconds"].to_list()) == {2.5}


def test_steps_go_on_through_epochs(tmp_path: Path):
    """Where epochs have headings, each counts its steps anew."""
    text = ""
    for e in (1, 2, 3):
        text += "=" * 25 + f" Epoch {e}/3 " + "=" * 25 + "\n"
        text += "".join(STEP.format(s=s, n=10) + RESULTS.format(x=2.5) for s in range(1, 11))
    run = read(tmp_path / "log", text)

    assert run.frame["step"].to_list() == list(range(1, 31))
    assert run.facts["total_steps"].value == 30


def test_a_restart_is_no_epoch(tmp_path: Path):
    """Without headings of epochs, steps that go back are those of a restart."""
    steps = [*range(1, 16), *range(11, 21)]
    run = read(
        tmp_path / "log", "".join(STEP.format(s=s, n=20) + RESULTS.format(x=2.5) for s in steps)
    )

    assert [(a.first_step, a.last_step) for a in run.attempts] == [(1, 15), (11, 20)]


def test_headings_make_no_log_of_nemo_rl(tmp_path: Path):
    """Other loops print such headings, and such lists."""
    text = "".join(f"===== Step {s}/20 =====\nstep {s} loss {3 / s:.4f}\n" for s in range(1, 20))
    listed = tmp_path / "list"
    listed.write_text("Results:\n  • Loss: 2.5\n" * 20)

    assert read(tmp_path / "log", text).reader == "generic-text"
    with pytest.raises(UnknownFormat):
        read_runs([str(listed)])
