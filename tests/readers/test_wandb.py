import csv
import json

import numpy as np
import polars as pl
import pytest

from stabcli.assembly import LINE, Options, assemble
from stabcli.attempts import PART
from stabcli.errors import LogError
from stabcli.readers import readers
from stabcli.readers.wandb import matches, wandb
from stabcli.sources import open_source
from stabcli.wandbfile import read_wandb
from tests.conftest import SAMPLES
from tests.wandb_writing import (
    exit_record,
    framed,
    history,
    rows,
    run_record,
    whole,
    write,
)


def readings(path):
    return list(wandb(open_source(path)))


def only(path):
    (reading,) = readings(path)
    return reading


def runs(path):
    source = open_source(path)
    return [assemble(r, source, "wandb", Options()) for r in wandb(source)]


def log(tmp_path, records, name="run-20260101_080000-abcd1234/run-abcd1234.wandb"):
    path = tmp_path / name
    write(path, records)
    return path


def test_a_healthy_run_has_no_notes(tmp_path):
    """Nothing had to be decided, so nothing is said; times and steps are W&B's own."""
    found = only(log(tmp_path, whole(100, name="nice")))
    (run,) = runs(tmp_path / "run-20260101_080000-abcd1234")

    assert (found.notes, found.bad.count, dict(found.facts), found.name) == ((), 0, {}, "nice")
    assert found.names == {"step": "_step", "wall_time": "_timestamp"}
    assert found.table[LINE].to_list() == list(range(2, 102))
    assert PART not in found.table.columns
    assert (run.frame["step"].to_list(), run.reader) == (list(range(100)), "wandb")
    assert run.frame["wall_time"][5] == 1.7e9 + 5


def test_steps_of_the_trainer_come_first(tmp_path):
    """A logged step that half of the rows have is the step; the others take that before."""
    records = []
    for i in range(20):
        records.append(history({"train/loss": 2.0, "train/global_step": 10 * i, "_step": 2 * i}))
        records.append(history({"eval/loss": 2.5, "_step": 2 * i + 1}))
    found = only(log(tmp_path, [run_record(), *records, exit_record()]))

    assert found.names["step"] == "train/global_step"
    assert "_step" not in found.table.columns
    assert found.table["train/global_step"].to_list() == [10 * i for i in range(20) for _ in "ab"]
    assert found.notes == ("20 rows without 'train/global_step' take that of the row before",)


def test_a_step_that_few_rows_have_is_none(tmp_path):
    """One mention of ``iter`` does not make it the clock."""
    records = [history({"loss": 1.0, "_step": i}) for i in range(10)]
    found = only(log(tmp_path, [*records, history({"loss": 1.0, "iter": 99, "_step": 10})]))

    assert found.names["step"] == "_step"


def test_rows_of_nothing_but_media_do_not_count(tmp_path):
    """Neither as rows nor against the trainer's step."""
    records = []
    for i in range(10):
        records.append(history({"loss": 1.0, "global_step": i, "_step": 3 * i}))
        for k in (1, 2):
            records.append(history({"t": {"_type": "table"}, "_step": 3 * i + k}))
    found = only(log(tmp_path, [*records, exit_record()]))

    assert found.names["step"] == "global_step"
    assert found.table.height == 10
    assert found.notes == ("20 values that are no numbers (tables, media, …) left out",)


def test_steps_from_the_record_where_none_was_logged(tmp_path):
    """Some writers keep the step beside the values only."""
    (run,) = runs(log(tmp_path, [history({"loss": 1.0}, step=5 * i) for i in range(10)]))

    assert run.frame["step"].to_list() == [5 * i for i in range(10)]


def test_nan_is_a_value_and_null_is_none(tmp_path):
    """Both are kept apart from one another, in whatever order they come."""
    values = [1.0, float("nan"), None, float("inf"), 2]
    records = [history({"loss": v, "lr": 0.1, "_step": i}) for i, v in enumerate(values)]
    (run,) = runs(log(tmp_path, records))

    assert str(run.frame["loss"].to_list()) == "[1.0, nan, None, inf, 2.0]"


def test_text_among_numbers_is_left_out_and_said(tmp_path):
    """A column of text alone is handed on, as it may tell a fact."""
    records = [
        history({"loss": 1.0 if i else "n/a yet", "precision": "bf16", "_step": i})
        for i in range(5)
    ]
    found = only(log(tmp_path, [*records, exit_record()]))
    (run,) = runs(tmp_path / "run-20260101_080000-abcd1234")

    assert found.notes == (
        "column 'loss' holds text in 1 of its rows, such as 'n/a yet': left out there",
    )
    assert run.facts["precision"].value == "bf16"


