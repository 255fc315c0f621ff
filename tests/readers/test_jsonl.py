"""Reader jsonl: what it claims, and what the rows of one logger or another mean."""

import json
import math
from pathlib import Path

import pytest

from stabcli.errors import LogError, UnknownFormat
from stabcli.readers import read_runs, readers
from stabcli.sources import open_source


def _write(folder: Path, data: bytes | list[str], name: str = "log.jsonl") -> Path:
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else ("\n".join(data) + "\n").encode())
    return path


def _read(path: Path):
    runs, unread = read_runs([str(path)])

    assert not unread
    assert len(runs) == 1
    return runs[0]


def _reading(path: Path):
    [reading] = readers["jsonl"].read(open_source(path))
    return reading


def _claimed(path: Path) -> list[str]:
    return [r.name for r in readers if r.matches(open_source(path))]


def test_nested_names_are_joined_and_a_wrapper_taken_off(tmp_path: Path) -> None:
    """verl's ``{"step", "data"}``: names as if they stood at the top; other nesting is kept."""
    lines = [
        json.dumps({"step": i, "data": {"actor/grad_norm": 1.0, "a": {"b": i}}}) for i in range(9)
    ]
    run = _read(_write(tmp_path, lines))

    assert run.columns["grad_norm"] == "actor/grad_norm"
    assert run.frame["a/b"].to_list() == list(range(9))


def test_null_where_a_number_always_was_is_a_nan(tmp_path: Path) -> None:
    """Writers without NaN put null: what was in every row before was NaN, and is said to be."""
    lines = [
        json.dumps(
            {"step": i, "loss": None if i in (70, 71) else 2.0, "val": 1.0 if i % 9 == 3 else None}
        )
        for i in range(100)
    ]
    reading = _reading(_write(tmp_path, lines))
    [note] = [n for n in reading.notes if "null" in n]

    assert note.startswith("'loss' is null in 2 rows, first in line 71")
    assert reading.table["loss"].is_nan().arg_true().to_list() == [70, 71]
    assert reading.table["val"].is_nan().sum() == 0


@pytest.mark.parametrize(("norm", "broken"), [(0.5, False), (None, True), (float("nan"), True)])
def test_null_beside_a_finite_gradient_norm_is_no_nan(tmp_path: Path, norm, broken) -> None:
    """The norm of what a NaN sends back is NaN: such a loss was only not logged."""
    rows = [{"step": i, "loss": 2.0, "grad_norm": 0.5} for i in range(100)]
    for row in rows[70:80]:
        row.update(loss=None, grad_norm=norm)
    reading = _reading(_write(tmp_path, [json.dumps(row) for row in rows]))

    assert (reading.table["loss"].is_nan().sum() or 0) == (10 if broken else 0)
    assert any("no NaN" in note for note in reading.notes) != broken


def test_null_in_a_row_of_an_evaluation_is_no_nan(tmp_path: Path) -> None:
    """A loop that writes all names in every row has no loss where it evaluates."""
    rows = []
    for i in range(100):
        rows.append({"step": i, "loss": 2.0, "val_loss": None})
        if i % 20 == 19:
            rows.append({"step": i, "loss": None, "val_loss": 2.1})
    reading = _reading(_write(tmp_path, [json.dumps(r) for r in rows]))

    assert reading.table["loss"].is_nan().sum() == 0
    assert reading.table["loss"].null_count() == 5


def test_configuration_gives_facts_and_no_row(tmp_path: Path) -> None:
    """A first line without a step is read as facts, with its line as the source."""
    config = {"gpus": 512, "gpu": "H100", "model": {"params": 7e9}}
    run = _read(
        _write(tmp_path, [json.dumps(config), '{"step":1,"loss":2}', '{"step":2,"loss":1}'])
    )

    assert run.facts["gpus"].value == 512
    assert run.facts["gpus"].source == "line 1, gpus"
    assert run.facts["parameters"].value == 7_000_000_000
    assert run.frame["line"].to_list() == [2, 3]
    assert "gpus" not in run.frame.columns
    assert any("line 1" in note for note in run.notes)


def test_a_row_with_a_loss_is_no_configuration(tmp_path: Path) -> None:
    """A row that lost its step but has a loss and a learning rate states no peak learning rate."""
    lines = ['{"step":1,"loss":2,"learning_rate":0.1}', '{"loss":1,"learning_rate":0.2}']
    run = _read(_write(tmp_path, lines))

    assert run.facts["peak_lr"].source == "seen in column learning_rate"
    assert run.facts["peak_lr"].value == 0.1
    assert any("without a step" in note for note in run.notes)


