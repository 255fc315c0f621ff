import polars as pl
import pytest

from stabcli import delimited, tables
from stabcli.assembly import Options, assemble
from stabcli.readers.csv import csv, matches
from stabcli.sources import open_source
from tests.conftest import SAMPLES


@pytest.fixture
def log(tmp_path):
    """Write a file and open it."""

    def write(content, name="log.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return open_source(path)

    return write


def runs(source):
    return [assemble(reading, source, "csv", Options()) for reading in csv(source)]


def the_run(source):
    (run,) = runs(source)
    return run


def test_a_header_before_every_row_is_read_past(log):
    """DeepSpeed's csv_monitor did this for years."""
    text = "".join(f"step,train_loss\r\n{32 * s},{3 - s / 100}\r\n" for s in range(40))
    run = the_run(log(text, "Train_Samples_train_loss.csv"))

    assert run.frame.height == 40
    assert run.frame["loss"][39] == 3 - 39 / 100
    assert any("counts samples" in note for note in run.notes)


def test_a_folder_of_the_csv_monitor_is_one_run():
    source = open_source(SAMPLES / "csv" / "csv_monitor")
    run = the_run(source)

    assert matches(source)
    assert run.has("loss", "learning_rate", "loss_scale")
    assert len(run.attempts) == 2
    assert run.frame["loss"].null_count() == 0
    assert run.frame["line"].to_list() == [*range(2, 61), *range(62, 92)]
    assert any("as in Train_Samples_train_loss.csv" in note for note in run.notes)


def test_lightning_rows_of_one_step_become_one_row_and_hparams_become_facts(log, tmp_path):
    (tmp_path / "hparams.yaml").write_text("seed: 7\nmodel:\n  seed: 9\nname: x\nmax_steps: 1e3\n")
    source = log((SAMPLES / "csv" / "lightning_metrics.csv").read_bytes(), "metrics.csv")
    run = the_run(source)

    assert run.frame.height == 50
    assert run.columns["loss"] == "train_loss_step"
    assert run.columns["learning_rate"] == "lr-AdamW"
    assert run.frame["val_loss"].count() == 2
    assert run.facts["seed"].value == 7
    assert run.facts["total_steps"].value == 1000
    assert run.bad.count == 0


def test_every_curve_of_a_wandb_chart_is_a_run():
    """Extremes stay where they tell more than the value; the name may hold the separator."""
    whole, thinned = runs(open_source(SAMPLES / "csv" / "wandb_chart.csv"))

    assert (whole.name, thinned.name) == ("base - lr 3e-4", "wide")
    assert (whole.frame.height, thinned.frame.height) == (80, 120)
    assert "train/loss__MAX" not in whole.frame.columns
    assert (thinned.frame["train/loss__MAX"] > thinned.frame["loss"]).all()
    assert whole.notes == ()
    assert any("120 rows stand for several steps" in note for note in thinned.notes)


def test_two_wandb_runs_of_one_name_stay_two(log):
    columns = ["a - loss", "a - loss__MIN", "a - loss__MAX"] * 2
    lines = ["Step," + ",".join(columns), "1,2,2,2,5,5,5", "2,3,3,3,6,6,6"]
    found = runs(log("\n".join(lines) + "\n"))

    assert [(r.name, r.frame["loss"].to_list()) for r in found] == [
        ("a", [2, 3]),
        ("a (2)", [5, 6]),
    ]


@pytest.mark.parametrize(
    ("x", "step"), [("train/global_step", [10, 20]), ("Relative Time (Process)", [1, 2])]
)
def test_a_chart_over_something_else_than_steps(log, x, step):
    lines = [f'"{x}","a - loss","a - loss__MIN","a - loss__MAX"', '"10",2,2,2', '"20",3,3,3']
    run = the_run(log("\n".join(lines) + "\n"))

    assert run.frame["step"].to_list() == step
    assert any("rows are counted" in n for n in run.notes) == (step == [1, 2])


def test_a_chart_over_time_is_counted_by_its_own_step_column(log):
    names = ["loss", "loss__MIN", "loss__MAX", "_step", "_step__MIN", "_step__MAX"]
    header = ",".join(f'"a - {n}"' for n in names)
    run = the_run(log(f'"Relative Time (Wall)",{header}\n0.5,2,2,2,40,40,40\n1.5,3,3,3,80,79,80\n'))

    assert run.frame["step"].to_list() == [40, 80]


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("run-a-tag-train_loss.csv", "loss"),
        ("run-a-tag-loss_metrics_global_avg_loss.csv", "loss"),
        ("run-a-tag-train_grad_norm.csv", "grad_norm"),
        ("run-a-tag-eval_loss.csv", "val_loss"),
        ("lr.csv", "learning_rate"),
        ("download.csv", "loss"),
    ],
)
def test_a_tensorboard_download_is_named_by_its_file(log, name, metric):
    rows = "".join(f"{1.7e9 + s},{s},{2.5 - s / 100}\n" for s in range(20))
    run = the_run(log("Wall time,Step,Value\n" + rows, name))

    assert run.frame[metric].to_list() == [2.5 - s / 100 for s in range(20)]
    assert run.frame["wall_time"][1] == 1.7e9 + 1
    assert any("taken as the loss" in n for n in run.notes) == (name == "download.csv")


