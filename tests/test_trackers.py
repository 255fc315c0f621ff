"""What readers of trackers share: points, and databases of somebody else."""

import math
import os
import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stabcli.assembly import LINE, WALL
from stabcli.attempts import PART
from stabcli.errors import LogError
from stabcli.sources import open_source
from stabcli.trackers import points as points_module
from stabcli.trackers import sqlitefile
from stabcli.trackers.points import STEP, Points
from stabcli.trackers.values import Faults, counted, number, seconds, setting, told_apart, whole
from tests.tracker_writing import ROWS, write_mlflow

NAN = math.nan


def made(*logged, apart=False):
    """The table of points: key, step, value and, where given, time."""
    points, notes = Points(), []
    for line, (key, step, value, *wall) in enumerate(logged, 1):
        points.add(key, step, value, wall=wall[0] if wall else None, line=line)
    return points.table(notes, apart=apart), notes


def test_metrics_of_one_step_are_one_row():
    table, notes = made(("a", 1, 1.0), ("b", 1, 2.0), ("a", 2, NAN), ("b", 3, math.inf))

    assert table.select(STEP, "a", "b", LINE).rows() == [
        (1, 1.0, 2.0, 1),
        (2, pytest.approx(NAN, nan_ok=True), None, 3),
        (3, None, math.inf, 4),
    ]
    assert WALL not in table.columns
    assert notes == []


def test_a_metric_twice_at_a_step_takes_two_rows():
    """Nothing is lost: which value speaks for the step is decided where it is for all logs."""
    table, _ = made(("a", 1, 1.0), ("b", 1, 5.0), ("a", 1, 2.0), ("a", 2, 3.0))

    assert table[STEP].to_list() == [1, 1, 2]
    assert table["a"].to_list() == [1.0, 2.0, 3.0]
    assert table["b"].to_list() == [5.0, None, None]


def test_going_back_is_a_restart():
    logged = [(k, s, float(s)) for s in (1, 2, 3, 2, 3, 4) for k in ("a", "b")]
    table, _ = made(*logged)

    assert table[STEP].to_list() == [1, 2, 3, 2, 3, 4]
    assert table[PART].to_list() == [0, 0, 0, 1, 1, 1]


def test_metrics_one_after_another_are_put_together_by_the_clock():
    """Where each metric stands by itself, a restart is one restart, not one a metric."""
    steps = [1, 2, 3, 2, 3, 4]
    logged = [(k, s, float(s), 100.0 + i) for k in ("a", "b") for i, s in enumerate(steps)]
    table, _ = made(*logged, apart=True)

    assert table[STEP].to_list() == steps
    assert table[PART].to_list() == [0, 0, 0, 1, 1, 1]
    assert table["a"].to_list() == table["b"].to_list()
    assert table[WALL].to_list() == [100.0 + i for i in range(6)]


def test_without_a_clock_metrics_are_put_together_by_how_often_they_went_back():
    """And where the clock goes back with the steps, which then tells nothing."""
    steps = [1, 2, 3, 2, 3, 4]
    for clock in ([], [9.0]):
        logged = [(k, s, float(s), *(c + s for c in clock)) for k in ("a", "b") for s in steps]
        table, _ = made(*logged, apart=True)

        assert table[STEP].to_list() == steps
        assert table["a"].to_list() == table["b"].to_list()


def test_steps_that_nobody_gave_are_counted():
    """All 0, or none at all: the busiest metric counts."""
    for step, said in ((0, "every step is 0"), (None, "no step was ever given")):
        logged = []
        for i in range(4):
            logged.append(("loss", step, float(i)))
            if i == 2:
                logged.append(("val", step, 9.0))
        table, notes = made(*logged)

        assert table[STEP].to_list() == [1, 2, 3, 4]
        assert table["val"].to_list() == [None, None, 9.0, None]
        assert notes == [f"{said}: steps are counted by the values of 'loss'"]


def test_a_value_without_a_step_is_named():
    table, notes = made(("a", 1, 1.0), ("a", 2, 1.0), ("test/acc", None, 0.5))

    assert table[STEP].to_list() == [1, 2]
    assert notes == ["1 value without a step left out: 'test/acc'"]


def test_names_that_have_a_meaning_of_their_own():
    table, _ = made(
        ("step", 1, 7.0), ("@part", 1, 8.0), ("", 1, 9.0), ("\ud800", 1, 1.0), ("?", 1, 2.0)
    )

    assert table.columns[3:] == ["key step", "key @part", "key ", "?", "? (2)"]


