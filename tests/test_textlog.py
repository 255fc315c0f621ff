"""The ground of the text readers: numbers, prefixes, chunks, layouts, ranks, runs, damage."""

import contextlib
import math
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from stabcli.assembly import LINE
from stabcli.errors import LogError
from stabcli.readers import read_runs
from stabcli.textlog import reading
from stabcli.textlog.grammar import GRAMMARS
from stabcli.textlog.hygiene import peel, scrubbed, seconds
from stabcli.textlog.numbers import is_missing, number
from stabcli.textlog.reading import read as read_log
from tests.conftest import SAMPLES
from tests.samples import name
from tests.textlogs import grammar_of, grammars, read, samples

NAN = math.nan
TEXT = (SAMPLES / "megatron/bad_batch.log").read_bytes()
LINES = [line for line in TEXT.split(b"\n") if b"] iteration" in line]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.5", 1.5),
        ("2.345678E+00", 2.345678),
        ("1,023,998", 1023998.0),
        ("1_000", 1000.0),
        (".5", 0.5),
        ("-.5e3", -500.0),
        ("56.129s", 56.129),
        ("449.03ms", 0.44903),
        ("512.10 ms", 0.5121),
        ("0.75m", 45.0),
        ("1.26B", 1.26e9),
        ("874K", 874e3),
        ("1.05M", 1.05e6),
        ("37.91%", 0.3791),
        ("48.87GiB", 48.87),
        ("118.3TFLOPS", 118.3),
        ("'0.8812'", 0.8812),
        ("np.float64(0.51)", 0.51),
        ("tensor(0.52, device='cuda:0')", 0.52),
        ("Array(0.5, dtype=float32)", 0.5),
        ("inf", math.inf),
        ("-Infinity", -math.inf),
        ("INF", math.inf),
        ("infE", math.inf),
        ("1.#INF", math.inf),
        ("-inf.", -math.inf),
        ("1h 19m 10s", 4750.0),
        ("2d 0h 1m 1.5s", 172861.5),
    ],
)
def test_number_in_every_spelling(text: str, value: float):
    """Times come out in seconds, percentages as fractions, counts in full."""
    assert number(text) == pytest.approx(value)


@pytest.mark.parametrize(
    "text",
    [
        "nan",
        "NaN",
        "NAN",
        "-nan",
        "+nan",
        "nan(ind)",
        "1.#QNAN",
        "'nan'",
        "np.float32(nan)",
        "nan.0",
    ],
)
def test_nan_in_every_spelling(text: str):
    """NaN is a number that was logged."""
    value = number(text)

    assert value is not None
    assert math.isnan(value)


@pytest.mark.parametrize(
    "text", ["", "abc", "nano", "inference", "1.2.3", "17:20:00", "1 of 2", "{x}"]
)
def test_text_is_no_number(text: str):
    """What merely begins like a number is none."""
    assert number(text) is None


def test_missing_is_not_nan():
    """Words for no value are told from text that is wrong."""
    assert all(is_missing(t) for t in ("", "n/a", "N/A", "None", "'null'", "???"))
    assert not any(is_missing(t) for t in ("nan", "0", "x"))


@pytest.mark.parametrize(
    ("line", "rest", "rank", "time"),
    [
        ("iter 5", "iter 5", None, None),
        ("[rank3]: iter 5", "iter 5", 3, None),
        ("[default2]:iter 5", "iter 5", 2, None),
        ("[1,7]<stdout>:iter 5", "iter 5", 7, None),
        ("12: iter 5", "iter 5", 12, None),
        ("slurm_procid 4 : iter 5", "iter 5", 4, None),
        ("(TaskRunner pid=9, ip=10.0.0.1) iter 5", "iter 5", None, None),
        ("2026-01-02T03:04:05.123Z stdout F iter 5", "iter 5", None, 1767323045.123),
        (
            "[2026-01-02 03:04:05,678] [INFO] [logging.py:96:log_dist] [Rank 0] iter 5",
            "iter 5",
            0,
            1767323045.678,
        ),
        (
            "[rank0]:[titan] 2026-01-02 03:04:05,678 - root - INFO - iter 5",
            "iter 5",
            0,
            1767323045.678,
        ),
        ("2026-01-02 03:04:05 | INFO | iter 5", "iter 5", None, 1767323045.0),
    ],
)
def test_prefixes_are_peeled(line: str, rest: str, rank: int | None, time: float | None):
    """Rank and time are kept of what launchers and loggers put in front."""
    peeled = peel(line)

    assert line[peeled.start :].lstrip(" |") == rest
    assert peeled.rank == rank
    assert (seconds(line[slice(*peeled.time)]) if peeled.time else None) == time


