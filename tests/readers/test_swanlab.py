"""Reader swanlab: the files of its SDK."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stabcli.errors import LogError
from stabcli.readers import read_runs
from stabcli.trackers.swanfile import read_swanlab
from tests import wandb_writing
from tests.conftest import SAMPLES
from tests.readers.tracker_runs import assert_written, claimed, runs_of, the_run
from tests.tracker_writing import (
    ROWS,
    SWANLAB_START,
    clock,
    swanlab_records,
    swanlab_scalar,
    write_swanlab,
)
from tests.wandb_writing import field


def folder(tmp_path, name="run-20260101_080000-abcd1234", **options):
    place = tmp_path / name
    (place / "files").mkdir(parents=True)
    (place / "files/config.yaml").write_text(
        "gpus:\n  desc: ''\n  sort: 0\n  value: 8\nlr:\n  value: 0.0003\n"
    )
    write_swanlab(place / f"run-{name[-8:]}.swanlab", **options)
    return place


def test_a_file_a_run_and_a_folder_of_runs_are_read(tmp_path):
    place = folder(tmp_path / "swanlog")
    (file,) = place.glob("*.swanlab")
    for path in (file, place, tmp_path / "swanlog"):
        assert claimed(path) == ["swanlab"]
        run = the_run(path)
        assert_written(run)
        assert run.name == "run"
        assert run.facts["gpus"].source == "config.yaml, gpus"
        assert run.frame["wall_time"].to_list() == [clock(s) for s, _ in ROWS]
        assert run.notes == ()
    assert claimed(tmp_path) == []
    assert_written(the_run(tmp_path))


def test_several_runs_stay_several(tmp_path):
    for name in ("abcd1234", "efgh5678"):
        records = [field(10, field(4, "run") + field(10, name)), *swanlab_records()[1:]]
        folder(tmp_path, f"run-20260101_080000-{name}", records=records)
    (tmp_path / "run-20260101_090000-loop0000").symlink_to(
        tmp_path / "run-20260101_080000-abcd1234"
    )

    assert [r.name for r in runs_of(tmp_path)] == ["run (abcd1234)", "run (efgh5678)"]


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (None, "no end was recorded: the run crashed, was killed or goes on"),
        (2, "SwanLab says that the run crashed"),
        (3, "SwanLab says that the run aborted"),
        (9, "SwanLab says that the run in a state that is not known"),
    ],
)
def test_how_a_run_ended(tmp_path, state, said):
    run = the_run(write_swanlab(tmp_path / "a.swanlab", state=state))

    assert run.notes == (said,)


def test_the_machine_and_media_stay_apart(tmp_path):
    """A column of class 2 is the machine's, whatever its name, and so are names that begin so."""
    system = field(12, field(1, 2) + field(2, 1) + field(3, "gpu.0"))
    more = [
        system,
        swanlab_scalar("gpu.0", 1, 50.0),
        swanlab_scalar("__swanlab__.cpu", 1, 5.0),
        field(14, field(1, "image") + field(2, 1)),
    ]
    path = write_swanlab(tmp_path / "a.swanlab", records=[*swanlab_records(), *more])
    run = the_run(path)

    assert_written(run)
    assert not {"gpu.0", "__swanlab__.cpu"} & set(run.frame.columns)
    assert run.notes == (
        "values of the machine not read: 2",
        "values that are no numbers (images, texts, …) left out: 1",
    )


def test_negative_zero_and_huge_steps(tmp_path):
    """Fields that are 0 are not written; a negative step is, in ten bytes."""
    records = [swanlab_scalar("loss", s, float(s)) for s in (-1, 0, 1, 2**61)]
    records.append(swanlab_scalar("loss", 2**62, 1.0))
    records.append(field(13, field(1, "zero") + field(2, 3) + field(5, b"")))
    run = the_run(write_swanlab(tmp_path / "a.swanlab", records=records))

    assert run.frame["step"].to_list() == [-1, 0, 1, 3, 2**61]
    assert run.frame["zero"].drop_nulls().to_list() == [0.0]
    assert run.bad.count == 1


def test_a_version_that_is_not_known_says_so(tmp_path):
    path = write_swanlab(tmp_path / "a.swanlab", records=[field(1, 1)])
    path.write_bytes(b":SWL\xd6\xe1\x01" + path.read_bytes()[7:])
    with pytest.raises(LogError, match=r"version 1 of SwanLab's files, of which only 2 is known"):
        read_runs([str(path)])
    path.write_bytes(b":SWL")
    with pytest.raises(LogError, match=r"no number logged in its 0 records"):
        read_runs([str(path)])
    with pytest.raises(LogError):
        read_runs([str(tmp_path)], format_name="swanlab")


def test_a_cut_file_keeps_its_records_and_says_so(tmp_path):
    path = write_swanlab(tmp_path / "a.swanlab")
    data = path.read_bytes()
    for cut in range(len(data) - 60, len(data)):
        path.write_bytes(data[:cut])
        run = the_run(path)
        assert run.frame.height >= 19
        assert run.notes, cut


DATA, SPANS = wandb_writing.framed(swanlab_records())
DATA = SWANLAB_START + DATA[len(SWANLAB_START) :]


@example([(220, 254)])  # a length that leads to the begin of a record further on
@given(
    st.lists(st.tuples(st.integers(0, len(DATA) - 1), st.integers(1, 255)), min_size=1, max_size=8)
)
def test_mutated_bytes_lose_only_what_they_hit(tmp_path_factory, changes):
    """Values whose bytes were left alone are read as before; every loss is told of."""
    hurt = bytearray(DATA)
    for place, bits in changes:
        hurt[place] ^= bits
    hit = {p for p, _ in changes if hurt[p] != DATA[p]}
    path = tmp_path_factory.mktemp("s") / "a.swanlab"
    path.write_bytes(hurt)
    run = read_swanlab(path)
    logged = sum(len(values) for _, values in ROWS)
    first = 4  # records before the first value: the start, and a column a metric
    lost = {n for n, (a, e) in enumerate(SPANS) if any(a <= p < e for p in hit)}
    values_lost = len([n for n in lost if first <= n < first + logged])

    assert len(run.points) == logged - values_lost
    assert bool(run.faults.count or run.torn) == bool(hit)


def test_what_swanlab_itself_wrote_is_what_was_logged():
    run = the_run(SAMPLES / "swanlab/swanlog")
    csv = the_run(SAMPLES / "csv/diverged_metrics.csv")
    for metric in ("loss", "grad_norm", "learning_rate", "val_loss"):
        ours = run.frame.select("step", metric).drop_nulls()
        assert ours.equals(csv.frame.select("step", metric).drop_nulls()), metric
    assert run.facts["seed"].value == 1234