def test_nested_values_have_their_canonical_names(tmp_path):
    """``actor.grad_norm`` means what ``actor/grad_norm`` does."""
    records = [history({("actor", "grad_norm"): 1.0, "loss": 1.0, "_step": i}) for i in range(3)]
    (run,) = runs(log(tmp_path, records))

    assert run.columns["grad_norm"] == "actor.grad_norm"


def test_columns_of_reserved_names_keep_out_of_the_way(tmp_path):
    """A key may be called anything."""
    records = [history({"@line": 5, "@part": i, "": 2, "loss": 1.0, "_step": i}) for i in range(3)]
    (run,) = runs(log(tmp_path, records))

    assert len(run.attempts) == 1
    assert run.frame["line"].to_list() == [1, 2, 3]
    assert {"key @line", "key @part", "key "} <= set(run.measurements)


def test_facts_from_the_configuration(tmp_path):
    """Nested or not; steps between checkpoints only where steps are what counts."""
    config = {"learning_rate": 3e-4, "model": {"vocab_size": 50257}, "save_steps": 500}
    found = only(log(tmp_path, [run_record(values=config), *rows(3)]))
    epochs = [run_record(values={**config, "save_strategy": "epoch"}), *rows(3)]

    assert {k: f.value for k, f in found.facts.items()} == {
        "peak_lr": 3e-4,
        "vocab_size": 50257,
        "checkpoint_every": 500,
    }
    assert found.facts["peak_lr"].source == "config of the run, learning_rate"
    assert "checkpoint_every" not in only(log(tmp_path, epochs)).facts


def test_facts_from_the_files_beside(tmp_path):
    """config.yaml line by line, the host's GPUs as a lower bound; the record is believed first."""
    path = log(tmp_path, [run_record(values={"seed": 1}), *rows(3)])
    beside = path.parent / "files"
    beside.mkdir()
    (beside / "config.yaml").write_text(
        "wandb_version: 1\n\n_wandb:\n  value:\n    seed: 3\nseed:\n  desc: null\n  value: 2\n"
        "weight_decay:\n    value: 0.1\nprecision:\n  value: 'bf16'\nmax_steps:\n  value: 1e4\n"
        "odd:\n  value:\n  - 1\n"
    )
    (beside / "wandb-metadata.json").write_text(
        json.dumps({"gpu": "NVIDIA H100", "gpu_count": 8, "slurm": {"nnodes": "4"}})
    )
    facts = only(path).facts

    assert {k: f.value for k, f in facts.items()} == {
        "seed": 1,
        "weight_decay": 0.1,
        "precision": "bf16",
        "total_steps": 10000,
        "gpu": "NVIDIA H100",
        "gpus": 32,
    }
    assert "a lower bound" in facts["gpus"].source
    assert facts["weight_decay"].source == "config.yaml, weight_decay"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        "{",
        "[" * 100_000,
        '{"gpu": 5, "gpu_count": "x"}',
        '{"gpu_count": true, "slurm": {"nnodes": "-1"}}',
    ],
)
def test_a_broken_file_beside_is_no_fact(tmp_path, text):
    """Whatever stands in the metadata."""
    path = log(tmp_path, rows(3))
    (path.parent / "files").mkdir()
    (path.parent / "files/wandb-metadata.json").write_text(text)
    (path.parent / "files/config.yaml").write_bytes(b"\xff\xfe:\n value: " + text.encode())

    assert dict(only(path).facts) == {}


def test_how_it_ended_is_said(tmp_path):
    """No exit record, an exit code that is not 0, a last record cut short."""
    killed = only(log(tmp_path, [run_record(), *rows(5)]))
    failed = only(log(tmp_path, whole(5, code=255)))
    path = log(tmp_path, rows(5))
    path.write_bytes(path.read_bytes()[:-10])
    torn = only(path)

    assert killed.notes == ("no exit record at the end: the run crashed, was killed or goes on",)
    assert failed.notes == ("the process ended with exit code 255",)
    assert "the last record is cut short" in torn.notes[0]
    assert torn.table.height == 4


def test_damage_is_counted_and_located(tmp_path):
    """With record and byte; five are shown."""
    path = log(tmp_path, whole(100))
    data, spans = framed(whole(100))
    hurt = bytearray(data)
    for number in range(10, 80, 10):
        hurt[spans[number][0] + 20] ^= 1
    path.write_bytes(hurt)
    found = only(path)
    begun, end = spans[10]

    assert found.table.height == 93
    assert found.bad.count == 7
    assert len(found.bad.first) == 5
    assert found.bad.first[0] == (
        11,
        f"byte {begun:,}, {end - begun} bytes: its checksum does not fit",
    )