def test_colours_are_taken_off_and_no_line_is():
    """An escape sequence that is never closed ends with its line."""
    data = b"\x1b[31mred\x1b[0m\n\x1b]0;title\nnext\x1b(B\n\0\0nul\r\n"

    assert scrubbed(data) == b"red\n\nnext\nnul\n"


# ---- one log, however it is read ----


@pytest.mark.parametrize("path", samples(), ids=name)
def test_chunks_make_no_difference(path: Path):
    """A log reads the same in pieces of one kilobyte and as a whole."""
    grammar = grammar_of(path)
    whole, pieces = read_log(path, grammar), read_log(path, grammar, size=1024)

    assert whole.frame.height > 0
    assert_frame_equal(whole.frame, pieces.frame, check_column_order=False)
    assert (whole.lines, whole.bad, whole.config) == (pieces.lines, pieces.bad, pieces.config)


@pytest.mark.parametrize("path", samples(), ids=name)
def test_quick_way_agrees_with_the_slow_one(path: Path, monkeypatch, tmp_path: Path):
    """Lines read many at once give what they give one by one."""
    grammar = grammar_of(path)
    many = tmp_path / path.name
    many.write_bytes(path.read_bytes() * 8)
    monkeypatch.setattr(reading, "_PROBE", 2048)
    quick = read_log(many, grammar, size=30_000)
    monkeypatch.setattr(reading, "_TRIES", 0)
    slow = read_log(many, grammar)

    assert_frame_equal(quick.frame, slow.frame, check_column_order=False)
    assert quick.bad == slow.bad


def test_quick_way_is_taken(monkeypatch, tmp_path: Path):
    """All but the first lines of a log of like lines are read at once."""
    slow: list[str] = []
    parse = reading.Parser.parse
    monkeypatch.setattr(reading, "_PROBE", 2048)
    monkeypatch.setattr(
        reading.Parser, "parse", lambda self, text, **k: slow.append(text) or parse(self, text, **k)
    )
    path = tmp_path / "log"
    path.write_bytes(b"\n".join(LINES * 5) + b"\n")
    log = read_log(path, GRAMMARS["megatron"])

    assert log.frame.height == len(LINES) * 5
    assert len(slow) < 20


SPELT = st.one_of(
    st.floats().map(repr),
    st.floats(allow_nan=False).map(lambda x: f"{x:.6E}"),
    st.sampled_from(
        [
            "nan",
            "-nan",
            "NAN",
            "inf",
            "1_0",
            "+5",
            "1e400",
            "n/a",
            "",
            "x",
            "0x10",
            "1,000",
            "5 ms",
            "٣",
        ]
    ),
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 10**9) | st.sampled_from(["1e5", "+7", "7.5", "nan"]), SPELT, SPELT
        ),
        min_size=1,
        max_size=12,
    ),
    noise=st.binary(max_size=6).filter(lambda b: b"\n" not in b),
)
def test_quick_way_agrees_on_odd_values(rows, noise: bytes, monkeypatch, tmp_path: Path):
    """Whatever stands in place of a number is read the same way both ways."""
    grammar = GRAMMARS["megatron"]
    lines = LINES[:30] + [
        f" [2026-01-01 08:00:16.435000] iteration {step:>8}/    1000 | lm loss: {loss} | grad norm: {norm} |".encode()
        + noise * (i % 2)
        for i, (step, loss, norm) in enumerate(rows)
    ]
    usual = (
        f" [2026-01-01 08:00:16.435000] iteration {5:>8}/    1000 | lm loss: 2.0 | grad norm: 1.0 |"
    )
    path = tmp_path / "log"
    path.write_bytes(b"\n".join([usual.encode()] * 30 + lines) + b"\n")
    with monkeypatch.context() as patch:
        patch.setattr(reading, "_PROBE", 256)
        quick = read_log(path, grammar)
        patch.setattr(reading, "_TRIES", 0)
        slow = read_log(path, grammar)

    assert_frame_equal(quick.frame, slow.frame, check_column_order=False)
    assert quick.bad == slow.bad