def test_a_table_that_is_too_wide_keeps_the_fullest_columns(monkeypatch):
    monkeypatch.setattr(points_module, "_MOST_CELLS", 40)
    logged = [("full", s, 1.0) for s in range(10)] + [(f"k{i}", 0, NAN) for i in range(30)]
    table, notes = made(*logged)

    assert "full" in table.columns
    assert len(table.columns) == 3 + 16
    assert notes == [
        "15 of 31 columns with few values left out; non-finite values in 15, such as 'k15'"
    ]


def test_no_point_is_an_empty_table():
    assert made()[0].height == 0


FLOATS = st.floats(allow_nan=True, allow_infinity=True)


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(-3, 12), FLOATS), min_size=1, max_size=60
    )
)
@settings(max_examples=200, deadline=None)
def test_every_point_stands_in_the_table(logged):
    """Whatever order points come in, each is in its column beside its step, and nothing else is."""
    if len({s for _, s, _ in logged}) == 1:
        logged.append(("c", logged[0][1] + 1, 0.0))
    for apart in (False, True):
        table, _ = made(*logged, apart=apart)
        found = sorted(
            (key, step, repr(value))
            for key in "abc"
            if key in table.columns
            for step, value in table.select(STEP, key).drop_nulls(key).rows()
        )
        assert found == sorted((k, s, repr(v)) for k, s, v in logged)


def test_numbers_steps_and_times_as_trackers_spell_them():
    assert [number(v) for v in (1, True, "2.5", "Infinity", "-inf", None, "x", [], "9" * 70, 10**400)] == [
        1.0, 1.0, 2.5, math.inf, -math.inf, None, None, None, None, None,
    ]  # fmt: skip
    assert all(math.isnan(number(v)) for v in (NAN, "NaN", "nan"))
    assert [whole(v) for v in (3, "4", 5.0, 5.5, True, None, "x", NAN, 2**70, -1)] == [
        3, 4, 5, None, None, None, None, None, None, -1,
    ]  # fmt: skip
    assert seconds(1_767_254_400_123) == seconds(1_767_254_400.123) == 1_767_254_400.123
    assert seconds("2026-01-01T08:00:00+00:00") == seconds("2026-01-01 08:00:00") == 1_767_254_400
    assert [seconds(v) for v in (None, "", "x", -1, 0, math.inf)] == [None] * 6
    assert [setting(v) for v in ("3", "0.1", "True", "None", "adamw", 4)] == [
        3,
        0.1,
        True,
        None,
        "adamw",
        4,
    ]


def test_fractional_steps_are_counted_in_order():
    notes = []

    assert counted([0.5, 1.0, 0.5, 2.0, NAN], notes) == [1, 2, 1, 3, None]
    assert notes == ["steps are fractions: counted in order; 1 stands for 0.5 and 3 for 2"]
    assert counted([4.0, 5.0], []) == [4, 5]


def test_runs_of_one_name_carry_their_ids():
    assert told_apart([("a", "1" * 32), ("a", "2" * 32), ("b", "3"), ("", "4")]) == [
        "a (11111111)", "a (22222222)", "b", "4",
    ]  # fmt: skip


# ---- databases ----


def rows_of(path, notes=None):
    faults = Faults()
    with sqlitefile.opened(path, str(path), [] if notes is None else notes) as database:
        return list(database.rows("metrics", ["key", "value"], faults)), faults


def test_a_database_is_read_without_a_trace(tmp_path):
    """Nothing lies beside it afterwards and not a byte of it changed, even in WAL mode."""
    path = write_mlflow(tmp_path / "m.db")
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.close()
    before = path.read_bytes(), path.stat().st_mtime_ns
    found, faults = rows_of(path)

    assert len(found) == sum(len(values) for _, values in ROWS)
    assert faults.count == 0
    assert os.listdir(tmp_path) == ["m.db"]
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


def test_a_database_on_a_folder_that_nobody_may_write_to(tmp_path):
    path = write_mlflow(tmp_path / "m.db")
    tmp_path.chmod(0o500)
    try:
        assert rows_of(path)[0]
    finally:
        tmp_path.chmod(0o700)


def test_rows_that_stand_in_the_write_ahead_log_alone(tmp_path):
    """A writer is at work: what it has committed is read, from a copy, and nothing is touched."""
    path = write_mlflow(tmp_path / "m.db")
    writer = sqlite3.connect(path)
    writer.execute("PRAGMA journal_mode=WAL")
    writer.execute("PRAGMA wal_autocheckpoint=0")
    writer.execute("INSERT INTO metrics VALUES ('late', 4.5, 1, 'a', 99, 0)")
    writer.commit()
    beside = sorted(os.listdir(tmp_path))
    before = {name: (tmp_path / name).read_bytes() for name in beside if not name.endswith("-shm")}
    notes = []
    found, _ = rows_of(path, notes)

    assert found[-1][1] == ("late", 4.5)
    assert notes == ["the database is in use, or was when its writer died: m.db-wal read too"]
    assert sorted(os.listdir(tmp_path)) == beside
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    writer.close()


