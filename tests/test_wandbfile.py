"""Files of W&B: every value is read, and what is damaged costs itself and is told of."""

import json
import random
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stabcli.wandbfile import WandbFile, read_wandb
from tests.wandb_writing import (
    BLOCK,
    exit_record,
    field,
    framed,
    history,
    item,
    rows,
    run_record,
    said,
    varint,
    whole,
    write,
)


def read(tmp_path, records) -> WandbFile:
    path = tmp_path / "run-x.wandb"
    write(path, records)
    return read_wandb(path)


def read_bytes(tmp_path, data) -> WandbFile:
    path = tmp_path / "run-x.wandb"
    path.write_bytes(data)
    return read_wandb(path)


def table(file: WandbFile) -> list[dict]:
    """The rows of a file as key -> number or text."""
    found: list[dict] = [{} for _ in range(file.height)]
    for name, column in file.columns.items():
        for row, value in zip(column.rows.tolist(), column.values.tolist(), strict=True):
            found[row][name] = value
    for name, texts in file.texts.items():
        for row, text in texts:
            found[row][name] = text
    return found


def same(found, wanted) -> bool:
    """Equal, NaN to NaN."""
    return json.dumps(found, sort_keys=True) == json.dumps(wanted, sort_keys=True)


def test_a_healthy_file_has_nothing_left_out(tmp_path):
    """Rows in the order of the file, with record numbers; nothing damaged, nothing cut."""
    file = read(tmp_path, whole(100))

    assert file.height == 100
    assert file.numbers.tolist() == list(range(2, 102))
    assert file.steps.tolist() == list(range(100))
    assert (file.damaged, file.torn, file.objects, file.unreadable) == ((), 0, 0, 0)
    assert (file.about.run_id, file.about.exit_code) == ("abcd1234", 0)


@pytest.mark.parametrize("count", [1, 31, 32, 500])
def test_values_are_those_that_were_logged(tmp_path, count):
    """NaN, infinities, whole numbers, tiny, huge and long ones; truth values as 0 and 1."""
    random.seed(count)
    values = {
        "loss": float("nan"),
        "a/b": float("inf"),
        "c": float("-inf"),
        "whole": 3.0,
        "zero": -0.0,
        "tiny": 5e-324,
        "huge": 1.7976931348623157e308,
        "long": 0.1234567890123456789,
        "true": True,
        "false": False,
        "": 7,
        "ключ": 1.5,
    }
    shuffled = []
    for _ in range(count):
        keys = random.sample(list(values), len(values))
        shuffled.append(history({k: values[k] for k in keys}))
    file = read(tmp_path, shuffled)
    wanted = {k: float(v) for k, v in values.items()} | {"zero": 0.0}

    found = table(file)
    assert all(same({**row, "zero": abs(row["zero"])}, wanted) for row in found)
    assert len(found) == count


def test_typed_values(tmp_path):
    """Since 2026 values may be typed fields: none, boolean, integer, number, text, json."""
    double = varint(6 << 3 | 1) + struct.pack("<d", -2.5)
    record = history(
        {
            "none": field(3, 0),
            "yes": field(4, 1),
            "minus": field(5, 2 * 41 + 1),
            "big": field(5, 2 * 10**15),
            "number": double,
            "text": field(7, "bf16"),
            "json": field(8, "0.5"),
        }
    )

    assert (
        table(read(tmp_path, [record] * 40))
        == [{"yes": 1, "minus": -42, "big": 1e15, "number": -2.5, "text": "bf16", "json": 0.5}] * 40
    )


@pytest.mark.parametrize("nested", [True, False])
def test_keys_in_both_spellings(tmp_path, nested):
    """Old files have a key, new ones a path of names even for plain keys; long names too."""
    long = "k" * 300
    records = [history({"train/loss": 1.5, long: 2}, nested=nested)] * 40

    assert table(read(tmp_path, records)) == [{"train/loss": 1.5, long: 2.0}] * 40


def test_paths_and_objects_are_named_by_dots(tmp_path):
    """As W&B shows them; an object of the old SDK and a path of the new one are the same."""
    deep = tuple("abcdefghijk")
    records = [
        history({("actor", "loss"): 1.5, deep: 2.5}),
        history({"actor": {"loss": 2.5, "note": "x", "none": None, "list": [1]}}),
    ]
    file = read(tmp_path, records)

    assert table(file) == [
        {"actor.loss": 1.5, ".".join(deep): 2.5},
        {"actor.loss": 2.5, "actor.note": "x"},
    ]
    assert file.objects == 1, "the list"


def test_media_is_left_out_and_counted(tmp_path):
    """Tables and histograms, as one object or leaf by leaf, leave no columns."""
    records = [
        history({"loss": 1, "h": {"_type": "histogram", "bins": [1, 2]}}),
        history({"loss": 1, ("t", "_type"): "table-file", ("t", "size"): 12, ("t2",): 1}),
    ]
    file = read(tmp_path, records)

    assert table(file) == [{"loss": 1}, {"loss": 1, "t2": 1}]
    assert file.objects == 2


