"""Reader ``mlx``: lines of training and of validation."""

import math
from pathlib import Path

import pytest

from tests.textlogs import column, read, sample, truth


def test_values_are_those_of_the_run():
    """Each step has its loss, and some a loss held out."""
    run = sample("mlx/bad_batch.log")

    assert column(run, "loss") == pytest.approx(truth("loss"), abs=6e-4)
    assert column(run, "val_loss") == pytest.approx(truth("val_loss"), abs=6e-4)
    assert column(run, "learning_rate") == pytest.approx(truth("lr"), rel=1e-3)
    assert column(run, "tokens_per_second") == pytest.approx(truth("tokens_per_sec"), abs=6e-4)
    assert column(run, "tokens_seen")[501] == 501 * 2048
    assert {n: run.facts[n].value for n in ("parameters", "total_steps", "checkpoints")} == {
        "parameters": 121000,
        "total_steps": 1000,
        "checkpoints": (600, 700),
    }


def test_nan_and_old_lines(tmp_path: Path):
    """Older versions print less in a line."""
    line = "Iter {}: Train loss {}, Learning Rate 1.000e-05, It/sec 1.234, Tokens/sec 512.123\n"
    run = read(tmp_path / "log", line.format(10, "2.5") + line.format(20, "nan"))

    assert column(run, "learning_rate") == {10: 1e-5, 20: 1e-5}
    assert math.isnan(column(run, "loss")[20])