def test_configuration_said_again_begins_an_attempt(tmp_path: Path) -> None:
    """A second configuration is a restart, even where no step is done twice."""
    config = json.dumps({"config": {"gpus": 8}})
    lines = [config, '{"step":1,"loss":2}', '{"step":2,"loss":2}', config, '{"step":3,"loss":1}']
    run = _read(_write(tmp_path, lines))

    assert [(a.first_step, a.last_step) for a in run.attempts] == [(1, 2), (3, 3)]


def test_llama_factory(tmp_path: Path) -> None:
    """Times as text become seconds, ``current_steps`` the step and ``total_steps`` a fact."""
    row = {"current_steps": 10, "total_steps": 50, "loss": 1.9, "lr": 5e-5, "percentage": 20.0}
    later = {**row, "current_steps": 20, "loss": 1.8, "elapsed_time": "1 day, 0:01:02"}
    run = _read(
        _write(tmp_path, [json.dumps({**row, "elapsed_time": "0:01:02"}), json.dumps(later)])
    )

    assert run.frame["step"].to_list() == [10, 20]
    assert run.frame["elapsed_seconds"].to_list() == [62.0, 86462.0]
    assert run.fact("total_steps") == 50


def test_ms_swift(tmp_path: Path) -> None:
    """A step such as ``10/500`` and a time such as ``1h 2m 3s``."""
    rows = [
        {
            "loss": 2.0,
            "global_step/max_steps": "10/500",
            "elapsed_time": "3s",
            "train_speed(s/it)": 1.5,
        },
        {"loss": 1.0, "global_step/max_steps": "20/500", "elapsed_time": "1h 2m 3s"},
    ]
    run = _read(_write(tmp_path, [json.dumps(r) for r in rows]))

    assert run.frame["step"].to_list() == [10, 20]
    assert run.frame["elapsed_seconds"].to_list() == [3.0, 3723.0]
    assert run.frame["step_seconds"].to_list() == [1.5, None]


def test_text_in_a_column_of_numbers_loses_only_itself(tmp_path: Path) -> None:
    """One word among the losses is left out and named; the others stay numbers."""
    lines = [f'{{"step":{i},"loss":{1.5 + i}}}' for i in range(9)] + [
        '{"step":9,"loss":"diverged"}'
    ]
    run = _read(_write(tmp_path, lines))

    assert run.frame["loss"].to_list() == [1.5 + i for i in range(9)] + [None]
    assert any("'diverged'" in note for note in run.notes)


def test_an_array_of_objects_is_read_too(tmp_path: Path) -> None:
    """One JSON array, indented or not, whole or cut: every whole object is a row."""
    rows = [{"step": i, "loss": math.nan if i == 2 else 1.0} for i in range(5)]
    for indent in (None, 2):
        text = json.dumps(rows, indent=indent)
        run = _read(_write(tmp_path, text.encode(), "log.json"))
        assert run.frame["loss"].is_nan().to_list() == [False, False, True, False, False]
        assert run.frame["line"].to_list() == [1, 2, 3, 4, 5]
        cut = _read(_write(tmp_path, text[: text.rindex("loss")].encode(), "cut.json"))
        assert cut.frame.height == 4
        assert cut.bad.count == 1


def test_what_it_claims(tmp_path: Path) -> None:
    """Objects that can be rows are claimed; configurations, histories and plain text are not."""
    mine = {
        "a.jsonl": b'{"step":1,"loss":2}\n',
        "torn.jsonl": b'{"step":1,"loss":2}\n{"step":2,"lo',
        "config_first.jsonl": b'{"config": {"x": "%s"}}\n{"step":1,"loss":2}\n' % (b"y" * 100_000),
        "mapped.jsonl": b'{"i":1,"l":2}\n{"i":2,"l":1}\n',
        "a.json": b'[{"step":1,"loss":2}]',
    }
    others = {
        "config.json": b'{"hidden_size": 4096, "dtype": "bf16"}\n',
        "pretty.json": b'{\n  "hidden_size": 4096\n}\n',
        "wandb.jsonl": b'{"_step":1,"loss":2}\n{"_step":2,"loss":2}\n',
        "words.jsonl": b'{"text": "a"}\n{"text": "b"}\n',
        "points.json": b"[[1.0, 2, 3.0]]",
        "log.txt": b"step 1 loss 2\nstep 2 loss 1\n{}\n",
    }
    for name, data in mine.items():
        assert _claimed(_write(tmp_path, data, name)) == ["jsonl"], name
    for name, data in others.items():
        assert "jsonl" not in _claimed(_write(tmp_path, data, name)), name


