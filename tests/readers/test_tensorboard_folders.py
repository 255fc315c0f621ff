import polars as pl
import pytest

from stabcli.errors import LogError
from stabcli.readers import read_runs
from tests.event_writing import log_of, losses, name, only, readings, runs, spans, write


def test_a_file_that_goes_on_is_the_next_attempt(tmp_path):
    """A restart from a checkpoint at step 6 discards what the first attempt did after it."""
    write(tmp_path / "run", name(0), log_of(losses(range(10))))
    write(tmp_path / "run", name(50, "host.2"), log_of(losses(range(6, 15)), wall=50))

    (run,) = runs(tmp_path / "run").values()

    assert run.name == "run"
    assert spans(run) == [(0, 9), (6, 14)]
    assert run.frame["file"].unique(maintain_order=True).to_list() == [
        name(0), name(50, "host.2")]  # fmt: skip
    assert run.frame["line"].to_list() == [*range(2, 12), *range(2, 11)]


def test_a_file_that_goes_on_without_going_back_is_an_attempt_too(tmp_path):
    """Another process began it, so there was a restart, and time lost in between."""
    write(tmp_path, name(0), log_of(losses(range(10))))
    write(tmp_path, name(50, "host.2"), log_of(losses(range(10, 15)), wall=50))

    (run,) = runs(tmp_path).values()

    assert spans(run) == [(0, 9), (10, 14)]
    assert not run.frame["discarded"].any()


def test_a_second_file_of_one_process_is_no_restart(tmp_path):
    """A writer that was closed and opened again goes on with the attempt."""
    write(tmp_path, name(0, "host.7", 0), log_of(losses(range(10))))
    write(tmp_path, name(9, "host.7", 1), log_of(losses(range(10, 15))))

    (run,) = runs(tmp_path).values()

    assert spans(run) == [(0, 14)]


def test_files_that_start_over_are_runs_of_their_own(tmp_path):
    """Nothing of the earlier file was kept, so nothing was rolled back; a note says so."""
    for begun in (0, 100, 200):
        write(tmp_path, name(begun, f"host.{begun}"), log_of(losses(range(10)), wall=begun))

    found = runs(tmp_path)

    assert list(found) == [f"{tmp_path.name}/{name(b, f'host.{b}')}" for b in (0, 100, 200)]
    assert all(spans(run) == [(0, 9)] for run in found.values())
    assert all("3 runs" in run.notes[0] for run in found.values())


def test_a_run_that_started_over_can_go_on(tmp_path):
    """Start, start over, go on from there: two runs, the second with two attempts."""
    for begun, steps in ((0, range(10)), (100, range(20)), (200, range(15, 30))):
        write(tmp_path, name(begun, f"host.{begun}"), log_of(losses(steps), wall=begun))

    assert [spans(run) for run in runs(tmp_path).values()] == [[(0, 9)], [(0, 19), (15, 29)]]


def test_files_are_ordered_as_they_were_begun(tmp_path):
    """By the time in the name, of one second by number: .2 comes before .10."""
    write(tmp_path, name(5, "a.1", 10), log_of(losses(range(20, 30)), wall=7))
    write(tmp_path, name(5, "a.1", 2), log_of(losses(range(10, 20)), wall=6))
    write(tmp_path, name(0, "z.9"), log_of(losses(range(10))))

    (run,) = runs(tmp_path).values()

    assert spans(run) == [(0, 9), (10, 29)]


def test_a_second_writer_joins_by_step_and_time(tmp_path):
    """Other tags in a file of their own belong to the attempt under way at the time."""
    write(tmp_path, name(0, "a.1"), log_of(losses(range(10))))
    write(tmp_path, name(100, "a.2"), log_of(losses(range(5, 15)), wall=100))
    evals = log_of(losses([3, 9], "eval/loss")) + log_of(losses([9, 12], "eval/loss"), wall=100)
    write(tmp_path, name(1, "b.1"), evals)

    (run,) = runs(tmp_path).values()

    assert spans(run) == [(0, 9), (5, 14)]
    seen = run.frame.filter(pl.col("eval/loss").is_not_null() if "eval/loss" in run.frame.columns
                            else pl.col("val_loss").is_not_null())  # fmt: skip
    assert seen.select("attempt", "step").rows() == [(0, 3), (0, 9), (1, 9), (1, 12)]


def test_files_without_scalars_are_left_out_and_named(tmp_path):
    """An empty file and one that died early cost nothing but a note."""
    write(tmp_path, name(0), log_of(losses(range(10))))
    write(tmp_path, name(1))
    (tmp_path / name(2)).touch()

    found = only(tmp_path)

    assert found.notes == tuple(f"no scalar in {name(n)}: left out" for n in (1, 2))


def test_a_folder_without_scalars_is_an_error(tmp_path):
    """Nothing to look at is never called clean."""
    write(tmp_path, name(0))

    with pytest.raises(LogError, match="no scalar in any of its event files"):
        readings(tmp_path)


