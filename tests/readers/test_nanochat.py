"""Reader ``nanochat``: step lines, what follows pre-training, facts."""

from pathlib import Path

import pytest

from stabcli.readers import read_runs
from tests.conftest import SAMPLES
from tests.textlogs import column, read, truth

LINE = "step {:05d}/00100 ({:.2f}%) | loss: {} | lrm: 1.00 | dt: 512.10ms | tok/sec: 1,023,998 | {}: {} | epoch: 1 | total time: 0.75m\n"


def test_two_trainings():
    """Fine-tuning that follows pre-training in one log is a run of its own."""
    (first, second), _ = read_runs([str(SAMPLES / "nanochat/bad_batch_then_tuning.log")])

    assert (first.frame.height, second.frame.height) == (200, 1)
    assert column(first, "step_seconds") == pytest.approx(truth("step_time"), abs=6e-6)
    assert column(first, "Validation bpb") == {700: 1.234567}
    assert (first.facts["gpus"].value, first.facts["tokens_per_step"].value) == (2, 2048)


def test_units(tmp_path: Path):
    """MFU is a percentage without its sign, times carry their units, a mean is told."""
    run = read(
        tmp_path / "log", "".join(LINE.format(s, s, 5.0, "bf16_mfu", 45.2) for s in range(5))
    )

    assert set(column(run, "mfu").values()) == {0.452}
    assert set(column(run, "tokens_per_second").values()) == {1023998.0}
    assert set(column(run, "elapsed_seconds").values()) == {45.0}
    assert any("running mean" in note for note in run.notes)


def test_unknown_peak_is_no_mfu(tmp_path: Path):
    """An MFU of 0 throughout says that the GPU's peak is unknown."""
    run = read(tmp_path / "log", "".join(LINE.format(s, s, 5.0, "mfu", "0.00") for s in range(5)))

    assert "mfu" not in run.frame.columns


def test_lines_printed_twice_are_one(tmp_path: Path):
    """A launcher that repeats every line changes nothing."""
    run = read(tmp_path / "log", "".join(LINE.format(s, s, 5.0, "mfu", 1.0) * 2 for s in range(5)))

    assert run.frame.height == 5
    assert len(run.attempts) == 1


@pytest.mark.parametrize(
    ("pattern", "rows"),
    [
        ("Seqaeon*/sweep_p23_d12.log", [25, 967]),
        ("Seqaeon*/div_4.log", [463, 463]),
        ("kwizz*/sft_run.log", [134]),
        ("kwizz*/nanobot_run.log", [21, 50]),
    ],
)
def test_real_logs(shared_data: Path, pattern: str, rows: list[int]):
    """The rows counted by others, with the validation lines beside them."""
    (path,) = shared_data.glob(f"text/{pattern}")
    runs, _ = read_runs([str(path)])

    assert [run.frame.height for run in runs] == rows


def test_real_nan(shared_data: Path):
    """A fine-tuning that was NaN from its ninth step on."""
    (path,) = shared_data.glob("text/kwizz*/sft_run.log")
    (run,), _ = read_runs([str(path)])
    bad = run.frame.filter(run.frame["loss"].is_nan())["step"]

    assert (len(bad), bad.min(), bad.max()) == (125, 9, 133)
