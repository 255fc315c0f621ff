import csv as stdlib_csv
import io
import math

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stabcli.assembly import LINE, Options, assemble
from stabcli.errors import LogError, StabError
from stabcli.readers import readers
from stabcli.readers.csv import csv, matches
from stabcli.sources import open_source
from tests.conftest import SAMPLES

NAN = float("nan")


@pytest.fixture
def log(tmp_path):
    """Write a file and open it."""

    def write(content, name="log.csv"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return open_source(path)

    return write


def runs(source):
    return [assemble(reading, source, "csv", Options()) for reading in csv(source)]


def the_run(source):
    (run,) = runs(source)
    return run


def values(run, metric):
    return ["NaN" if v is not None and math.isnan(v) else v for v in run.frame[metric].to_list()]


HEALTHY = "step,loss,lr\n" + "".join(f"{s},{3 - s / 100},0.0003\n" for s in range(50))


def test_a_plain_table_gives_its_numbers_and_nothing_else(log):
    """No note, no bad line, every value as written, every row at its line."""
    run = the_run(log(HEALTHY))

    assert values(run, "loss") == [3 - s / 100 for s in range(50)]
    assert run.frame["line"].to_list() == list(range(2, 52))
    assert run.notes == ()
    assert run.bad.count == 0
    assert len(run.attempts) == 1


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_separators_line_ends_and_byte_order_marks_change_nothing(log, separator, end, mark):
    run = the_run(log(mark + HEALTHY.replace(",", separator).replace("\n", end)))

    assert values(run, "loss") == [3 - s / 100 for s in range(50)]
    assert run.frame["line"].to_list() == list(range(2, 52))
    assert run.notes == ()
    assert run.bad.count == 0


@pytest.mark.parametrize(
    "cell", ["nan", "NaN", "NAN", "-nan", "inf", "Infinity", "-inf", "-Infinity", '"nan"']
)
def test_non_finite_values_are_values(log, cell):
    run = the_run(log(f"step,loss\n1,2.5\n2,{cell}\n3,2.4\n"))
    value = run.frame["loss"][1]
    named = cell.strip('"').lower()

    assert math.isnan(value) if "nan" in named else math.isinf(value)
    assert (value < 0) == named.startswith("-inf")


def test_an_empty_cell_is_not_logged(log):
    run = the_run(log('step,loss,val_loss\n1,2.5,\n2,2.4,""\n3,2.3,2.6\n'))

    assert values(run, "val_loss") == [None, None, 2.6]


def test_a_float_late_after_integers_keeps_its_fraction(log):
    """A column that begins with a thousand integers is not one of integers."""
    rows = "".join(f"{s},{2 if s < 90_000 else 2.25}\n" for s in range(100_000))
    run = the_run(log("step,loss\n" + rows))

    assert run.frame["loss"][-1] == 2.25
    assert run.frame["loss"].sum() == 90_000 * 2 + 10_000 * 2.25


def test_a_column_first_filled_between_the_samples_is_still_one_of_numbers(log):
    """Nothing in head, middle or tail tells that the value in between is no float."""
    rows = [f"{s},2.5," for s in range(60_000)]
    rows[15_000] = "15000,2.5,12%"
    run = the_run(log("step,loss,tokens %\n" + "\n".join(rows) + "\n"))

    assert run.frame["tokens %"].drop_nulls().to_list() == [12.0]


def test_quoted_text_may_hold_the_separator_and_a_line_feed(log):
    text = 'step,comment,loss\n1,"a, b",2.5\n2,"first\nsecond",2.4\n3,"said ""no""",2.3\n'
    run = the_run(log(text))

    assert values(run, "loss") == [2.5, 2.4, 2.3]
    assert run.frame["line"].to_list() == [2, 3, 5]
    assert run.bad.count == 0


def test_a_lost_quote_costs_its_own_line_only(log):
    rows = [f'{s},"fine",{3 - s / 100}' for s in range(30)]
    rows[10] = '10,"torn'
    run = the_run(log("step,state,loss\n" + "\n".join(rows) + "\n"))

    assert run.frame["step"].to_list() == [s for s in range(30) if s != 10]
    assert run.bad.count == 1
    assert run.bad.first[0][0] == 12


def test_ragged_rows_are_counted_and_located_and_the_others_kept(log):
    run = the_run(log("step,loss,lr\n1,2.5,1e-3\n2,2.4\n3,2.3,1e-3,9\n\n4,2.2,1e-3\n"))

    assert run.frame["step"].to_list() == [1, 4]
    assert run.frame["line"].to_list() == [2, 6]
    assert run.bad.count == 2
    assert [line for line, _ in run.bad.first] == [3, 4]


def test_one_cell_that_is_no_number_does_not_cost_its_column(log):
    text = HEALTHY.replace("20,2.8,", "20,#REF!,")
    run = the_run(log(text))

    assert run.frame["loss"].count() == 49
    assert run.frame["loss"][20] is None
    assert run.bad.first == ((22, "loss: '#REF!' is not a number"),)


def test_a_header_in_the_middle_is_no_row_and_a_step_back_begins_an_attempt(log):
    text = "step,loss\n1,3.0\n2,2.9\n3,2.8\nstep,loss\n2,2.9\n3,2.7\n4,2.6\n"
    run = the_run(log(text))

    assert run.bad.count == 0
    assert [(a.first_step, a.last_step) for a in run.attempts] == [(1, 3), (2, 4)]
    assert any("repeat the header" in note for note in run.notes)


@pytest.mark.parametrize(
    ("tail", "kept"),
    [
        ("50,2.5,0.0003", 0.0003),  # as long as the values above it
        ("50,2.5,0.0", None),  # shorter: it may have been going on
        ("50,2.5,0.", None),
        ("50,2.5,nan", "NaN"),  # no number begins like this
        ("50,2.5,inf", math.inf),
        ('50,2.5,"0.1"', 0.1),  # the quote ends it
        ("50,2.5,", None),
    ],
)
def test_the_last_value_without_a_line_end_is_believed_where_it_must_be_whole(log, tail, kept):
    run = the_run(log(HEALTHY + tail))

    assert run.frame["step"][-1] == 50
    assert values(run, "learning_rate")[-1] == kept
    assert run.frame["loss"][-1] == 2.5


@pytest.mark.parametrize("tail", ["5", "50,", "50,2.5", '50,2.5,"0.00', "50,2.5,0.0003,1"])
def test_a_last_line_with_missing_fields_is_no_row(log, tail):
    run = the_run(log(HEALTHY + tail))

    assert run.frame["step"][-1] == 49
    assert run.bad.first == ((52, "the last line is cut short"),)


def test_decimal_commas_are_read_as_such_in_every_column():
    """0,512 is a half, not five hundred, where another column shows what commas are."""
    run = the_run(open_source(SAMPLES / "csv" / "semicolons.csv"))

    assert run.frame["grad_norm"].is_between(0.4, 0.8).all()
    assert run.frame["loss"].is_between(1, 9).all()
    assert run.notes == ("commas in numbers are taken as decimal points",)


def test_epochs_count_the_rows_where_nothing_else_does(log):
    """Keras logs a row an epoch."""
    run = the_run(log("epoch,loss,val_loss\n0,2.5,2.6\n1,2.4,2.5\n2,2.3,2.4\n"))

    assert run.frame["step"].to_list() == [0, 1, 2]
    assert run.notes == ("no column counts steps: 'epoch' is taken in its place",)


def test_a_table_without_anything_that_counts_is_an_error_that_names_its_columns(log):
    with pytest.raises(LogError, match=r"--map step=NAME.*loss, lr"):
        runs(log("loss,lr\n2.5,0.1\n2.4,0.1\n2.3,0.1\n"))


def test_a_column_of_run_names_parts_the_runs(log):
    found = runs(log("run,step,loss\na,1,2.5\na,2,2.4\nb,1,3.5\nb,2,3.4\n"))

    assert [run.name for run in found] == ["a", "b"]
    assert [values(run, "loss") for run in found] == [[2.5, 2.4], [3.5, 3.4]]
    assert [len(run.attempts) for run in found] == [1, 1]


@pytest.mark.parametrize(
    "text",
    [
        '{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2.4}\n',
        "iter 0: loss 10.9, time 40.1ms, mfu -100.00%\niter 1: loss 10.8, time 40.0ms, mfu 31.2%\n",
        "2026-01-02 03:04:05,678 - INFO - step: 1\n2026-01-02 03:04:06,678 - INFO - step: 2\n",
        "Iter 1: Train loss 2.3, It/sec 1.2, Tokens/sec 5\nIter 2: Train loss 2.2, It/sec 1.2, a 5\n",
        " iteration 1/ 10 | lm loss: 2.3E+00 |\n iteration 2/ 10 | lm loss: 2.2E+00 |\n",
        "1,2.5\n2,2.4\n",
        "step\n1\n2\n",
        "[[1.7e9, 1, 2.5], [1.7e9, 2, 2.4]]\n",
        "import os, sys\nimport json, math\n",
        "Hello, world\n",
        "name, year\nwords\nAda, 1815\nmore words\nand more\n",
        "\n\n",
        "s:0 tel:10.9\ns:0 trl:10.9 lr:0.1 norm:4.1\n",
    ],
)
def test_other_text_is_not_claimed(log, text):
    assert not matches(log(text))


@pytest.mark.parametrize(
    "text", ["step,loss\n", "step,loss", "# note\nstep,loss\n1,2\n", "# step,loss\n1,2\n2,3\n"]
)
def test_a_header_that_names_a_step_is_claimed(log, text):
    assert matches(log(text))


def test_samples_are_claimed_by_this_reader_alone():
    for path in sorted((SAMPLES / "csv").iterdir()):
        if path.suffix not in (".py", ".md"):
            source = open_source(path)

            assert [r.name for r in readers if r.matches(source)] == ["csv"], path


@pytest.mark.parametrize("text", ["step,loss\n", "step,loss", "step,loss\n\n\n"])
def test_no_row_is_no_reading(log, text):
    assert list(csv(log(text))) == []


def test_forced_onto_something_else_it_says_what_is_missing(log):
    with pytest.raises(LogError, match=r"log.csv: no header line .*: give the file"):
        list(csv(log("hello\n")))


def test_all_nan_one_row_and_constant_tables_are_read(log):
    assert values(the_run(log("step,loss\n1,2.5\n")), "loss") == [2.5]
    assert values(the_run(log("step,loss\n1,nan\n2,nan\n")), "loss") == ["NaN", "NaN"]
    assert values(the_run(log("step,loss\n1,2\n2,2\n")), "loss") == [2, 2]
    assert the_run(log("step,loss\n1,2\n1,3\n")).frame.height == 1


# ---- properties ----

FLOATS = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True))
TABLES = st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=30)
QUIET = settings(
    deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def written(rows, separator=",", end="\n", quoting=stdlib_csv.QUOTE_MINIMAL):
    out = io.StringIO()
    writer = stdlib_csv.writer(out, delimiter=separator, lineterminator=end, quoting=quoting)
    writer.writerow(["step", "loss", "grad_norm"])
    writer.writerows((s, *row) for s, row in enumerate(rows))
    return out.getvalue()


def same(a, b):
    return a == b or (a is not None and b is not None and math.isnan(a) and math.isnan(b))


@given(
    TABLES,
    st.sampled_from([",", ";", "\t"]),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([stdlib_csv.QUOTE_MINIMAL, stdlib_csv.QUOTE_ALL]),
)
@QUIET
def test_what_was_written_is_read(log, rows, separator, end, quoting):
    """read(write(x)) = x, to the bit, with NaN, infinities and gaps."""
    (reading,) = csv(log(written(rows, separator, end, quoting)))

    assert reading.table["step"].to_list() == list(range(len(rows)))
    assert reading.table[LINE].to_list() == list(range(2, len(rows) + 2))
    for at, name in enumerate(("loss", "grad_norm")):
        assert all(map(same, reading.table[name].to_list(), [row[at] for row in rows]))


@given(TABLES, st.data())
@QUIET
def test_a_cut_anywhere_keeps_every_whole_row(log, rows, data):
    """Only the last value of a line that is cut may be missing or shorter."""
    content = written(rows).encode()
    cut = data.draw(st.integers(1, len(content)))
    kept = content[:cut]
    whole = max(0, kept.count(b"\n") - 1)
    try:
        readings = list(csv(log(kept)))
    except StabError:
        assert whole == 0
        return

    table = readings[0].table if readings else pl.DataFrame({"step": [], "loss": []})
    assert table.height in (whole, whole + 1)
    assert table["step"].to_list() == list(range(table.height))
    assert all(map(same, table["loss"].to_list(), [loss for loss, _ in rows]))
    if whole:
        norms = table["grad_norm"].to_list()[:whole]
        assert all(map(same, norms, [norm for _, norm in rows]))


@given(st.binary(min_size=1, max_size=300), st.integers(0, 200))
@QUIET
def test_garbage_anywhere_is_an_error_or_a_bad_line_but_never_a_crash(log, garbage, at):
    content = written([(2.5, 0.5)] * 10).encode()
    try:
        for reading in csv(log(content[:at] + garbage + content[at:])):
            assert reading.table.height >= 1
    except StabError:
        pass


@pytest.mark.parametrize("tail", ["60;3,4;0,5\rx", "60;3,4;0,5\r\r", "\r6", "60;3,4\r;0,5"])
def test_a_carriage_return_in_the_last_line_is_no_crash(log, tail):
    """It parts the last line for some eyes; the rows before are read, and its number is no other."""
    rows = "".join(f"{s};{3 - s / 100:.3f};0,5\r\n".replace(".", ",") for s in range(50))
    run = the_run(log("step;loss;lr\r\n" + rows + tail))

    assert run.frame["loss"].to_list()[:50] == [pytest.approx(3 - s / 100) for s in range(50)]
    assert run.frame.height == 50 or run.frame["loss"][50] == 3.4


def test_a_column_half_of_text_is_named(log):
    """A metric that was logged twice, once broken, is not left out without a word."""
    rows = "".join(f"{s},{3 - s / 100},{x}\n" for s, x in enumerate(["", "2.5", "", "2.x", ""]))
    run = the_run(log("step,loss,val_loss\n" + rows))

    assert "val_loss" not in run.frame.columns
    assert any("'val_loss' holds 1 numbers and 1 texts, such as '2.x'" in n for n in run.notes)
    words = "".join(f"{s},{3 - s / 100},fine\n" for s in range(5))
    assert not any("texts" in n for n in the_run(log("step,loss,word\n" + words)).notes)
