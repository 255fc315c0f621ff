"""Reader ``areal``: tables of statistics below each step."""

import math
from pathlib import Path

import pytest

from tests.textlogs import column, policy, read, sample

HEAD = "20260101-08:00:00.110 StatsLogger INFO: Epoch 1/2 Step {s}/20 Train step {s}/40 done.\n"
STATS = "20260101-08:00:00.110 StatsLogger INFO: Stats ({i}/{n}):\n"


def test_sample():
    """Entropy, reward, loss and gradient norm of each step, a NaN among them."""
    run = sample("areal/grpo.log")

    for metric, own in (
        ("entropy", "entropy"),
        ("reward", "reward"),
        ("objective_loss", "loss"),
        ("grad_norm", "grad_norm"),
        ("learning_rate", "lr"),
    ):
        assert column(run, metric) == pytest.approx(policy(own), rel=1e-4, nan_ok=True)
    assert run.frame["epoch"].unique().to_list() == [1.0]
    assert run.facts["total_steps"].value == 4000
    assert run.bad.count == 0


@pytest.mark.parametrize("columns", [1, 2, 4])
def test_tables_of_any_width(columns: int, tmp_path: Path):
    """However many names and values stand side by side, each is read; the last row may be short."""
    names = [f"ppo_actor/update/part_{i}/avg" for i in range(6)] + ["ppo_actor/update/grad_norm"]
    text = ""
    for s in range(1, 21):
        text += HEAD.format(s=s) + STATS.format(i=1, n=1) + "╒════╤════╕\n"
        for at in range(0, len(names), columns):
            cells = [f" {n} │ {s + i / 10:.4e} " for i, n in enumerate(names)][at : at + columns]
            cells += ["  │  "] * (columns - len(cells))
            text += "│" + "│".join(cells) + "│\n├────┼────┤\n"
    run = read(tmp_path / "log", text)

    assert run.frame["step"].to_list() == list(range(1, 21))
    for i, name in enumerate(names):
        metric = "grad_norm" if name.endswith("grad_norm") else name
        assert column(run, metric) == pytest.approx({s: s + i / 10 for s in range(1, 21)})
    assert run.bad.count == 0


def test_several_tables_of_a_step(tmp_path: Path):
    """Of several tables of a step the last value is taken, a NaN before any other, with a word."""
    text = ""
    for s in range(1, 21):
        text += HEAD.format(s=s)
        for i, value in enumerate((s + 0.5, math.nan if s == 7 else s + 0.1, s), 1):
            text += STATS.format(i=i, n=3) + f"│ ppo_actor/update/grad_norm │ {value} │\n"
    run = read(tmp_path / "log", text)

    said = {float(s): float(s) for s in range(1, 21)} | {7: math.nan}
    assert column(run, "grad_norm") == pytest.approx(said, nan_ok=True)
    assert any("last value was taken" in note for note in run.notes)


def test_supervised_training(tmp_path: Path):
    """The loss of supervised training is one, and no policy's objective."""
    text = "".join(HEAD.format(s=s) + f"│ sft/loss/avg │ {3 / s:.4e} │\n" for s in range(1, 21))
    run = read(tmp_path / "log", text)

    assert column(run, "loss") == pytest.approx({s: 3 / s for s in range(1, 21)}, rel=1e-4)


def test_values_below_a_broken_head(tmp_path: Path):
    """Values below a head that cannot be read belong to no step, and that is told."""
    text = "".join(HEAD.format(s=s) + f"│ a/grad_norm │ {s} │\n" for s in range(1, 21))
    run = read(tmp_path / "log", text.replace("Train step 7/", "Train stop 7/"))

    assert column(run, "grad_norm") == {s: float(s) for s in range(1, 21) if s != 7}
    assert run.bad.count == 1
    assert any("below no head" in note for note in run.notes)
