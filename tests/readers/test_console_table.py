"""Reader ``console-table``: tables of training in text."""

import json
import math
from pathlib import Path

import pytest

from stabcli.errors import UnknownFormat
from stabcli.readers import read_runs
from tests.conftest import SAMPLES
from tests.textlogs import column, read, sample, truth

VALUES = {e: (round(3 / e, 4), round(3.1 / e, 4), e / 40) for e in range(1, 20)}
VALUES[20] = (math.nan, math.inf, 0.5)

TABLES = {
    "markdown": (
        (
            "# A model\n\n| Training Loss | Epoch | Step | Validation Loss | Accuracy |\n"
            "|:-------------:|:-----:|:----:|:---------------:|:--------:|\n"
        ),
        "| {x:<13} | {e}.0 | {s} | {v} | {a} |\n",
        "\n\n### Framework versions\n\n- Transformers 4.40.0\n",
    ),
    "rich": (
        (
            "┏━━━━━━┳━━━━━━━━━━━━━━━┳━━━━━━━━━━━━━━━━━┳━━━━━━━━━━┓\n"
            "┃ Step ┃ Training Loss ┃ Validation Loss ┃ Accuracy ┃\n"
            "┡━━━━━━╇━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━━━━╇━━━━━━━━━━┩\n"
        ),
        "│ {s} │ {x} │ {v} │ {a} │\n",
        "└──────┴─────────────┴───────────┘\n",
    ),
    "notebook": (
        " [2000/2000 02:02, Epoch 20/20]\nStep\tTraining Loss\tValidation Loss\tAccuracy\n",
        "{s}\t{x}\t{v}\t{a}\n",
        "TrainOutput(global_step=2000, training_loss=1.5, metrics={'train_loss': 1.5})\n",
    ),
    "tabulate": (
        (
            "+--------+--------+------------+----------+\n"
            "|   step |   loss |   val_loss |   accuracy |\n+=====+======+=====+=====+\n"
        ),
        "|   {s} |   {x} |   {v} |   {a} |\n+--------+--------+------------+----------+\n",
        "done\n",
    ),
    "fastai": (
        "epoch     train_loss  valid_loss  accuracy  time    \n",
        "{e:<10}{x:<12}{v:<12}{a:<10}01:02     \n",
        "Better model found at epoch 3 with valid_loss value: 0.5.\n",
    ),
    "skorch": (
        (
            "  epoch    train_loss    valid_loss    accuracy    cp     dur\n"
            "-------  ------------  ------------  -----------  ----  ------\n"
        ),
        "{e:7d}        {x}        {v}        {a} {saved:5} 2.2838\n",
        "",
    ),
}


def text(name: str) -> str:
    """Return a table of twenty epochs of a hundred steps."""
    head, row, tail = TABLES[name]
    rows = (
        row.format(e=e, s=100 * e, x=x, v=v, a=a, saved="    +" if e < 9 else "")
        for e, (x, v, a) in VALUES.items()
    )
    return head + "".join(rows) + tail


@pytest.mark.parametrize("name", TABLES)
def test_tables(name: str, tmp_path: Path):
    """Steps and values as they stand there, NaN included; all else is passed by."""
    run = read(tmp_path / "log", text(name))

    length = 1 if name in ("fastai", "skorch") else 100
    assert run.reader == "console-table"
    for metric, i in (("loss", 0), ("val_loss", 1)):
        said = {e * length: values[i] for e, values in VALUES.items()}
        assert column(run, metric) == pytest.approx(said, nan_ok=True)
    accuracy = next(c for c in run.frame.columns if c.lower() == "accuracy")
    assert run.frame[accuracy].to_list() == [a for *_, a in VALUES.values()]
    assert run.bad.count == 0


def test_what_an_epoch_took(tmp_path: Path):
    """A time on a clock is one of the epoch, in seconds, and no time of day."""
    run = read(tmp_path / "log", text("fastai"))

    assert set(run.frame["epoch_seconds"].to_list()) == {62.0}
    assert "wall_time" not in run.frame.columns


def test_no_log_and_what_is_repeated(tmp_path: Path):
    """A loss that was not logged yet is none, nor is one that was not logged anew."""
    head, row, _ = TABLES["markdown"]
    losses = ["No log", "0.5", "0.5", "0.4", "nan", "nan", "0.0", "0.0"]
    rows = [row.format(e=e, s=10 * e, x=x, v=1 / e, a=0.5) for e, x in enumerate(losses, 1)]
    run = read(tmp_path / "log", head + "".join(rows))

    logged = column(run, "loss")
    assert logged == pytest.approx(
        {20: 0.5, 40: 0.4, 50: math.nan, 60: math.nan, 70: 0.0, 80: 0.0}, nan_ok=True
    )
    assert len(column(run, "val_loss")) == 8
    assert any("not logged anew" in note for note in run.notes)
    assert run.bad.count == 0