@pytest.mark.parametrize(("rows", "said"), [(999, False), (1000, True)])
def test_a_full_tensorboard_reservoir_is_said_to_be_a_sample(log, rows, said):
    text = "Wall time,Step,Value\n" + "".join(f"1,{s},2.5\n" for s in range(rows))
    run = the_run(log(text, "loss.csv"))

    assert any("spikes may be missing" in n for n in run.notes) == said


def real(shared_data, end):
    index = pl.read_csv(shared_data / "INDEX.tsv", separator="\t", infer_schema=False)
    found = index.filter(pl.col("file").str.ends_with(end)).to_dicts()
    assert found
    return found


def test_real_wandb_charts_have_the_rows_they_should(shared_data):
    for name in ("wandb_export.csv", "examples/logs.csv"):
        (row,) = real(shared_data, name)
        found = runs(open_source(shared_data / row["file"]))

        assert max(run.frame.height for run in found) == int(row["rows"])
        assert min(run.frame["step"].min() for run in found) == int(row["step_first"])
        assert max(run.frame["step"].max() for run in found) == int(row["step_last"])
        assert all(run.bad.count == 0 and len(run.attempts) == 1 for run in found)


def test_real_algoperf_measurements_have_the_rows_they_should(shared_data):
    """Losses as many as were written, and NaN where pandas left the cell of one empty."""
    hidden = {}
    for row in real(shared_data, "measurements.csv"):
        source = open_source(shared_data / row["file"])
        raw = pl.read_csv(source.path, infer_schema=False)
        run = the_run(source)
        plain = run.frame.filter(pl.col("loss").is_not_null())
        empty = raw.filter(pl.col("score").is_null() & pl.col("loss").is_null()).height
        hidden[row["file"].split("/")[-3]] = empty

        assert run.columns["loss"] == "loss"
        assert plain.height == raw["loss"].count() + empty
        assert plain["loss"].is_nan().sum() == empty
        assert run.frame["step"].min() == int(row["step_first"])
        assert len(run.attempts) == 1
    assert hidden == {
        "criteo1tb_pytorch": 18,
        "criteo1tb_jax": 26,
        "librispeech_deepspeech_jax": 15,
        "wmt_jax": 0,
    }


@pytest.mark.parametrize(
    "rows",
    [
        "1,2,3\n4,5,6\n",
        "1,2,3\r\n4,,6\r\n",
        "1,2\n3,4,5,6\n7,8,9\n",  # as many separators as three whole rows have
        "1,2,3,4\n5,6\n7,8,9\n",
        "1,2,3\n\n4,5,6\n",
        "1,2,3\nstep,loss,lr\n4,5,6\n",
        '1,2,"3"\n4,5,6\n',
        "1,NaN,-inf\n4,x,6\n",
        "1,2,3\n4,5",
        "1,2,3\r4,5\n6,7,8\n",
    ],
)
def test_what_is_read_at_once_is_what_is_read_with_care(log, monkeypatch, rows):
    """A table whose lines are counted only, and not looked at, gives the same rows and complaints."""
    source = log("step,loss,lr\n" + "10,2.5,0.1\n11,2.5,0.1\n" + rows)
    (quick,) = csv(source)
    monkeypatch.setattr(delimited, "regular", lambda *_: None)
    (slow,) = csv(source)

    assert quick.table.equals(slow.table)
    assert (quick.notes, quick.bad) == (slow.notes, slow.bad)


def test_a_table_of_like_rows_is_read_at_once(log, monkeypatch):
    """It is not gone through line by line before."""
    monkeypatch.setattr(tables, "_Lines", None)

    assert the_run(log("step,loss,lr\n" + "".join(f"{s},2.5,\n" for s in range(99)))).bad.count == 0


@pytest.mark.parametrize("hurt", [2, 3])
def test_a_chart_with_words_among_its_extremes(log, hurt):
    """Damaged cells make text of a column; the chart is read all the same, and it is told."""
    names = ["Step", "a - loss", "a - loss__MIN", "a - loss__MAX"]
    rows = [[str(i), "2", "2", "2"] for i in range(10)]
    for row in rows[:4]:
        row[hurt] = "3x"
    text = "\n".join([",".join(f'"{n}"' for n in names), *(",".join(row) for row in rows)])
    run = the_run(log(text + "\n"))

    assert run.frame["loss"].to_list() == [2.0] * 10
    assert any("3x" in note for note in run.notes)