# ---- damage ----


@pytest.mark.parametrize("grammar", grammars())
@settings(max_examples=10)
@given(data=st.data())
def test_one_byte_costs_one_line(grammar: str, data, tmp_path_factory):
    """A flipped byte changes nothing but its own line."""
    path = data.draw(st.sampled_from([p for p in samples() if p.parent.name == grammar]))
    whole = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(whole) - 1).filter(lambda i: whole[i] != 10))
    line = whole.count(b"\n", 0, at) + 1
    whole[at] = data.draw(st.integers(0, 255).filter(lambda b: b != 10))
    broken = tmp_path_factory.mktemp("flipped") / path.name
    broken.write_bytes(bytes(whole))
    before = read_log(path, grammar_of(path)).frame.filter(pl.col(LINE) != line)
    after = read_log(broken, grammar_of(path)).frame
    kept = [c for c in before.columns if c in after.columns and not c.startswith("@bar")]

    assert_frame_equal(after.filter(pl.col(LINE) != line).select(kept), before.select(kept))


@pytest.mark.parametrize("grammar", grammars())
@settings(max_examples=8)
@given(data=st.data())
def test_any_damage_is_survived(grammar: str, data, tmp_path_factory):
    """Bytes cut out, put in, doubled or swapped: a run or one clear error comes out."""
    path = data.draw(st.sampled_from([p for p in samples() if p.parent.name == grammar]))
    whole = path.read_bytes()
    for _ in range(data.draw(st.integers(1, 4))):
        a, b = sorted(data.draw(st.tuples(st.integers(0, len(whole)), st.integers(0, len(whole)))))
        b = min(b, a + 400)
        put = data.draw(st.binary(max_size=20) | st.just(whole[a:b] * 2) | st.just(b"\r" * 5))
        whole = whole[:a] + put + whole[b:]
    broken = tmp_path_factory.mktemp("broken") / path.name
    broken.write_bytes(whole or b"x")
    runs = []
    with contextlib.suppress(LogError):
        runs, _ = read_runs([str(broken)], format_name=grammar)

    assert all(run.frame.height for run in runs)


@pytest.mark.parametrize("grammar", grammars())
@settings(max_examples=8)
@given(data=st.data())
def test_cut_anywhere_keeps_what_came_before(grammar: str, data, tmp_path_factory):
    """A log cut at any byte gives the rows of its whole lines, and says that its last has no end."""
    path = data.draw(st.sampled_from([p for p in samples() if p.parent.name == grammar]))
    whole = path.read_bytes()
    at = data.draw(st.integers(1, len(whole) - 1))
    cut = tmp_path_factory.mktemp("cut") / path.name
    cut.write_bytes(whole[:at])
    last = whole.count(b"\n", 0, at) + 1
    before = read_log(path, grammar_of(path)).frame.filter(pl.col(LINE) < last)
    log = read_log(cut, grammar_of(path))
    after = log.frame.filter(pl.col(LINE) < last) if log.frame.height else before[:0]
    kept = [c for c in before.columns if c in after.columns]

    assert_frame_equal(after.select(kept), before.select(kept))
    torn = log.frame.filter(pl.col(LINE) == last) if log.frame.height else before[:0]
    assert not torn.height or whole[at - 1] == 10 or any("no end" in note for note in log.notes)


