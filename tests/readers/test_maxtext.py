"""Reader ``maxtext``: step and evaluation lines, parts of the loss, facts of the right dump."""

import math
from pathlib import Path

import pytest

from stabcli.readers import read_runs
from tests.textlogs import column, read, sample, truth

LINE = "completed step: {}, seconds: 1.234, TFLOP/s/device: 310.123, Tokens/s/device: 8123.456, total_weights: 524288, loss: {}\n"


def test_values_are_those_of_the_run():
    """The loss is that of the language model; the sum with auxiliary losses stays apart."""
    run = sample("maxtext/bad_batch.log")

    assert column(run, "loss") == pytest.approx(truth("loss"), abs=6e-4)
    assert column(run, "step_seconds") == pytest.approx(truth("step_time"), abs=6e-4)
    assert column(run, "val_loss") == pytest.approx(truth("val_loss"), abs=6e-4)
    assert column(run, "batch_tokens")[501] == 2048
    assert column(run, "aux_loss")[501] == 0.01
    assert column(run, "loss with auxiliary losses")[501] == 1.869
    assert "val_perplexity" not in run.frame.columns, "that of the lines is of training"
    assert run.bad.count == 0


def test_tokens_a_second_are_those_of_one_device():
    """What is printed per device is not taken for the whole run."""
    run = sample("maxtext/bad_batch.log")

    assert "tokens_per_second" not in run.columns
    assert column(run, "tokens_per_second_per_gpu")[501] == 15912.325


def test_configuration_is_facts():
    """MaxText's own names are understood; an interval that does not hold is none."""
    facts = sample("maxtext/bad_batch.log").facts
    wanted = {
        "parameters": 120_000_000,
        "gpus": 4,
        "batch_sequences": 32,
        "sequence_length": 64,
        "total_steps": 1000,
        "warmup_ratio": 0.1,
        "grad_clip": 1.0,
        "weight_decay": 0.1,
        "peak_lr": 0.003,
        "precision": "bfloat16",
        "checkpoint_every": 100,
        "seed": 7,
    }

    assert {name: facts[name].value for name in wanted} == wanted


def test_last_dump_counts(tmp_path: Path):
    """A log that begins with the dump of another program tells of the training in the last one."""
    text = "Config param learning_rate: 3e-05\nConfig param eval_steps: 2\n" * 2
    text += "Config param learning_rate: 3e-06\nConfig param checkpoint_period: 10\n"
    text += "Config param enable_checkpointing: False\n"
    run = read(tmp_path / "log", text + LINE.format(0, "2.5") + LINE.format(1, "2.5"))

    assert run.facts["peak_lr"].value == 3e-6
    assert "eval_every" not in run.facts
    assert "checkpoint_every" not in run.facts


def test_oddities():
    """A growing batch has no times, an evaluation either way of writing, and NaN ends the run."""
    run = sample("maxtext/oddities.log")

    assert run.frame["step"].to_list() == list(range(501, 541))
    assert column(run, "batch_tokens")[501] == 512
    assert min(column(run, "step_seconds")) == 506
    assert column(run, "val_loss") == {521: 2.1}
    assert column(run, "val_perplexity") == {521: 8.166}
    assert [s for s, x in column(run, "loss").items() if not math.isfinite(x)] == [540]
    assert column(run, "loss")[505] == 1.912, "lines without parts of the loss have the sum alone"


def test_abort_tells_of_nan(tmp_path: Path):
    """Where only the line that ends the run tells of NaN, the last step has it."""
    text = LINE.format(0, "2.5") + LINE.format(1, "2.4")
    run = read(tmp_path / "log", text + "Aborting training due to NaN loss.\n")

    assert math.isnan(column(run, "loss")[1])


def test_loss_that_is_not_computed(tmp_path: Path):
    """Preference tuning prints a language-model loss of 0 throughout: it is none."""
    line = LINE.format("{}", "0.693, lm_loss: 0.000, perplexity: 2.000, reward_accuracy: 0.5")
    run = read(tmp_path / "log", "".join(line.format(s) for s in range(4)))

    assert column(run, "objective_loss") == dict.fromkeys(range(4), 0.693)
    assert any("lm_loss" in note for note in run.notes)


def test_real_log(shared_data: Path):
    """500 steps of preference tuning, evaluated before the first."""
    (path,) = shared_data.glob("text/AI-Hypercomputer__maxtext/**/*.txt")
    (run,), _ = read_runs([str(path)])

    assert run.reader == "maxtext"
    assert list(column(run, "objective_loss")) == list(range(1, 501))
    assert column(run, "objective_loss")[500] == 0.624
    assert (run.facts["peak_lr"].value, run.facts["parameters"].value) == (3e-6, 596_000_000)
    assert len(run.attempts) == 1
