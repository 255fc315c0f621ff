"""One run told by one log after another, or by one a process."""

import gzip
import math

import polars as pl
import pytest

from stabcli.readers import read_runs
from stabcli.rules import run_rules, select
from tests.joining.writing import NAN, events, jsonl, only, said, spans, text, truth, values


def test_restarts_in_new_files_are_attempts(tmp_path):
    """Job numbers differ; the second goes back to a checkpoint; lines are those of each file."""
    text(tmp_path / "slurm-1234.out", truth(range(100)))
    text(tmp_path / "slurm-1235.out", truth(range(80, 200), seed=2))
    run = only(tmp_path)

    assert spans(run) == [(0, 99), (80, 199)]
    assert run.frame["discarded"].sum() == 20
    assert said(run, "2 logs that go on with one another: slurm-1234.out, slurm-1235.out")
    row = run.frame.filter((pl.col("attempt") == 1) & (pl.col("step") == 90)).row(0, named=True)
    assert (row["file"], row["line"]) == ("slurm-1235.out", 11)


def test_rotated_logs_are_one_attempt(tmp_path):
    """The highest number is the oldest, packed ones too; no restart where the steps go on."""
    rows = truth(range(300))
    text(tmp_path / "train.log", rows[200:])
    text(tmp_path / "train.log.1", rows[100:200])
    packed = text(tmp_path / "old", rows[:100])
    (tmp_path / "train.log.2.gz").write_bytes(gzip.compress(packed.read_bytes()))
    packed.unlink()
    run = only(tmp_path)

    assert spans(run) == [(0, 299)]
    assert run.files[0].endswith("train.log.2.gz")


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        (range(100), "starts over"),
        (range(400, 500), "begins long after"),
        (range(50, 150), "at another level"),
    ],
)
def test_numbered_logs_of_several_runs_stay_apart(tmp_path, steps, why):
    """A sweep numbers its logs, too."""
    other = truth(steps, seed=3)
    if why == "at another level":
        other = [{**r, "loss": r["loss"] + 3} for r in other]
    text(tmp_path / "job_1.log", truth(range(100)))
    text(tmp_path / "job_2.log", other)
    runs, _ = read_runs([str(tmp_path)])

    assert len(runs) == 2
    assert said(runs[1], "kept apart from job_1.log", "loss is") == (why == "at another level")


def test_two_runs_that_both_could_go_on_are_not_guessed(tmp_path):
    """Which of the two the third log goes on with nobody can say."""
    text(tmp_path / "job_1.log", truth(range(100)))
    text(tmp_path / "job_2.log", truth(range(100), seed=1))
    text(tmp_path / "job_3.log", truth(range(90, 200), seed=2))
    runs, _ = read_runs([str(tmp_path)])

    assert len(runs) == 3
    assert said(runs[2], "may go on with job_1.log or job_2.log")


def test_other_settings_are_another_run(tmp_path):
    """A log that says it trains another model does not go on with the first."""
    for number, size, steps in ((1, 2048, range(100)), (2, 4096, range(90, 200))):
        rows = truth(steps, seed=number)
        head = f"python train.py --seq_length {size} --lr 1e-4\n"
        text(tmp_path / f"job_{number}.log", rows, head=head)
    runs, _ = read_runs([str(tmp_path)])

    assert len(runs) == 2
    assert said(runs[1], "sequence_length is 2048 there, 4096 here")


def test_a_tracker_over_all_restarts_joins_all_logs(tmp_path):
    """Logs with names that tell nothing are told by the tracker they agree with."""
    first, second = truth(range(100)), truth(range(60, 160), seed=2)
    text(tmp_path / "monday.log", first)
    text(tmp_path / "again" / "rerun.txt", second)
    events(tmp_path / "tb", first)
    events(tmp_path / "tb", second, name="events.out.tfevents.1700000500.host.2.0", wall=500)
    text(tmp_path / "logs" / "rerun.txt", second)
    (tmp_path / "again" / "rerun.txt").unlink()
    run = only(tmp_path)

    assert spans(run) == [(0, 99), (60, 159)]
    assert {f.rpartition("/")[2] for f in run.files} >= {"monday.log", "rerun.txt"}


