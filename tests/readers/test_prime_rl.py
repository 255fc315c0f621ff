"""Reader ``prime-rl``: trainer, orchestrator, and supervised runs."""

import math
from pathlib import Path

import pytest

from tests.textlogs import column, read, sample, truth


def test_trainer():
    """The loss is that of a policy; percentages and units are taken off; a NaN stays."""
    run = sample("prime-rl/trainer.log")

    assert run.frame["step"].to_list() == list(range(1, 121))
    assert column(run, "objective_loss")[1] == 0.4798
    assert column(run, "entropy")[1] == 3.461
    assert column(run, "mfu")[1] == pytest.approx(0.312)
    assert column(run, "tokens_per_second")[1] == 12345
    assert column(run, "step_seconds")[1] == 1.23
    assert [s for s, x in column(run, "grad_norm").items() if math.isnan(x)] == [100]
    assert not {"loss", "kl"} & set(run.columns), "how far sampler and trainer differ is no KL"


def test_orchestrator():
    """Colons after the names make no difference."""
    run = sample("prime-rl/orchestrator.log")

    assert column(run, "reward")[2] == pytest.approx(0.0264)
    assert column(run, "step_seconds")[1] == 5.2
    assert column(run, "tokens_per_second")[1] == 2345.6


def test_supervised():
    """Without a policy the loss is a loss."""
    run = sample("prime-rl/supervised.log")

    assert column(run, "loss") == pytest.approx(truth("loss"), abs=6e-5)
    assert column(run, "grad_norm") == pytest.approx(truth("grad_norm"), abs=6e-5)
    assert column(run, "learning_rate") == pytest.approx(truth("lr"), rel=6e-3)


def test_entropy_of_a_supervised_run(tmp_path: Path):
    """An entropy without a policy is that of the model's predictions."""
    line = "03:04:05 SUCCESS Step {} |   1.23s | Loss 2.5 | Entropy 1.5 | LR 1.00e-06\n"
    run = read(tmp_path / "log", "".join(line.format(s) for s in range(4)))

    assert column(run, "token_entropy")[0] == 1.5
    assert column(run, "loss")[0] == 2.5
