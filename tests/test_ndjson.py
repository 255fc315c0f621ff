"""Lines of JSON: equal to Python's own parser line by line, whatever lies between the lines."""

import json
import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stabcli import ndjson
from stabcli.ndjson.chunks import chunks
from stabcli.ndjson.lines import Rows, flatten
from stabcli.ndjson.reading import _line_numbers
from tests.conftest import SAMPLES


def _write(folder: Path, data: bytes | list[str], name: str = "log.jsonl") -> Path:
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else ("\n".join(data) + "\n").encode())
    return path


def _expected(lines: list[bytes]) -> tuple[list[dict], list[int]]:
    """What json.loads makes of every line: the oracle."""
    rows, numbers = [], []
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            rows.append(flatten(value))
            numbers.append(number)
    return rows, numbers


def _same(found: object, expected: object) -> bool:
    if isinstance(found, str) and isinstance(expected, float | int):
        found = float(found)  # numbers and text mixed in one column
    if isinstance(found, float) and isinstance(expected, int | str):
        expected = float(expected)  # a whole number, or text that is a number
    return found == expected or (found != found and expected != expected)


def _check(table: ndjson.Table, rows: list[dict], numbers: list[int]) -> None:
    frame = table.frame

    assert frame.height == len(rows)
    if not rows:
        return
    assert frame["@line"].to_list() == numbers
    logged = {n for row in rows for n, v in row.items() if v is not None}
    assert logged == {c for c in frame.columns if c != "@line"}
    for name in logged:
        values = frame[name].to_list()
        wrong = [(i, v) for i, v in enumerate(values) if not _same(v, rows[i].get(name))]
        assert not wrong, (name, wrong[:3], rows[wrong[0][0]])


def _big() -> list[bytes]:
    """20,000 lines: NaN, infinities, a late column, whole numbers then fractions, odd text."""
    rows = []
    for i in range(20_000):
        row = {"step": i, "loss": 1 / (i + 1), "n": 1 if i < 9000 else 1.5, "a:b": i / 7}
        if i > 14_000:
            row["late"] = i
        if i % 777 == 0:
            row["loss"] = [math.nan, math.inf, -math.inf][i % 3]
        if i % 501 == 0:
            row["text"] = '": NaN, Infinity -Infinity \\" NaN: NaN, : null,'
        if i == 17_000:
            row["once: NaN, x"] = math.nan
        rows.append(json.dumps(row).encode())
    return rows


def test_every_cell_of_many_chunks_is_what_json_says(tmp_path: Path) -> None:
    """Cut into chunks of any size, a log of 20,000 odd rows equals json.loads of every line."""
    lines = _big()
    path = _write(tmp_path, b"\n".join(lines) + b"\n")
    rows, numbers = _expected(lines)
    for size in (1 << 24, 300_000, 70_001):
        _check(ndjson.read_lines(path, size=size), rows, numbers)


def test_the_quick_way_is_taken_where_it_can_be(tmp_path: Path, monkeypatch) -> None:
    """A healthy log with NaN in it never goes line by line."""
    path = _write(tmp_path, b"\n".join(_big()[:14_000]) + b"\n")

    def refuse(*_args, **_kwargs):
        raise AssertionError("read line by line")

    monkeypatch.setattr("stabcli.ndjson.reading.Rows", refuse)
    assert ndjson.read_lines(path, size=500_000).frame.height == 14_000


