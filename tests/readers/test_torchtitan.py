"""Reader ``torchtitan``: step and validation lines, units, placeholders, facts."""

import math
from pathlib import Path

import pytest

from tests.textlogs import column, read, sample, truth

LINE = "[rank0]:[titan] 2026-01-02 03:04:05,678 - root - INFO - step: {}  loss: {}  grad_norm: {}  memory: 48.87GiB(51.44%)  tps: 4,376  tflops: 1,253.41  mfu: {}\n"


def test_values_are_those_of_the_run():
    """Colours and thousands separators are no part of a value; tps are those of one GPU."""
    run = sample("torchtitan/bad_batch.log")

    assert column(run, "loss") == pytest.approx(truth("loss"), abs=6e-6)
    assert column(run, "grad_norm") == pytest.approx(truth("grad_norm"), abs=6e-5)
    assert column(run, "tokens_per_second_per_gpu") == pytest.approx(
        truth("tokens_per_sec"), abs=0.6
    )
    assert column(run, "val_loss") == pytest.approx(truth("val_loss"), abs=6e-5)
    assert column(run, "wall_time") == pytest.approx(truth("timestamp"), abs=2e-3)
    assert "mfu" not in run.frame.columns


def test_first_lines_are_facts():
    """The line that tells the sizes, and tokens of a step made of two of them."""
    facts = sample("torchtitan/bad_batch.log").facts
    wanted = {
        "parameters": 120576,
        "tokens_per_step": 2048,
        "total_steps": 1000,
        "warmup_steps": 100,
    }

    assert {name: facts[name].value for name in wanted} == wanted


def test_peak_tells_the_gpu(tmp_path: Path):
    """The peak that MFU is computed with stands for a GPU."""
    text = "Peak FLOPS used for computing MFU: 9.890e+14\n" + LINE.format(1, 8.0, 1.0, "25.62%")
    run = read(tmp_path / "log", text)

    assert run.facts["gpu"].value == "H100"
    assert column(run, "mfu")[1] == pytest.approx(0.2562)
    assert column(run, "tflops_per_gpu")[1] == 1253.41


def test_nan_and_inf(tmp_path: Path):
    """NaN and infinity are printed as they are."""
    text = LINE.format(1, "2.00000", "1.0", "N/A") + LINE.format(7, "     nan", "    inf", "N/A")
    run = read(tmp_path / "log", text)

    assert math.isnan(column(run, "loss")[7])
    assert math.isinf(column(run, "grad_norm")[7])


def test_stages_without_a_loss(tmp_path: Path):
    """A pipeline stage that computes no loss prints -1, which is none."""
    text = "".join(
        LINE.format(s, "-1.00000", "1.0", "N/A").replace("rank0", "rank1")
        + LINE.format(s, "2.5", "1.0", "N/A")
        for s in range(1, 6)
    )
    run = read(tmp_path / "log", text)

    assert set(column(run, "loss").values()) == {2.5}
    assert any("-1" in note for note in run.notes)


def test_older_lines(tmp_path: Path):
    """Before 2025-06 there was no gradient norm, and tps was wps."""
    text = "step:  7  loss:  8.1234  memory: 48.87GiB(51.44%)  wps: 4,376  mfu: 25.62%\n" * 2
    run = read(tmp_path / "log", text)

    assert column(run, "loss") == {7: 8.1234}
    assert column(run, "tokens_per_second_per_gpu") == {7: 4376.0}
