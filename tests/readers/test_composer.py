"""Reader ``composer``: a head and a line a value, evaluations, schedules that count no batches."""

import math
from pathlib import Path

import pytest

from tests.textlogs import column, read, sample, truth


def test_values_are_those_of_the_run():
    """A record is one row; the evaluation belongs to the batch before it; MFU is a fraction."""
    run = sample("composer/bad_batch.log")

    assert column(run, "loss") == pytest.approx(truth("loss"), abs=6e-5)
    assert column(run, "grad_norm") == pytest.approx(truth("grad_norm"), abs=6e-5)
    assert column(run, "val_loss") == pytest.approx(truth("val_loss"), abs=6e-5)
    assert column(run, "tokens_per_second") == pytest.approx(truth("tokens_per_sec"), abs=6e-5)
    assert column(run, "learning_rate") == pytest.approx(truth("lr"), abs=6e-5)
    assert column(run, "mfu")[501] == 0.4012
    assert column(run, "tokens_seen")[502] == 501 * 2048


def test_configuration_is_facts():
    """llm-foundry prints the file that it was started with."""
    facts = sample("composer/bad_batch.log").facts
    wanted = {
        "sequence_length": 64,
        "batch_sequences": 32,
        "parameters": 120576,
        "gpus": 8,
        "seed": 17,
        "precision": "amp_bf16",
        "checkpoint_every": 100,
        "warmup_steps": 100,
        "peak_lr": 0.003,
        "weight_decay": 0.1,
        "grad_clip": 1.0,
        "total_steps": 1000,
    }

    assert {name: facts[name].value for name in wanted} == wanted


def test_schedule_in_tokens():
    """Where the heads count tokens the batches come from a value of the record."""
    run = sample("composer/oddities.log")

    assert run.frame["step"].to_list() == list(range(581, 611))
    assert [s for s, x in column(run, "loss").items() if math.isnan(x)] == [606]
    assert any("heads count no batches" in note for note in run.notes)


def test_batches_of_epochs_go_on(tmp_path: Path):
    """The batch of an epoch begins anew with each: batches are counted on."""
    text = "".join(
        f"[epoch={e}][batch={b}/5]:\n\t Train loss/train/total: 2.5000\n"
        for e in (1, 2, 3)
        for b in range(1, 6)
    )
    run = read(tmp_path / "log", text)

    assert (run.reader, run.frame["step"].to_list()) == ("composer", list(range(1, 16)))
    assert len(run.attempts) == 1


@pytest.mark.parametrize(("rate", "used"), [("0.0003", False), ("0.0020", True)])
def test_learning_rate_of_four_places(rate: str, used: bool, tmp_path: Path):
    """A rate of which rounding left one digit is not looked at, and a note says so."""
    text = "".join(
        f"[batch={b}/5]:\n\t Train loss/train/total: 2.5\n\t Train lr-AdamW/group0: {rate}\n"
        for b in range(1, 6)
    )
    run = read(tmp_path / "log", text)

    assert ("learning_rate" in run.columns) == used
    assert any("too coarse" in note for note in run.notes) != used


def test_values_below_a_broken_head_are_nobodys(tmp_path: Path):
    """They are not taken for those of the batch before."""
    value = "\t Train loss/train/total: {}\n"
    text = "[batch=1/5]:\n" + value.format(2.5) + "[batch=x/5]:\n" + value.format("nan")
    run = read(tmp_path / "log", text + "[batch=3/5]:\n" + value.format(2.4))

    assert column(run, "loss") == {1: 2.5, 3: 2.4}
