"""Reader ``nanotron``: counts with suffixes, a batch size in tokens, facts of the dump."""

import math
from pathlib import Path

import pytest

from tests.textlogs import column, read, sample, truth

LINE = "01/02 03:04:05 [INFO|DP=0|PP=0|TP=0|node1]: iteration: {} / 50000 | consumed_tokens: 1.26B | time_per_iteration_ms: 1.2K | tokens_per_sec: 874K | tokens_per_sec_per_gpu: 13.7K | global_batch_size: 1.05M | grad_norm: {} | lm_loss: {} | lr: 0.0003 | model_tflops_per_gpu: 152 | eta: 17:20:00\n"


def test_values_are_those_of_the_run():
    """Three digits of each value, and a note that says so."""
    run = sample("nanotron/bad_batch.log")

    for metric, said in (("loss", "loss"), ("grad_norm", "grad_norm"), ("learning_rate", "lr"),
                         ("step_seconds", "step_time"), ("tokens_per_second", "tokens_per_sec")):  # fmt: skip
        assert column(run, metric) == pytest.approx(truth(said), rel=6e-3)
    assert any("three digits" in note for note in run.notes)


def test_units(tmp_path: Path):
    """Suffixes are taken into account, milliseconds too; the batch counts tokens."""
    run = read(tmp_path / "log", LINE.format(1200, "0.412", "2.35") + LINE.format(1201, "1", "2"))
    row = run.frame.row(0, named=True)

    wanted = {
        "tokens_seen": 1.26e9,
        "step_seconds": 1.2,
        "tokens_per_second": 874e3,
        "tokens_per_second_per_gpu": 13.7e3,
        "batch_tokens": 1.05e6,
        "tflops_per_gpu": 152,
    }
    assert {name: row[name] for name in wanted} == pytest.approx(wanted)
    assert "batch_sequences" not in run.facts
    assert run.bad.count == 0, "the time left is no measurement"


def test_facts():
    """GPUs are the product of the parallel groups."""
    facts = sample("nanotron/bad_batch.log").facts
    wanted = {
        "gpus": 8,
        "parameters": 121000,
        "sequence_length": 64,
        "checkpoint_every": 100,
        "grad_clip": 1.0,
        "weight_decay": 0.1,
        "peak_lr": 0.003,
        "warmup_steps": 100,
        "total_steps": 1000,
        "seed": 42,
    }

    assert {name: facts[name].value for name in wanted} == wanted


def test_nan_and_inf(tmp_path: Path):
    """An infinite value gets a suffix like any other."""
    run = read(tmp_path / "log", LINE.format(1, "infE", "nan") + LINE.format(2, "1", "2"))

    assert math.isinf(column(run, "grad_norm")[1])
    assert math.isnan(column(run, "loss")[1])
