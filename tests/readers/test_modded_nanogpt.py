"""Reader ``modded-nanogpt``: source code first, then lines of pairs, several runs in a file."""

import math
from pathlib import Path

import pytest

from stabcli.diagnosis import diagnose
from stabcli.readers import read_runs
from tests.textlogs import column, read, sample, truth


def test_values_are_those_of_the_run():
    """Losses and times of the lines, and nothing of the source code before them."""
    run = sample("modded-nanogpt/bad_batch.txt")
    started = truth("timestamp")[501]

    assert column(run, "loss") == pytest.approx(truth("loss"), abs=6e-5)
    assert column(run, "val_loss") == {500: 1.8}
    spent = {s: t - started for s, t in truth("timestamp").items()}
    assert column(run, "elapsed_seconds") == pytest.approx({500: 0.0, **spent}, abs=6e-4)
    assert run.bad.count == 0


def test_mean_step_time_is_no_nan():
    """step_avg:nanms before steps are timed is no incident."""
    run = sample("modded-nanogpt/bad_batch.txt")
    found = [f for i in diagnose(run).incidents for f in i.findings if f.rule == "nonfinite"]

    assert found == []
    assert any("step_avg" in note for note in run.notes)


def test_table_of_gpus():
    """The table of nvidia-smi says which GPUs, and how many."""
    facts = sample("modded-nanogpt/bad_batch.txt").facts

    assert (facts["gpus"].value, facts["gpu"].value) == (2, "NVIDIA H100 80GB HBM3")


def test_any_pair_is_a_column(tmp_path: Path):
    """Other pairs are kept under their names, times in seconds whatever the vintage."""
    text = "step:5/9 train_loss:nan val_bpb:1.5 train_time:1.5s\nstep:6/9 train_loss:3.0 val_bpb:1.4 train_time:2000ms\n"
    run = read(tmp_path / "log", text)

    assert math.isnan(column(run, "loss")[5])
    assert column(run, "val_bpb") == {5: 1.5, 6: 1.4}
    assert column(run, "elapsed_seconds") == {5: 1.5, 6: 2.0}


def test_settings_of_parameter_golf(tmp_path: Path):
    """Pairs alone in a line say how the run is set up."""
    text = "model_params:17059912\nworld_size:8 grad_accum_steps:1\ntrain_batch_tokens:524288 train_seq_len:1024 iterations:20000\nseed:1337\n"
    facts = read(
        tmp_path / "log", text + "step:1/20000 train_loss:6.9 train_time:59ms step_avg:58.72ms\n"
    ).facts
    wanted = {
        "parameters": 17059912,
        "gpus": 8,
        "tokens_per_step": 524288,
        "sequence_length": 1024,
        "seed": 1337,
    }

    assert {name: facts[name].value for name in wanted} == wanted


@pytest.mark.parametrize(
    ("pattern", "lines", "runs", "last"),
    [
        ("Keller*/records/track_1_short/2024-10-10_Muon/*.txt", 6251, 1, 6200),
        ("Keller*/records/track_1_short/2024-11-10*/*.txt", 19227, 1, 19073),
        ("Keller*/records/track_3*/results/*/*.txt", 1080, 30, 3090),
        ("openai*/records/track_non_record*/*/train.log", 1675, 1, 329430),
        ("openai*/records/track_10min*/*/train.log", 223, 3, 12395),
    ],
)
def test_real_logs(shared_data: Path, pattern: str, lines: int, runs: int, last: int):
    """As many lines and steps as counted by others; runs in one file are told apart."""
    (path,) = shared_data.glob(f"text/{pattern}")
    found, _ = read_runs([str(path)])

    assert len(found) == runs
    assert found[0].notes[0].startswith(f"{lines:,} of ")
    assert max(run.frame["step"].max() for run in found) == last