def test_other_files_are_left_out_and_named(tmp_path):
    """Whoever asks for a folder learns what in it was not read."""
    write(tmp_path, name(0), log_of(losses(range(10))))
    for other in ("notes.txt", "checkpoints/a.pt"):
        (tmp_path / other).parent.mkdir(exist_ok=True)
        (tmp_path / other).write_bytes(b"x\0" if other.endswith(".pt") else b"x")

    _, unread = read_runs([str(tmp_path)])
    assert sorted(str(line) for line in unread) == [
        f"{tmp_path}/checkpoints: not logs, left out: a.pt",
        f"{tmp_path}: not logs, left out: notes.txt",
    ]


def test_sub_folders_are_runs_of_their_own(tmp_path):
    """However deep; each is named after its folder."""
    for folder in ("version_0", "version_1", "deep/er"):
        write(tmp_path / folder, name(0), log_of(losses(range(10))))

    found = [r.name.removeprefix(tmp_path.name) for r in readings(tmp_path)]

    assert found == ["/deep/er", "/version_0", "/version_1"]


@pytest.mark.parametrize("held_out", ["validation", "val", "eval"])
def test_train_and_validation_side_by_side_are_one_run(tmp_path, held_out):
    """Keras and kin: the folder names tell losses apart that have one name."""
    write(tmp_path / "train", name(0), log_of(losses(range(10), "loss")))
    write(tmp_path / held_out, name(1), log_of(losses(range(0, 10, 5), "loss")))

    (run,) = runs(tmp_path).values()

    assert run.name == tmp_path.name
    assert run.columns["loss"] == "train/loss"
    assert run.columns["val_loss"] == f"{held_out}/loss"
    assert run.frame["val_loss"].count() == 2
    assert spans(run) == [(0, 9)]


def test_eval_inside_is_the_run_around_it(tmp_path):
    """TensorFlow's estimator: the training events lie beside the folder eval."""
    write(tmp_path, name(0), log_of(losses(range(10), "loss")))
    write(tmp_path / "eval", name(1), log_of(losses([4, 9], "loss")))

    (run,) = runs(tmp_path).values()

    assert (run.columns["loss"], run.columns["val_loss"]) == ("loss", "eval/loss")


def test_train_and_validation_that_never_meet_are_two_runs(tmp_path):
    """Without a common stretch of steps they are not halves of one run."""
    write(tmp_path / "train", name(0), log_of(losses(range(10))))
    write(tmp_path / "test", name(1), log_of(losses(range(500, 510))))

    assert [r.name.rpartition("/")[2] for r in readings(tmp_path)] == ["train", "test"]


def test_folders_of_add_scalars_belong_to_their_run(tmp_path):
    """loss_train/ and loss_val/ with the single tag loss; other folders of the form do not."""
    write(tmp_path, name(0), log_of(losses(range(10), "lr")))
    write(tmp_path / "net_loss_train", name(1), log_of(losses(range(10), "net/loss")))
    write(tmp_path / "net_loss_val", name(1), log_of(losses(range(0, 10, 3), "net/loss")))
    write(tmp_path / "other_run", name(1), log_of(losses(range(10), "loss")))

    found = {r.name.rpartition("/")[2]: r.table.columns for r in readings(tmp_path)}

    own = [c for c in found.pop(tmp_path.name) if not c.startswith("@")]
    assert own == ["step", "lr", "net/loss/train", "net/loss/val"]
    assert list(found) == ["other_run"]


def test_a_name_that_is_taken_is_not_taken_twice(tmp_path):
    """train/loss beside train/ with a tag loss: both are kept."""
    write(tmp_path, name(0), log_of([(s, {"train/loss": 1.0, "lr": 2.0}) for s in range(5)]))
    write(tmp_path / "train", name(0), log_of([(s, {"loss": 3.0}) for s in range(5)]))

    table = only(tmp_path).table

    assert table["train/loss"].to_list() == [1.0] * 5
    assert table["train/loss (2)"].to_list() == [3.0] * 5


def test_damage_in_one_of_several_files_names_it(tmp_path):
    """The place of a bad record is the file, the byte and the number of the record."""
    write(tmp_path, name(0), log_of(losses(range(10))))
    log = bytearray(log_of(losses(range(5, 15))))
    log[-6] ^= 1
    write(tmp_path, name(9, "host.2"), bytes(log))

    bad = only(tmp_path).bad

    assert bad.count == 1
    assert bad.first[0][0] == 11
    assert bad.first[0][1].startswith(f"{name(9, 'host.2')}, byte")


def test_links_are_followed_once(tmp_path):
    """A linked folder is read, one that leads back is not, and a broken link is named."""
    write(tmp_path / "else" / "run", name(0), log_of(losses(range(10))))
    top = tmp_path / "top"
    top.mkdir()
    (top / "linked").symlink_to(tmp_path / "else" / "run")
    (top / "loop").symlink_to(top)
    (top / "linked" / name(5)).symlink_to(tmp_path / "gone")

    found = readings(top)

    assert [r.name for r in found] == ["top/linked"]
    assert found[0].notes == (f"{name(5)} cannot be read (No such file or directory): left out",)
