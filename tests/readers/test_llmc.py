"""Reader ``llmc``: console and main.log of llm.c."""

import math
from pathlib import Path

import pytest

from stabcli.readers import read_runs
from tests.textlogs import column, sample, truth


def test_console():
    """Loss and norm without their z-scores; NaN as C prints it; -100 % is no MFU."""
    run = sample("llmc/bad_batch_then_nan.log")
    loss, norm = column(run, "loss"), column(run, "grad_norm")

    assert math.isnan(loss.pop(701))
    assert math.isnan(norm.pop(701))
    assert loss == pytest.approx(truth("loss"), abs=6e-7)
    assert norm == pytest.approx(truth("grad_norm"), abs=6e-5)
    assert column(run, "val_loss") == pytest.approx(truth("val_loss"), abs=6e-7)
    assert "mfu" not in run.frame.columns


def test_table_of_parameters():
    """The total batch size of llm.c counts tokens, not sequences."""
    facts = sample("llmc/bad_batch_then_nan.log").facts
    wanted = {
        "tokens_per_step": 2048,
        "sequence_length": 64,
        "gpus": 1,
        "peak_lr": 0.003,
        "warmup_steps": 100,
    }

    assert {name: facts[name].value for name in wanted} == wanted
    assert "batch_sequences" not in facts


def test_main_log():
    """Training and validation losses in lines of their own."""
    run = sample("llmc/main.log")

    assert column(run, "loss") == pytest.approx(truth("loss"), abs=6e-5)
    assert column(run, "val_loss") == pytest.approx(truth("val_loss"), abs=6e-5)
    assert column(run, "grad_norm") == pytest.approx(truth("grad_norm"), abs=6e-3)


def test_real_log(shared_data: Path):
    """The last line of main.log is a validation of the step after the last."""
    (path,) = shared_data.glob("text/Keller*/**/main.log")
    (run,), _ = read_runs([str(path)])

    assert (run.frame.height, run.frame["step"].max()) == (19561, 19560)
    assert run.frame["loss"].count() == 19560