def test_bars_that_are_drawn_again(tmp_path: Path):
    """Ultralytics prints the names above each epoch, draws its row again and again, and evaluates."""
    log = ""
    for e in range(1, 21):
        log += "\n      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size\n"
        for i in (100, 200, 417):
            log += (
                f"\r       {e}/20      6.18G      {2 / e + 417 - i:.3f}      1.102      1.061   "
                f"     126        640: {i // 417}%|##| {i}/417 [00:01<00:20, 2.1it/s]"
            )
        log += (
            "\n                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95):"
            " 100%|##| 35/35\n                   all       1111      10517      0.764      0.628"
            "      0.705      0.488\n"
        )
    run = read(tmp_path / "log", log)

    assert run.frame["step"].to_list() == list(range(1, 21))
    assert run.frame["box_loss"].to_list() == [float(f"{2 / e:.3f}") for e in range(1, 21)]
    assert run.bad.count == 0


def test_a_table_that_begins_anew_is_another_run(tmp_path: Path):
    """A training of one epoch, as fastai's ``fine_tune`` puts it first, is a run of its own."""
    head, row, _ = TABLES["fastai"]
    rows = [row.format(e=e, x=x, v=v, a=a) for e, (x, v, a) in VALUES.items()]
    path = tmp_path / "log"
    path.write_text(head + rows[0] + rows[1] + "\n" + head + "".join(rows))
    runs, _ = read_runs([str(path)])

    assert [run.frame["step"].to_list() for run in runs] == [[1, 2], list(range(1, 21))]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("| 0.5 | 6.0 |", "| 0.5 ? 6.0 |"),
        ("| 0.5 | 6.0 |", "| 0.5?| 6.0 |"),
        ("| 600 |", "| 6 0 |"),
        ("| 0.5 | 6.0 |", "| 0.5 |\n 6.0 |"),
        ("\n| 0.5 | 6.0 |", " | 0.5 | 6.0 |"),
    ],
)
def test_damaged_rows_are_told_of(old: str, new: str, tmp_path: Path):
    """What stands in a table and cannot be read as a row of it is counted, with its line."""
    log = "".join(
        line.rstrip().replace("            |", " |", 1) + "\n"
        for line in text("markdown").splitlines()
    )
    log = log.replace("| 0.5           |", "| 0.5 |")
    assert old in log
    run = read(tmp_path / "log", log.replace(old, new))

    assert run.frame.height >= 18
    assert run.bad.count >= 1


@pytest.mark.parametrize(
    "log",
    [
        "| Model | Steps | Loss |\n|---|---|---|\n| small | 100 | 3.2 |\n| large | 200 | 2.5 |\n",
        "| Option | Default | Loss |\n|---|---|---|\n| step | 1 | 2 |\n| epoch | 3 | 4 |\n",
        "| Epoch | Loss |\n|---|---|\n| 3 | 2.5 |\n",
        "| Step | What it does to the loss |\n|---|---|\n| 1 | nothing |\n| 2 | much |\n",
        "epoch of the loss in a table\n1 2 3 4 5 6\n2 3 4 5 6 7\n",
    ],
)
def test_other_tables_are_no_logs(log: str, tmp_path: Path):
    """Tables of models, of options and of prose are claimed by nobody."""
    path = tmp_path / "README.md"
    path.write_text(log)

    with pytest.raises(UnknownFormat):
        read_runs([str(path)])


def test_rows_below_other_names_are_none(tmp_path: Path):
    """Another table behind that of the training has its own columns, as many as they may be."""
    other = "\n| Rank | Hidden layers | Parameters | Heads | Score |\n|---|---|---|---|---|\n"
    other += "".join(f"| {i} | 2 | {3000 + i} | 4 | 5 |\n" for i in range(1, 5))
    run = read(tmp_path / "log", text("markdown") + other)

    assert run.frame["step"].to_list() == [100 * e for e in VALUES]
    assert run.bad.count == 4


def test_a_card_beside_its_logs_is_passed_by(tmp_path: Path):
    """A folder that Trainer wrote is one run, whatever its card says."""
    state = {"log_history": [{"loss": 3 / s, "step": s, "epoch": s / 10} for s in range(1, 40)]}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    (tmp_path / "README.md").write_text(text("markdown"))
    runs, _ = read_runs([str(tmp_path)])

    assert [run.reader for run in runs] == ["hf-trainer"]


def test_a_log_of_a_framework_goes_before(tmp_path: Path):
    """A table that a log ends with is passed by where the log has the steps themselves."""
    lines = "".join(f"{{'loss': {3 / s}, 'epoch': {s / 10}}}\n" for s in range(1, 11))
    run = read(tmp_path / "log", lines + text("rich"))

    assert run.reader == "hf-stdout"


def held_out() -> dict[int, float]:
    """Return step -> loss on held-out data of the healthy run."""
    with (SAMPLES / "jsonl/clean.jsonl").open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return {row["step"]: row["val_loss"] for row in rows if "val_loss" in row}


def test_card():
    """Losses of the evaluations, the first without one of training, and what it was trained with."""
    run = sample("console-table/card.markdown")

    assert column(run, "val_loss") == pytest.approx(held_out(), abs=6e-5)
    assert list(column(run, "loss")) == list(held_out())[1:]
    assert run.facts["peak_lr"].value == 0.003
    assert run.facts["seed"].value == 1234


def test_fastai():
    """The same losses, by epoch."""
    run = sample("console-table/fastai.log")

    assert run.frame["val_loss"].to_list() == pytest.approx([*held_out().values()], abs=6e-7)


def test_notebook():
    """The steps of the run that the sample prints."""
    assert column(sample("console-table/notebook.txt"), "loss") == pytest.approx(
        truth("loss"), abs=6e-7
    )
