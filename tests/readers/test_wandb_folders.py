import os

from stabcli.assembly import FILE
from stabcli.readers import read_runs
from tests.readers.test_wandb import log, only, readings, runs
from tests.wandb_writing import exit_record, rows, run_record, whole


def test_files_of_one_id_are_attempts_of_one_run(tmp_path):
    """In the order in which they were begun, by their own word; each row names its file."""
    log(
        tmp_path,
        [run_record(started=200), *rows(20, first=30), exit_record()],
        "offline-run-20250101_000000-abcd1234/run-abcd1234.wandb",
    )
    log(
        tmp_path,
        [run_record(started=100), *rows(40)],
        "run-20260101_000000-abcd1234/run-abcd1234.wandb",
    )
    (run,) = runs(tmp_path)
    found = only(tmp_path)

    assert [(a.first_step, a.last_step) for a in run.attempts] == [(0, 39), (30, 49)]
    assert found.table[FILE][0] == "run-20260101_000000-abcd1234/run-abcd1234.wandb"
    assert found.notes[0] == "2 files of run abcd1234: attempts of one run"


def test_a_folder_of_runs_is_several(tmp_path):
    """One a run id, told apart by id where their names are the same."""
    for run_id in ("one", "two"):
        log(
            tmp_path,
            whole(5, run_id=run_id, name="same"),
            f"run-20260101_080000-{run_id}/run-{run_id}.wandb",
        )

    assert [r.name for r in readings(tmp_path)] == ["same (one)", "same (two)"]


def test_links_are_read_once(tmp_path):
    """``latest-run`` leads to a run that is there anyway, and a link may lead in circles."""
    log(tmp_path, whole(5))
    os.symlink(tmp_path / "run-20260101_080000-abcd1234", tmp_path / "latest-run")
    os.symlink(tmp_path / "run-20260101_080000-abcd1234", tmp_path / "run-again")
    os.symlink(tmp_path, tmp_path / "run-circle")

    (found,) = readings(tmp_path)
    assert found.table.height == 5
    assert found.notes == ()
    _, unread = read_runs([str(tmp_path)])
    assert unread == []


def test_what_is_left_out_of_a_folder_is_named(tmp_path):
    """Empty files, files without a value, folders without a file, and what is none of W&B's."""
    log(tmp_path, whole(5))
    log(tmp_path, [], "run-20260101_080001-empty/run-empty.wandb").write_bytes(b"")
    log(tmp_path, [run_record()], "run-20260101_080002-start/run-start.wandb")
    (tmp_path / "run-20260101_080003-nothing").mkdir()
    (tmp_path / "metrics.csv").write_text("a,b\n")
    (tmp_path / "debug-internal.log").write_text("x")
    (run,), unread = read_runs([str(tmp_path)])

    assert set(run.notes) >= {
        "run-20260101_080001-empty/run-empty.wandb is empty: left out",
        "run-20260101_080002-start/run-start.wandb holds no logged value: left out",
    }
    assert [str(line) for line in unread] == [
        f"{tmp_path}: an empty folder, left out: run-20260101_080003-nothing",
        f"{tmp_path}: not logs, left out: debug-internal.log, metrics.csv",
    ]


def test_a_folder_above_is_searched(tmp_path):
    """``scan out/`` finds the runs in ``out/wandb``."""
    log(tmp_path / "out/wandb", whole(100))
    found, unread = read_runs([str(tmp_path)])

    assert [r.reader for r in found] == ["wandb"]
    assert not unread