def test_only_torn_lines_go_line_by_line(tmp_path: Path, monkeypatch) -> None:
    """A few lines that break off do not make their neighbours slow to read."""
    lines = _big()[:14_000]
    for at in (3000, 3001, 9000):
        lines[at] = lines[at][: len(lines[at]) // 2]
    path = _write(tmp_path, b"\n".join(lines) + b"\n" + lines[0][:-3])
    slow: list[int] = []
    add_lines = Rows.add_lines

    def watched(self: Rows, data: bytes, numbers: list[int], *, cut: bool) -> None:
        slow.extend(numbers)
        add_lines(self, data, numbers, cut=cut)

    monkeypatch.setattr(Rows, "add_lines", watched)
    table = ndjson.read_lines(path, size=500_000)

    assert slow == [3001, 3002, 9001, 14_001]
    assert [n for n, _ in table.bad.first] == slow
    _check(table, *_expected(lines))


def test_bad_lines_are_counted_and_placed_and_cost_no_good_row(tmp_path: Path) -> None:
    """Broken, blank and foreign lines in a large log: the rest keeps its values and line numbers."""
    lines = _big()
    wrong = {100: b'{"step": 1, bad', 4001: b"NaN", 9000: b"Epoch 3/10 done", 15_000: b"[1, 2]"}
    for number, line in wrong.items():
        lines[number - 1] = line
    lines[5000] = b"  "
    lines[5001] = b"\r"
    path = _write(tmp_path, b"\n".join(lines) + b"\n" + b'{"step": 20001, "lo')
    table = ndjson.read_lines(path, size=400_000)

    _check(table, *_expected(lines))
    assert table.bad.count == 5
    assert [n for n, _ in table.bad.first] == [100, 4001, 9000, 15_000, 20_001]
    reasons = [why for _, why in table.bad.first]
    assert reasons[1] == "no JSON object but a number"
    assert reasons[2] == "text, no JSON object"
    assert reasons[3] == "no JSON object but a list"
    assert reasons[4] == "cut short: the file ends inside it"
    assert any("line, 20,001, is cut short" in note for note in table.notes)


def test_all_lines_odd(tmp_path: Path) -> None:
    """Where the quick way fails on every line, all is still read."""
    lines = [b'prefix {"step": %d, "loss": nan, "l": [{"a": "\\u003a"}]}' % i for i in range(5000)]
    table = ndjson.read_lines(_write(tmp_path, b"\n".join(lines) + b"\n"))

    assert table.frame["step"].to_list() == list(range(5000))
    assert table.frame["loss"].is_nan().all()
    assert not table.bad.count


ODDITIES = {
    "crlf": (b'{"step":1,"loss":2}\r\n{"step":2,"loss":1}\r\n', [2.0, 1.0], []),
    "no last line end": (b'{"step":1,"loss":2}\n{"step":2,"loss":1}', [2.0, 1.0], []),
    "utf-8 mark": (b'\xef\xbb\xbf{"step":1,"loss":2}\n', [2.0], []),
    "utf-16": ('{"step":1,"loss":2}\n{"step":2,"loss":1}\n'.encode("utf-16"), [2.0, 1.0], []),
    "utf-16 be": (b"\xfe\xff" + '{"step":1,"loss":2}\n'.encode("utf-16-be"), [2.0], []),
    "not utf-8": (b'{"step":1,"loss":2,"x":"\xff"}\n{"step":2,"loss":1}\n', [2.0, 1.0], []),
    "nul before": (b'{"step":1,"loss":2}\n\0\0\0{"step":2,"loss":1}\n', [2.0, 1.0], []),
    "nul line": (b'{"step":1,"loss":2}\n\0\0\0\n', [2.0], [2]),
    "torn then resumed": (
        b'{"step":1,"loss":2}\n{"step":2,"lo{"step":2,"loss":1}\n',
        [2.0, 1.0],
        [2],
    ),
    "torn nested": (b'{"step":1,"loss":2}\n{"step":2,"m":{"loss":1}\n', [2.0], [2]),
    "headless": (b'ss":3,"m":{"loss":1}}\n{"step":1,"loss":2}\n', [2.0], [1]),
    "two on a line": (b'{"step":1,"loss":2}{"step":2,"loss":1}\n', [2.0, 1.0], []),
    "rank in front": (b'[rank0]: {"step":1,"loss":2}\n', [2.0], []),
    "lower-case nan": (
        b'{"step":1,"loss":nan}\n{"step":2,"loss":-inf}\n',
        [math.nan, -math.inf],
        [],
    ),
    "text nan": (
        b'{"step":1,"loss":"NaN"}\n{"step":2,"loss":"-Infinity"}\n{"step":3,"loss":1}\n',
        [math.nan, -math.inf, 1.0],
        [],
    ),
    "beyond floats": (
        b'{"step":1,"loss":1e400}\n{"step":2,"loss":-1e400}\n',
        [math.inf, -math.inf],
        [],
    ),
    "huge whole number": (b'{"step":1,"loss":1%s}\n' % (b"0" * 400), [math.inf], []),
    "equal keys": (b'{"step":1,"loss":3,"loss":2}\n{"step":2,"loss":1}\n', [2.0, 1.0], []),
    "escaped key": (b'{"step":1,"\\u006coss":2}\n', [2.0], []),
    "half a surrogate": (b'{"step":1,"loss":2,"x":"\\ud800","\\udfff":1}\n', [2.0], []),
    "bool": (b'{"step":1,"loss":true}\n{"step":2,"loss":2.5}\n', [1.0, 2.5], []),
    "empty objects": (b'{}\n{"step":1,"loss":2}\n{}\n', [2.0], []),
    "list of objects": (b'{"step":1,"loss":2,"l":[{"loss":5}]}\n', [2.0], []),
    "object or number": (
        b'{"step":1,"loss":2,"x":1}\n{"step":2,"loss":1,"x":{"y":2}}\n',
        [2.0, 1.0],
        [],
    ),
    "object or text": (
        b'{"step":1,"loss":2,"x":"a"}\n{"step":2,"loss":1,"x":{"y":2}}\n',
        [2.0, 1.0],
        [],
    ),
    "bomb": (
        b'{"step":1,"loss":2}\n{"a":%s1%s\n' % (b'{"a":' * 100_000, b"}" * 100_001),
        [2.0],
        [2],
    ),
    "deep": (b'{"step":1,"loss":2,"a":%s1%s}\n' % (b'{"a":' * 300, b"}" * 300), [2.0], []),
    "bomb of lists": (b'{"step":1,"loss":2}\n{"a":%s\n' % (b"[" * 100_000), [2.0], [2]),
}


@pytest.mark.parametrize("name", ODDITIES)
def test_oddity(tmp_path: Path, name: str) -> None:
    """Each oddity alone: the losses that are read, and the lines that are called bad."""
    data, losses, bad = ODDITIES[name]
    table = ndjson.read_lines(_write(tmp_path, data))
    found = table.frame.drop_nulls("step")["loss"].cast(pl.Float64).to_list()

    assert len(found) == len(losses)
    assert name == "empty objects" or table.frame.height == len(losses)
    assert all(_same(a, b) for a, b in zip(found, losses, strict=True)), found
    assert [number for number, _ in table.bad.first] == bad
    assert table.bad.count == len(bad)


@pytest.mark.parametrize(
    "line",
    [
        b'{"step":2,"late":5,"x":"\\u003a"}',
        b'{"step":2,"late":5,"x":": null,"}',
        b'{"step":2,"late":5,": null, ":1}',
        b'{"step":2,"late":{"x":5},"late/x":6}\n{"step":3,"late/x":7}',
        b'{"step":2,"loss":-1.3345678901234567e+301,"x":"y"}\n{"step":3,"loss":NaN}',
        b'{"step":2,"x":{"loss":5}}',
        b'{"step":2,"loss":1.5,"x":"not \\"loss\\": NaN, nor \\"loss\\":-Infinity }"}',
        b'{"step":2,"loss\\\\":NaN,"x":"a"}\n{"step":3,"loss":NaN}',
    ],
)
def test_what_could_fool_the_count_of_keys(tmp_path: Path, line: bytes) -> None:
    """A key that the schema lacks is found even where text makes up for its colon."""
    lines = [b'{"step":1,"loss":2.5,"x":"a"}'] * 4000 + line.split(b"\n")
    table = ndjson.read_lines(_write(tmp_path, b"\n".join(lines) + b"\n"))

    _check(table, *_expected(lines))


def test_line_numbers_are_given_only_where_they_are_sure() -> None:
    """One row a line, or one a line that is not blank; anything else is refused."""
    data = b"{}\n\n {}\n"

    numbers = np.array([5, 8, 9])

    assert _line_numbers(data, numbers, 3).tolist() == [5, 8, 9]
    assert _line_numbers(data, numbers, 2).tolist() == [5, 9]
    assert _line_numbers(data, numbers, 1) is None


def test_a_line_of_any_length_is_passed_over(tmp_path: Path) -> None:
    """A line beyond the limit is one bad line; what stands around it is read."""
    long = b'{"step": 2, "x": "' + b"x" * 500_000 + b'"}\n'
    path = _write(tmp_path, b'{"step": 1}\n' + long + b'{"step": 3}\n' + long[:-1])
    table = ndjson.read_lines(path, size=1000, longest=1 << 16)

    assert table.frame["step"].to_list() == [1, 3]
    assert table.frame["@line"].to_list() == [1, 3]
    assert [n for n, _ in table.bad.first] == [2, 4]


_names = st.text(max_size=6) | st.sampled_from(
    ["loss", "a:b", 'q"', "x/y", "null", "NaN", ": null,"]
)
_numbers = st.floats() | st.integers(-(2**70), 2**70) | st.booleans()
_values = (
    _numbers | st.none() | st.text(max_size=8) | st.sampled_from([": NaN, x", ": null}", "NaN"])
)
_rows = st.lists(
    st.fixed_dictionaries(
        {"step": st.integers(0, 10**9)},
        optional={"loss": _numbers, "m": st.dictionaries(_names, _numbers, max_size=3)},
    ).flatmap(
        lambda row: st.dictionaries(_names, _values, max_size=4).map(lambda more: more | row)
    ),
    min_size=1,
    max_size=12,
)


@settings(deadline=None, max_examples=60)
@given(rows=_rows, size=st.sampled_from([50, 1 << 24]), ascii_only=st.booleans())
def test_read_of_write_is_the_same(tmp_path_factory, rows, size, ascii_only) -> None:
    """What json.dumps wrote is read back, cell for cell, whatever its keys and values."""
    lines = [json.dumps(row, ensure_ascii=ascii_only).encode("utf-8", "replace") for row in rows]
    path = _write(tmp_path_factory.mktemp("j"), b"\n".join(lines) + b"\n")
    expected, numbers = _expected(lines)
    table = ndjson.read_lines(path, size=size)

    assert table.bad.count == 0
    assert table.frame["@line"].to_list() == numbers
    wrapped = {"data/", "metrics/"}
    if not any(n.startswith(tuple(wrapped)) for row in expected for n in row):
        for name in {n for row in expected for n, v in row.items() if v is not None} - {"@line"}:
            values = table.frame[name].to_list()
            for found, row in zip(values, expected, strict=True):
                assert _alike(found, row.get(name)), (name, found, row.get(name))


def _alike(found: object, expected: object) -> bool:
    """Equal, but for text in a column of numbers and numbers in a column of text."""
    if isinstance(expected, str) and not isinstance(found, str):
        return True
    if isinstance(found, str) and isinstance(expected, bool):
        return found in ("true", "false", "1.0", "0.0")
    if isinstance(found, float) and isinstance(expected, int):
        return found == float(expected)
    return _same(found, expected)


@settings(deadline=None, max_examples=60)
@given(cut=st.integers(0, 400), damage=st.binary(max_size=3))
def test_cut_or_damaged_anywhere_it_keeps_the_whole_rows(tmp_path_factory, cut, damage) -> None:
    """Truncated at any byte, or with foreign bytes there, every line that is whole is a row."""
    lines = [b'{"step": %d, "loss": NaN, "x": {"y": "caf\xc3\xa9 {"}}' % i for i in range(8)]
    data = b"\n".join(lines) + b"\n"
    data = data[:cut] + damage + (data[cut:] if damage else b"")
    table = ndjson.read_lines(_write(tmp_path_factory.mktemp("j"), data))
    whole = [n for n, line in enumerate(data.split(b"\n"), 1) if line in lines]

    found = table.frame["@line"].to_list() if table.frame.width else []
    assert set(whole) <= set(found)
    filled = [n for n, line in enumerate(data.split(b"\n"), 1) if line.strip(b" \t\r")]
    assert len(filled) <= len(set(found)) + table.bad.count


@pytest.mark.parametrize("path", sorted((SAMPLES / "jsonl").glob("*.jsonl")), ids=lambda p: p.name)
def test_samples_are_what_json_says(path: Path) -> None:
    """Every sample equals json.loads of every line."""
    lines = path.read_bytes().splitlines()
    rows, numbers = _expected(lines)
    table = ndjson.read_lines(path)
    found = dict(zip(table.frame["@line"].to_list(), table.frame["step"].to_list(), strict=True))

    assert set(numbers) <= set(found)
    assert all(_same(found[n], row.get("step")) for n, row in zip(numbers, rows, strict=True))


def test_real_logs(shared_data: Path) -> None:
    """Real JSON lines equal json.loads of every line, and none of them is bad."""
    paths = sorted((shared_data / "text").rglob("*.jsonl"))

    assert paths
    for path in paths:
        table = ndjson.read_lines(path)
        _check(table, *_expected(path.read_bytes().splitlines()))
        assert table.bad.count == 0


def test_a_file_that_grows_while_it_is_read_is_one_state_of_it(tmp_path: Path) -> None:
    """What is appended after the first chunk is not read half, and costs no line before it."""
    path = tmp_path / "live.jsonl"
    line = b'{"step": 1, "loss": 2.0}\n'
    path.write_bytes(line * 100 + line[:9])
    found = chunks(path, size=600)
    first = next(found)
    with path.open("ab") as file:
        file.write(line[9:] + line * 50)
    rest = list(found)

    data = first.data + b"".join(c.data for c in rest)
    assert data == line * 100 + line[:9]
    assert [c.cut for c in rest[:-1]] == [False] * (len(rest) - 1)
    assert rest[-1].cut