def test_logs_of_ranks_are_one_run(tmp_path):
    """Median of each value, the largest loss apart, and who had the first NaN."""
    for rank in range(4):
        rows = [{**r, "loss": r["loss"] + rank / 10} for r in truth(range(100))]
        if rank == 2:
            rows[70]["loss"] = NAN
        text(tmp_path / f"rank_{rank}.log", rows)
    run = only(tmp_path)
    plain = [round(r["loss"], 4) for r in truth(range(100))]

    assert run.frame.height == 100
    assert values(run, "loss")[5] == pytest.approx(plain[5] + 0.15, abs=2e-4)
    assert values(run, "loss_max")[5] == pytest.approx(plain[5] + 0.3, abs=2e-4)
    assert math.isnan(values(run, "loss")[70])
    assert said(run, "process 2 was the first with a non-finite value, at step 70")
    assert set(run.frame["file"]) == {"rank_0.log"}


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_value_of_one_rank_is_cited_from_its_log(tmp_path, bad):
    """The NaN, the largest loss and the median each stand in the log of one process."""
    for rank in range(3):
        rows = [{**r, "loss": r["loss"] + (rank - bad) ** 2 / 10} for r in truth(range(100))]
        if rank == bad:
            rows[70]["loss"] = NAN
        text(tmp_path / f"rank_{rank}.log", rows, head="hello\n" * rank)
    run = only(tmp_path)
    (found,), _ = run_rules(run, select((), ("nonfinite",)))

    assert (found.file, found.line) == (f"rank_{bad}.log", 71 + bad)
    largest = 2 if bad == 0 else 0
    assert run.place("loss_max", 40) == (f"rank_{largest}.log", 41 + largest)
    middle = 0 if bad == 1 else 1
    assert run.place("loss", 40) == (f"rank_{middle}.log", 41 + middle)


def test_a_value_is_cited_by_its_line_after_a_restart_too(tmp_path):
    """Logs that go on with one another, each with a line of its own for evaluations."""
    for part, steps in ((1, range(100)), (2, range(80, 200))):
        rows = truth(steps, seed=part)
        told = [one for r in rows for one in (r, {"step": r["step"], "val": r["loss"] + 0.1})]
        jsonl(tmp_path / f"log{part}.jsonl", told, keys=("step", "loss", "grad_norm", "lr", "val"))
    run = only(tmp_path)
    row = run.frame.with_row_index().filter(attempt=1, step=130)["index"][0]

    assert spans(run) == [(0, 99), (80, 199)]
    assert run.place("loss", row) == ("log2.jsonl", 101)
    assert run.place("val", row) == ("log2.jsonl", 102)


def test_ranks_in_folders_and_ranks_without_steps(tmp_path):
    """torchrun's folders; the other processes print no steps, and are named."""
    text(tmp_path / "rank_0" / "stdout.log", truth(range(100)))
    (tmp_path / "rank_1").mkdir()
    (tmp_path / "rank_1" / "stdout.log").write_text("loading\nready\n" * 5)
    (run,), unread = read_runs([str(tmp_path)])

    assert run.frame.height == 100
    assert [str(line) for line in unread] == [f"{tmp_path}/rank_1: not logs, left out: stdout.log"]


def test_ranks_with_other_steps_are_not_one(tmp_path):
    """Processes of one run log the same steps."""
    jsonl(tmp_path / "worker0.jsonl", truth(range(100)))
    jsonl(tmp_path / "worker1.jsonl", truth(range(500, 600)))
    runs, _ = read_runs([str(tmp_path)])

    assert len(runs) == 2