def test_nothing_logged_is_an_error(tmp_path):
    """For a file and for a folder, in one line."""
    path = log(tmp_path, [run_record(), exit_record()])
    with pytest.raises(LogError, match=r"no number logged in its 2 records: give"):
        readings(path)
    with pytest.raises(LogError, match=r"nothing logged in any of its \.wandb files"):
        readings(path.parent)
    path.write_bytes(b":W&B")
    with pytest.raises(LogError, match=r"no number logged in its 0 records, 1 of them damaged"):
        readings(path)


def test_very_many_columns_are_cut_to_what_has_room(tmp_path, monkeypatch):
    """The fullest stay; of the others it is said whether they hold NaN."""
    monkeypatch.setattr("stabcli.readers.wandb._MOST_CELLS", 100)
    records = [
        history(
            {
                "loss": 1.0,
                "_step": i,
                **({f"k{k}": float("nan") for k in range(30)} if i == 3 else {}),
            }
        )
        for i in range(10)
    ]
    found = only(log(tmp_path, [*records, exit_record()]))

    assert len([c for c in found.table.columns if not c.startswith("@")]) == 16
    assert {"loss", "_step"} <= set(found.table.columns)
    assert found.notes == (
        "16 of 32 columns with few values left out; non-finite values in 16, such as 'k14'",
    )


def test_other_sources_are_not_claimed(tmp_path):
    """Text, other folders, a folder with a run further down."""
    (tmp_path / "a.wandb").write_text("loss 1\n")
    (tmp_path / "out/wandb").mkdir(parents=True)
    log(tmp_path / "out/wandb", whole(3))

    assert not matches(open_source(tmp_path / "a.wandb"))
    assert not matches(open_source(tmp_path / "out"))
    assert matches(open_source(tmp_path / "out/wandb"))


SAMPLE_LOGS = sorted(p for p in (SAMPLES / "wandb").iterdir() if p.suffix != ".md")


@pytest.mark.parametrize("path", SAMPLE_LOGS, ids=lambda p: p.name)
def test_samples_are_claimed_by_this_reader_alone(path):
    """Every other reader leaves them alone."""
    source = open_source(path)

    assert [r.name for r in readers if r.matches(source)] == ["wandb"]


def test_samples_hold_what_was_logged():
    """Value for value what W&B was given: it wrote the file."""
    frame = only(SAMPLES / "wandb/bad_batch.wandb").table
    lines = (SAMPLES / "jsonl/bad_batch.jsonl").read_text().splitlines()[1:]
    logged = [row for row in map(json.loads, lines) if 501 <= row["step"] <= 700]

    names = {"train/loss": "loss", "train/grad_norm": "grad_norm", "eval/loss": "val_loss"}
    for own, name in {**names, "_timestamp": "timestamp", "train/global_step": "step"}.items():
        wanted = [row[name] for row in logged if name in row]
        assert wanted
        assert frame[own].drop_nulls().to_list() == wanted


def test_sample_of_a_killed_run():
    """The process was killed: what had reached the disk is an attempt, and it is said."""
    (run,) = runs(SAMPLES / "wandb/restart")
    first, second = run.attempts

    assert (first.first_step, second.first_step, second.last_step) == (541, 501, 600)
    assert first.last_step < 620
    assert any("cut short" in note for note in run.notes)
    assert any("no exit record" in note for note in run.notes)


def test_real_files_hold_what_their_index_says(shared_data):
    """Values, first and last step and non-finite values of files that trainers wrote."""
    with (shared_data / "INDEX.tsv").open(encoding="utf-8") as file:
        index = [r for r in csv.DictReader(file, delimiter="\t") if r["format"] == "wandb"]
    assert index
    for row in index:
        path = shared_data / row["file"]
        if row["rows"] == "0":
            with pytest.raises(LogError):
                readings(path)
            continue
        file = read_wandb(path)
        measured = [c for n, c in file.columns.items() if not n.startswith("_")]
        calls = file.columns["_step"].values[np.argsort(file.columns["_step"].rows)]
        assert sum(len(c.values) for c in measured) == int(row["rows"]), row["file"]
        assert sum(int((~np.isfinite(c.values)).sum()) for c in measured) == int(row["nonfinite"])
        held = sorted({int(r) for c in measured for r in c.rows})
        assert (calls[held[0]], calls[held[-1]]) == (int(row["step_first"]), int(row["step_last"]))
        assert not file.damaged
        assert isinstance(only(path).table, pl.DataFrame)
