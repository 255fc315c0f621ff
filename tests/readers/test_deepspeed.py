"""Reader ``deepspeed``: what the engine says of skipped steps and loss scales."""

from pathlib import Path

import pytest

from stabcli.readers import read_runs
from tests.textlogs import column, read, sample, truth

STEP = "[2026-01-02 03:04:05,678] [INFO] [logging.py:96:log_dist] [Rank 0] step={}, skipped={}, lr=[0.0001, 0.0001], mom=[(0.9, 0.95)]\n"


def test_engine():
    """Learning rates as printed; an overflow belongs to the next step that is logged."""
    run = sample("deepspeed/engine.log")
    tens = range(510, 601, 10)

    assert column(run, "learning_rate") == pytest.approx({s: truth("lr")[s] for s in tens})
    assert {s for s, n in column(run, "skipped_steps").items() if n} == {520, 560, 600}
    assert column(run, "loss_scale") == {520: 32768.0, 560: 16384.0, 600: 8192.0}


def test_skipped_counts_from_the_start(tmp_path: Path):
    """The engine counts all skipped steps so far; after a restart it counts anew."""
    counts = [(10, 3), (20, 3), (30, 5), (40, 1), (50, 1)]
    run = read(tmp_path / "log", "".join(STEP.format(s, n) for s, n in counts))

    assert column(run, "skipped_steps") == {10: 3.0, 20: 0.0, 30: 2.0, 40: 1.0, 50: 0.0}


def test_pipeline_engine(tmp_path: Path):
    """The pipeline engine prints a loss."""
    run = read(
        tmp_path / "log", "steps: 10 loss: 3.1415 iter time (s): 0.512 samples/sec: 500.000\n" * 2
    )

    assert column(run, "loss") == {10: 3.1415}
    assert column(run, "step_seconds") == {10: 0.512}


def test_lines_in_a_log_of_another(tmp_path: Path):
    """Where the trainer prints losses of its own, its reader takes the log."""
    text = "".join(
        STEP.format(s, 0) + f"step:{s}/99 train_loss:2.0 train_time:{s}ms\n"
        for s in range(10, 60, 10)
    )

    assert read(tmp_path / "log", text).reader == "modded-nanogpt"


@pytest.mark.parametrize(("folder", "rows", "last"), [("step1*", 736, 7360), ("step2*", 184, 1840)])
def test_real_logs(shared_data: Path, folder: str, rows: int, last: int):
    """DeepSpeed-Chat: as many steps as counted by others, perplexities beside them."""
    (path,) = shared_data.glob(f"text/microsoft*/**/{folder}/**/*.log")
    (run,), _ = read_runs([str(path)])

    assert (run.frame.height, run.frame["step"].max()) == (rows, last)
    assert run.facts["seed"].value == 1234
