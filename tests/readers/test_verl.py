"""Reader ``verl``: step lines with many metrics, behind Ray's prefixes."""

import math
from pathlib import Path

import pytest

from stabcli.errors import LogError
from stabcli.readers import read_runs
from tests.textlogs import column, policy, read, sample


def test_values():
    """Entropy, reward and gradient norm; a NaN among them; step 0 is the validation before."""
    run = sample("verl/entropy.log")

    assert run.frame["step"].to_list() == list(range(121))
    assert [s for s, x in column(run, "grad_norm").items() if math.isnan(x)] == [100]
    assert column(run, "entropy")[1] == 3.460959
    assert column(run, "reward")[2] == 0.026367
    assert column(run, "objective_loss")[1] == 0.479847
    assert column(run, "val-core/toy/acc/mean@1") == {0: 0.03125}


def test_zero_mfu_is_unknown():
    """An MFU of 0 throughout says that the GPU is not known to verl."""
    run = sample("verl/entropy.log")

    assert "mfu" not in run.frame.columns
    assert any("perf/mfu/actor" in note for note in run.notes)


def test_mfu_above_one_is_a_fraction(tmp_path: Path):
    """An MFU of 1.018 was seen: it is wrong, not a percentage."""
    run = read(tmp_path / "log", "step:1 - actor/entropy:0.2 - perf/mfu/actor:1.018\n" * 2)

    assert column(run, "mfu")[1] == 1.018


def test_scaled_learning_rate(tmp_path: Path):
    """Old versions print the learning rate in units of 1e-4."""
    run = read(tmp_path / "log", "step:1 - actor/entropy:0.2 - actor/lr(1e-4):0.010\n" * 2)

    assert run.frame["learning_rate"][0] == pytest.approx(1e-6)


def test_line_that_was_cut(tmp_path: Path):
    """A value that the console cut short is counted as bad; the ones before it are kept."""
    good = "step:{} - actor/entropy:0.2 - val/score:np.float64(0.5)\n"
    run = read(
        tmp_path / "log", good.format(1) + "step:2 - actor/entropy:0.1 - val/score:np.float64(0.\n"
    )

    assert column(run, "entropy") == {1: 0.2, 2: 0.1}
    assert run.bad.count == 1


@pytest.mark.parametrize(
    ("pattern", "first", "last"),
    [
        ("jiang*/wandb/run-20251129*/**/output.log", 0, 261),
        ("jiang*/wandb/run-20251203*/**/output.log", 1, 238),
        ("zhi*/**/output.log", 0, 9),
    ],
)
def test_real_logs(shared_data: Path, pattern: str, first: int, last: int):
    """Every step that others count, in each vintage of the format."""
    (path,) = shared_data.glob(f"text/{pattern}")
    (run,), _ = read_runs([str(path)])

    assert run.frame["step"].to_list() == list(range(first, last + 1))


def test_a_metric_a_line():
    """Ray's job logs break the line of a step at each metric; the values are the same."""
    run = sample("verl/ray_job.log")

    for metric, own in (
        ("entropy", "entropy"),
        ("objective_loss", "loss"),
        ("grad_norm", "grad_norm"),
        ("reward", "reward"),
    ):
        assert column(run, metric) == pytest.approx(policy(own), nan_ok=True)
    assert run.bad.count == 0


def test_lists_among_whole_lines(tmp_path: Path):
    """What only looks like a metric of its own, among lines that hold whole steps, is none."""
    text = "".join(
        f"step:{s} - actor/entropy:0.2 - actor/grad_norm:{s}\n - a/b:{100 + s}\n - loss: falls\n"
        for s in range(1, 20)
    )
    run = read(tmp_path / "log", text)

    assert column(run, "grad_norm") == {s: float(s) for s in range(1, 20)}
    assert "a/b" not in run.frame.columns
    assert run.bad.count == 0


def test_a_step_without_metrics_is_told_of(tmp_path: Path):
    """A line that broke behind its step has lost its values, and a note says so."""
    text = "".join(f"step:{s} - actor/entropy:0.2 - actor/grad_norm:{s}\n" for s in range(1, 20))
    run = read(tmp_path / "log", text.replace("step:7 - ", "step:7 \r "))

    assert 7 not in run.frame["step"].to_list()
    assert any("steps without a metric left out: 1, in line 7" in note for note in run.notes)


def test_steps_and_nothing_else(tmp_path: Path):
    """Heads without any metric below them are no log."""
    path = tmp_path / "log"
    path.write_text("".join(f"step:{s}\n" for s in range(1, 20)))

    with pytest.raises(LogError, match="no logged step"):
        read_runs([str(path)], format_name="verl")


def test_a_step_at_the_end_of_a_line_makes_no_log_of_verl(tmp_path: Path):
    """Other loops write so of their checkpoints, too."""
    text = "".join(
        f"step {s} loss {3 / s:.4f}\n" + ("saved at step:10\nstep:10\n" if s == 10 else "")
        for s in range(1, 20)
    )

    assert read(tmp_path / "log", text).reader == "generic-text"