def test_nothing_to_read_is_an_error_of_one_line(tmp_path: Path) -> None:
    """No step, no object at all, or a folder by force: a message, never a traceback."""
    stepless = _write(tmp_path, ['{"a":1}', '{"a":2}'])
    with pytest.raises(LogError, match="no step in the log"):
        read_runs([str(stepless)])
    noise = _write(tmp_path, b"\x01\x02\n\xff\n", "noise.bin")
    with pytest.raises(UnknownFormat):
        read_runs([str(noise)])
    for path in (noise, tmp_path):
        with pytest.raises(LogError):
            read_runs([str(path)], format_name="jsonl")


def test_real_logs_are_claimed_and_read(shared_data: Path) -> None:
    """Real JSON lines are this reader's alone, and each gives one run with a loss."""
    for path in sorted((shared_data / "text").rglob("*.jsonl")):
        assert _claimed(path) == ["jsonl"]
        assert _read(path).has("loss")


# ---- lists, nulls, commas and long lines ----


def test_a_list_of_one_number_is_that_number(tmp_path: Path):
    """Both ways of reading take it, and other lists are named as left out."""
    rows = [{"step": i, "loss": [2.0 - i / 100], "hist": [1.0, 2.0]} for i in range(1, 40)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    for lines in (text, text + '{"step": 40, "loss": [NaN], "hist": []}\n'):
        path = tmp_path / "log.jsonl"
        path.write_text(lines)
        (run,), _ = read_runs([str(path)])
        assert run.frame["loss"].to_list()[:39] == [row["loss"][0] for row in rows]
        assert "lists of one number were read as that number: 'loss'" in run.notes
        assert "lists are no single value, left out: 'hist'" in run.notes
    assert math.isnan(run.frame["loss"][39])


def test_a_loss_that_is_always_null_is_told(tmp_path: Path):
    """It is no number, and the run is not called healthy."""
    path = tmp_path / "log.jsonl"
    path.write_text("".join(f'{{"step": {i}, "loss": null, "x": 1}}\n' for i in range(1, 40)))
    (run,), _ = read_runs([str(path)])

    assert run.blind == "column 'loss' (loss) is empty in every row"


def test_a_first_line_of_megabytes_hides_no_log(tmp_path: Path):
    """However long the configuration in its first line is, a log of JSON objects is known."""
    path = tmp_path / "log.jsonl"
    rows = "".join(f'{{"step": {i}, "loss": {2 - i / 100}}}\n' for i in range(1, 40))
    path.write_text(json.dumps({"config": {"text": "x" * 9_000_000, "seed": 1}}) + "\n" + rows)
    (run,), unread = read_runs([str(path)])

    assert (run.reader, run.frame.height, unread) == ("jsonl", 39, [])


def test_one_comma_among_points_costs_one_value(tmp_path: Path):
    """A decimal comma where the others have points is no thousand: it is told, and left out."""
    path = tmp_path / "log.jsonl"
    values = ["2.05"] * 39 + ['"6,0093"']
    path.write_text("".join(f'{{"step": {i}, "loss": {x}}}\n' for i, x in enumerate(values)))
    (run,), _ = read_runs([str(path)])

    assert run.frame["loss"].to_list() == [2.05] * 39 + [None]
    assert any("'6,0093'" in note and "left out there" in note for note in run.notes)


@pytest.mark.parametrize("mark", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_changes_no_claim(tmp_path: Path, mark: str):
    """One reader claims a log with a mark, as without, however much of its text speaks of losses."""
    lines = [json.dumps({"step": i, "loss": 2.0, "note": "step 5, loss 1"}) for i in range(50)]
    path = _write(tmp_path, "\n".join(lines).encode(mark))

    assert _read(path).frame["loss"].to_list() == [2.0] * 50
    assert _read(path).reader == "jsonl"


def test_evaluations_without_a_step_have_that_of_the_row_before(tmp_path: Path):
    """NaN among them as well; other rows without a step are left out and counted."""
    lines: list[str] = []
    for i in range(1, 301):
        lines.append(json.dumps({"step": i, "loss": 5 / i}))
        if i % 100 == 0:
            lines.append(json.dumps({"eval_loss": math.nan if i == 200 else 4 / i}))
        if i == 150:
            lines.append(json.dumps({"disk": 0.5}))
    run = _read(_write(tmp_path, lines))

    losses = run.frame.filter(run.frame["val_loss"].is_not_null())
    assert losses["step"].to_list() == [100, 200, 300]
    assert [math.isnan(x) for x in losses["val_loss"]] == [False, True, False]
    assert "3 rows of evaluation without a step taken at that of the row before" in run.notes
    assert "1 row without a step left out" in run.notes