def test_cut_value_is_not_taken(tmp_path: Path):
    """Of a last line without end the last number may be half of one: it is left out."""
    path = tmp_path / "log"
    path.write_bytes(b"iter 1: loss 2.5, time 10.0ms, mfu 5.00%\ns:2 trl:2.94 lr:0.1 norm:1.2")
    log = read_log(path, GRAMMARS["llmc"])

    assert log.frame["loss (trl)"].to_list() == [2.94]
    assert "norm" not in log.frame.columns


def test_cut_nan_is_taken(tmp_path: Path):
    """Half a number is never NaN: the last value of a torn line is kept where it is that."""
    path = tmp_path / "log"
    path.write_bytes(b"s:2 trl:nan")

    assert math.isnan(read_log(path, GRAMMARS["llmc"]).frame["loss (trl)"][0])


def test_a_line_without_end_is_passed_by(tmp_path: Path):
    """A line longer than can be is counted; the good ones around it are kept."""
    path = tmp_path / "log"
    path.write_bytes(LINES[0] + b"\n" + b"iteration " * 30_000 + b"\n" + LINES[1] + b"\n")
    log = read_log(path, GRAMMARS["megatron"], longest=100_000)

    assert log.frame["step"].to_list() == [501.0, 502.0]
    assert log.frame[LINE].to_list() == [1, 3]
    assert log.bad.count == 1
    long = read_log(path, GRAMMARS["megatron"])
    assert (long.frame[LINE].to_list(), long.bad.count) == ([1, 3], 1)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-8-sig"])
def test_other_encodings(encoding: str, tmp_path: Path):
    """A log that PowerShell redirected is UTF-16."""
    text = TEXT.decode()
    mark = b"\xfe\xff" if encoding == "utf-16-be" else b""
    run = read(tmp_path / "log", mark + text.encode(encoding))

    assert (run.reader, run.frame.height) == ("megatron", 200)


def test_nul_bytes_of_a_crash(tmp_path: Path):
    """NUL bytes between the lines, as crashes of a node leave them, cost nothing."""
    text = b"\n".join(LINES[:50]) + b"\n" + b"\0" * 4096 + b"\n".join(LINES[50:]) + b"\n"

    assert read(tmp_path / "log", text).frame.height == 200


def test_a_short_log_that_is_mostly_nul_bytes(tmp_path: Path):
    """It is recognised by its lines; and so is UTF-16 that lost its mark, or was appended."""
    for text in (
        LINES[0] + b"\n" + b"\0" * 9000 + LINES[1] + b"\n",
        b"\n".join(LINES).decode().encode("utf-16-le"),
        b"\n".join(LINES[:50]) + b"\n" + b"\n".join(LINES[50:]).decode().encode("utf-16"),
    ):
        run = read(tmp_path / "log", text)
        assert (run.reader, run.frame["step"][1]) == ("megatron", 502)


def test_all_lines_that_cannot_be_read_are_told_of(tmp_path: Path):
    """Half the lines spell their numbers in a way that no reader knows: each of them is counted."""
    odd = [line.replace(b"] iteration  ", b"] iteration \xe2\x88\x92") for line in LINES[:30]]
    run = read(tmp_path / "log", b"\n".join([*odd, *LINES[30:60]]) + b"\n")

    assert (run.frame.height, run.bad.count) == (30, 30)


def test_windows_line_ends(tmp_path: Path):
    """Lines may end in carriage return and line feed."""
    text = TEXT.replace(b"\n", b"\r\n")

    assert read(tmp_path / "log", text).frame.height == 200


def test_lines_are_where_they_are_said_to_be(tmp_path: Path):
    """Line numbers are those that an editor shows, whatever stands between."""
    text = b"\n\n  noise\r 5%|# | 1/2 [00:01<00:02, 1it/s]\n" + b"\n\n".join(LINES[:5]) + b"\n"
    run = read(tmp_path / "log", text)

    assert run.frame["line"].to_list() == [4, 6, 8, 10, 12]