def test_what_is_no_json_is_counted(tmp_path):
    """A broken value costs itself."""
    broken = [field(16, text) for text in ("1.5x", "{", "--1", "nul", "9" * 5000 + "x")]
    file = read(tmp_path, [history({"loss": 1, **{f"k{i}": b for i, b in enumerate(broken)}})] * 3)

    assert table(file) == [{"loss": 1}] * 3
    assert file.unreadable == 15


def test_missing_values_are_no_values(tmp_path):
    """null, an empty value and a key alone are not logged; a huge integer is infinite."""
    record = history(
        {"null": None, "empty": field(16, ""), "alone": b"", "huge": field(16, "9" * 400)}
    )

    assert table(read(tmp_path, [record])) == [{"huge": float("inf")}]


def test_many_keys_in_few_records(tmp_path):
    """Rows of thousands of keys, each row with keys of its own."""
    records = [history({f"row {i}/key {k}": k + i for k in range(3000)}) for i in range(4)]
    file = read(tmp_path, records)

    assert table(file) == [{f"row {i}/key {k}": k + i for k in range(3000)} for i in range(4)]


def test_records_across_blocks(tmp_path):
    """A record of many blocks is read whole, and so are those around it."""
    wide = history({f"key {k}": k for k in range(10_000)})
    file = read(tmp_path, [*rows(3), wide, *rows(3, first=3)])

    assert file.height == 7
    assert len(table(file)[3]) == 10_000
    assert not file.damaged


@pytest.mark.parametrize("pad", range(7))
def test_padding_at_the_end_of_a_block(tmp_path, pad):
    """Fewer than 7 bytes at the end of a block are zeros."""
    used = len(framed(rows(10))[0])
    filler = BLOCK - used - pad - 7 - 2 - 4
    records = [*rows(10), field(4, bytes(filler)), *rows(10, first=10)]
    data, spans = framed(records)
    file = read_bytes(tmp_path, data)

    assert BLOCK - spans[10][1] == pad
    assert (file.height, file.damaged, file.torn) == (20, (), 0)


def test_other_records_and_unknown_fields_are_passed_by(tmp_path):
    """Summaries, console output, and fields that are not known yet."""
    strange = field(2, field(1, item("loss", 9.5) + field(77, "new")) + field(200, "info"))
    records = [field(3, b"\x0a\x00"), field(4, "out"), strange, field(99, 5) + history({"a": 1})]
    file = read(tmp_path, records * 40)

    assert table(file) == [{"loss": 9.5}, {"a": 1}] * 40
    assert not file.damaged


def test_a_key_given_twice_counts_once(tmp_path):
    """The last value of a record is its value."""
    twice = field(2, field(1, item("a", 1)) + field(1, item("a", 2)))
    (column,) = read(tmp_path, [twice]).columns.values()

    assert column.values[-1] == 2


def test_what_is_said_of_the_run(tmp_path):
    """Run, configuration with updates and removals, machine, exit code."""
    update = field(5, field(1, field(2, "a") + field(2, "b") + field(16, "5")))
    removal = field(5, field(2, field(1, "lr")))
    machine = field(
        26, field(18, "H100") + field(19, 8) + field(27, field(1, "nnodes") + field(2, "4"))
    )
    start = run_record(name="nice", values={"lr": 3e-4, "seed": 1, "_wandb": {}}, started=5)
    about = read(tmp_path, [start, update, removal, machine, *rows(1), exit_record(255)]).about

    assert (about.run_id, about.name, about.project, about.started) == ("abcd1234", "nice", "p", 5)
    assert about.config == {"seed": 1, "a": {"b": 5}}
    assert (about.gpu, about.gpu_count, about.nodes, about.exit_code) == ("H100", 8, 4, 255)
    assert read(tmp_path, [exit_record(-9)]).about.exit_code == -9
    assert read(tmp_path, rows(1)).about.exit_code is None


JSON_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=20),
    st.lists(st.integers(), max_size=3),
)


@given(
    st.lists(
        st.dictionaries(
            st.text(max_size=12).filter(lambda k: k < "\ud800"), JSON_VALUES, max_size=6
        ),
        max_size=40,
    ),
    st.booleans(),
)
@example([{"a": 2**60 + 1}] * 33, True)
def test_values_are_what_json_says(tmp_path_factory, logged, nested):
    """Whatever was logged is read as Python's own parser reads it."""
    logged = [{k: v for k, v in r.items() if k.isprintable() and k.isascii()} for r in logged]
    folder = tmp_path_factory.mktemp("w")
    file = read(folder, [history(values, nested=nested) for values in logged])
    wanted = [
        {
            k: v if isinstance(v, str) else float(json.loads(said(v)))
            for k, v in values.items()
            if v is not None and not isinstance(v, list)
        }
        for values in logged
    ]

    assert same(table(file), wanted)
    assert file.objects == sum(isinstance(v, list) for values in logged for v in values.values())