def test_a_transaction_that_was_never_finished_is_taken_back(tmp_path):
    """The journal of a writer that died is played back, in the copy alone."""
    path = write_mlflow(tmp_path / "m.db")
    writer = sqlite3.connect(path)
    writer.execute("PRAGMA cache_spill=1")
    writer.execute("PRAGMA cache_size=1")
    writer.execute("BEGIN")
    writer.executemany(
        "INSERT INTO metrics VALUES (?, 1.0, 1, 'a', ?, 0)", [("x" * 200, i) for i in range(2000)]
    )
    assert (tmp_path / "m.db-journal").stat().st_size
    data = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    writer.rollback()
    writer.close()
    for name, held in data.items():
        (tmp_path / name).write_bytes(held)
    found, _ = rows_of(path)

    assert len(found) == sum(len(values) for _, values in ROWS)
    assert (tmp_path / "m.db-journal").read_bytes() == data["m.db-journal"]


A_VIEW = (
    "CREATE VIEW metrics AS SELECT 'a' AS key, randomblob(1 << 28) AS value, 1 AS timestamp,"
    " 1 AS step, 0 AS is_nan, 'r' AS run_uuid"
)
A_COMPUTED_COLUMN = (
    "CREATE TABLE metrics (key TEXT, value AS (zeroblob(1 << 28)), timestamp INT, step INT,"
    " is_nan INT, run_uuid TEXT)"
)


@pytest.mark.parametrize("made_by", [A_VIEW, A_COMPUTED_COLUMN])
def test_what_could_run_anything_is_no_table(tmp_path, made_by):
    """A view, or a computed column, is not looked at: the file is no database of metrics."""
    path = tmp_path / "m.db"
    database = sqlite3.connect(path)
    database.execute(made_by)
    database.close()
    columns = {"key", "value", "timestamp", "step", "is_nan", "run_uuid"}

    assert not sqlitefile.holds(open_source(path), "metrics", columns, [b"no"])


def test_only_plain_reading_is_allowed(tmp_path):
    """Functions, recursion, pragmas and writing are refused by SQLite itself."""
    path = write_mlflow(tmp_path / "m.db")
    with sqlitefile.opened(path, "m.db", []) as database:
        for said in (
            "SELECT load_extension('x')",
            "SELECT hex(key) FROM metrics",
            "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT n FROM c",
            "DELETE FROM metrics",
            "ATTACH ':memory:' AS other",
            "PRAGMA journal_mode=WAL",
        ):
            with pytest.raises(sqlite3.DatabaseError, match=r"not authorized|prohibited"):
                database._connection.execute(said).fetchall()


def test_a_damaged_page_costs_its_rows_alone(tmp_path):
    """What lies before and behind the damage is read, and the damage told of."""
    rows = [(s, {"train/loss": float(s)}) for s in range(3000)]
    path = write_mlflow(tmp_path / "m.db", rows)
    data = bytearray(path.read_bytes())
    page = int.from_bytes(data[16:18], "big")
    spots = [at for at in range(0, len(data), page) if data[at] == 13]  # leaves of tables
    middle = spots[len(spots) // 2]
    data[middle : middle + page] = bytes(page)
    path.write_bytes(data)
    found, faults = rows_of(path)
    numbers = [n for n, _ in found]

    assert faults.count == 1
    assert "are damaged" in faults.first[0][1]
    assert numbers == sorted(set(numbers))
    assert 2000 < len(numbers) < 3000
    assert numbers[-1] == 3000
    assert all(value == n - 1.0 for n, (_, value) in found)


def test_torn_at_any_page_a_database_is_read_or_refused(tmp_path):
    """Cut anywhere: rows that are whole, or one line that says what is wrong."""
    rows = [(s, {"train/loss": float(s)}) for s in range(800)]
    data = write_mlflow(tmp_path / "m.db", rows).read_bytes()
    torn = tmp_path / "torn.db"
    for cut in [*range(1, 4096, 97), *range(4096, len(data), 4096 - 1)]:
        torn.write_bytes(data[:cut])
        found, said = [], ""
        try:
            with sqlitefile.opened(torn, "torn.db", []) as database:
                if "metrics" in database.tables:
                    found = list(database.rows("metrics", ["key", "value"], Faults()))
        except LogError as error:
            said = str(error)
        assert said == "" or said.startswith("torn.db: a broken database: ")
        assert all(value == n - 1.0 for n, (_, value) in found)
