"""Reader ``openrlhf``: dictionaries of global steps among bars, behind Ray's prefixes."""

import math
from pathlib import Path

import pytest

from tests.textlogs import column, read, sample


def test_values():
    """Loss, reward, divergence from the reference and not from the sampler; a NaN among them."""
    run = sample("openrlhf/policy.log")

    assert run.frame["step"].to_list() == list(range(1, 121))
    assert column(run, "objective_loss")[1] == 0.479847
    assert column(run, "reward")[2] == 0.026367
    assert column(run, "entropy")[1] == 3.460959
    assert column(run, "kl")[1] == 0.001
    assert column(run, "step_seconds")[1] == 8.5
    assert [s for s, x in column(run, "grad_norm").items() if math.isnan(x)] == [100]
    assert "loss" not in run.columns


def test_it_is_no_log_of_transformers(tmp_path: Path):
    """Dictionaries with a reward could be the Trainer's: the global step before them tells."""
    text = "".join(
        f"Global step {s}: {{'reward': 0.5, 'policy_loss': -0.1, 'values': [1, 2]}}\n"
        for s in range(1, 9)
    )
    run = read(tmp_path / "log", text)

    assert run.reader == "openrlhf"
    assert column(run, "objective_loss") == pytest.approx(dict.fromkeys(range(1, 9), -0.1))


def test_trainer_keeps_its_own(tmp_path: Path):
    """A log of transformers' Trainer is not taken, rank labels and all."""
    text = "".join(f"0: {{'loss': 2.{s}, 'learning_rate': 1e-05}}\n" for s in range(1, 9))

    assert read(tmp_path / "log", text).reader == "hf-stdout"
