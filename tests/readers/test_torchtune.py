"""Reader ``torchtune``: one or more metrics a line, tensors among them."""

import math
from pathlib import Path

from tests.textlogs import column, read, sample, truth


def test_values_are_those_of_the_run():
    """All digits; tokens per second are those of one GPU; the last loss is NaN."""
    run = sample("torchtune/log_1767254400.txt")
    loss = column(run, "loss")

    assert math.isnan(loss.pop(700))
    assert loss == {s: x for s, x in truth("loss").items() if s < 700}
    assert column(run, "grad_norm") == truth("grad_norm")
    assert column(run, "learning_rate") == truth("lr")
    assert column(run, "tokens_per_second_per_gpu") == truth("tokens_per_sec")
    assert column(run, "val_loss") == truth("val_loss")


def test_a_metric_a_line(tmp_path: Path):
    """Recipes that log one metric at a time give one row a step."""
    text = "".join(f"Step {s} | loss:2.{s} \nStep {s} | lr:1e-05 \n" for s in range(1, 5))
    run = read(tmp_path / "log", text)

    assert run.reader == "torchtune"
    assert column(run, "loss") == {1: 2.1, 2: 2.2, 3: 2.3, 4: 2.4}
    assert run.frame["learning_rate"].to_list() == [1e-5] * 4
