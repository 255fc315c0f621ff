"""From raw rows to a run: names, units, attempts, repeated steps, hidden values."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stabcli import assembly
from stabcli.assembly import Options, Reading, assemble
from stabcli.diagnosis import diagnose
from stabcli.errors import LogError, SettingError
from stabcli.metrics import resolve
from stabcli.sources import Source
from stabcli.spellings import as_number

NAN = float("nan")


def made(table, options=None, **reading):
    """Assemble a table given as a mapping of columns."""
    frame = table if isinstance(table, pl.DataFrame) else pl.DataFrame(table)
    source = Source(shown="log", path=Path("log"), head=b"")
    return assemble(Reading(name="log", table=frame, **reading), source, "r", options or Options())


def test_columns_are_found_by_their_usual_names():
    """Each framework's spelling ends up in the same canonical column, which remembers it."""
    run = made({"train/global_step": [1, 2], "lm loss": [2.0, 1.9], "grad-norm": [0.5, 0.4]})
    assert run.frame.columns == ["attempt", "step", "line", "discarded", "loss", "grad_norm"]
    assert run.columns == {"step": "train/global_step", "loss": "lm loss", "grad_norm": "grad-norm"}


def test_the_user_overrules_names():
    """``--map loss=my/loss`` wins over a column that is called loss."""
    run = made({"step": [1], "loss": [9.0], "my/loss": [2.0]}, Options(names={"loss": "my/loss"}))
    assert run.frame["loss"].to_list() == [2.0]
    assert run.frame["loss (unmapped)"].to_list() == [9.0]


@pytest.mark.parametrize(
    ("names", "message"),
    [({"loss": "nope"}, "has no column 'nope'"), ({"lost": "loss"}, "no metric of stabcli")],
)
def test_a_wrong_map_says_so(names, message):
    """Neither an unknown metric nor an unknown column passes silently."""
    with pytest.raises(SettingError, match=message):
        made({"step": [1], "loss": [1.0]}, Options(names=names))


def test_loss_of_a_policy_is_not_the_loss():
    """In reinforcement learning ``loss`` is an objective that may be negative or zero."""
    assert resolve(["step", "loss", "reward"])["objective_loss"] == "loss"
    assert resolve(["step", "loss", "entropy"])["token_entropy"] == "entropy"
    assert resolve(["step", "loss", "entropy", "kl"])["entropy"] == "entropy"


@given(st.lists(st.text(max_size=12), unique=True))
def test_no_name_serves_twice(names):
    """However a log's columns are called, no two canonical columns share one."""
    found = resolve(names)
    assert len(set(found.values())) == len(found)
    assert set(found.values()) <= set(names)


def test_no_step_is_said():
    """Without steps nothing can be located: the message names the columns and the remedy."""
    with pytest.raises(LogError, match=r"log: no step in the log: .*--map step=NAME.*loss"):
        made({"loss": [1.0]})


def test_nothing_measured_is_said():
    """Steps alone are nothing that could be checked."""
    with pytest.raises(LogError, match="nothing but steps"):
        made({"step": [1, 2], "epoch": [0.1, 0.2]})


def test_rows_without_a_step_are_counted():
    """They cannot be placed; they are left out and told of."""
    run = made({"step": [1, None, 2], "loss": [1.0, 2.0, 3.0]})
    assert run.frame["loss"].to_list() == [1.0, 3.0]
    assert any("1 row without a step" in n for n in run.notes)


@pytest.mark.parametrize("name", ["attempt", "line", "file", "discarded", "hidden"])
def test_a_column_may_be_called_what_ours_are(name):
    """A log's own ``line`` or ``attempt`` is a measurement of its own, and crashes nothing."""
    run = made({"step": [1, 2], "loss": [1.0, 2.0], name: [7.0, 8.0]})
    assert run.frame[f"{name} (unmapped)"].to_list() == [7.0, 8.0]


def test_null_and_nan_are_not_mixed_up():
    """NaN is a value the trainer had, null is one it did not log."""
    run = made({"step": [1, 2, 3], "loss": [1.0, None, NAN]})
    assert run.frame["loss"].is_null().to_list() == [False, True, False]
    assert run.frame["loss"].is_nan().to_list() == [False, None, True]


def test_a_restart_begins_an_attempt_and_discards():
    """Steps that go back begin an attempt; what it overtakes is marked."""
    run = made({"step": [1, 2, 3, 4, 3, 4, 5], "loss": [1.0, 2, 3, 4, 5, 6, 7]})
    assert run.frame["attempt"].to_list() == [0, 0, 0, 0, 1, 1, 1]
    assert run.frame["discarded"].to_list() == [False, False, True, True, False, False, False]
    assert [(a.first_step, a.last_step, a.rows) for a in run.attempts] == [(1, 4, 4), (3, 5, 3)]


def test_two_restarts_discard_what_either_overtakes():
    """The last writer of a step is the one that counts."""
    run = made({"step": [1, 2, 3, 2, 3, 4, 5, 4, 5], "loss": [float(i) for i in range(9)]})
    kept = run.frame.filter(~pl.col("discarded"))
    assert kept["step"].to_list() == [1, 2, 3, 4, 5]
    assert kept["loss"].to_list() == [0.0, 3.0, 4.0, 7.0, 8.0]


def test_steps_that_begin_anew_in_every_epoch_are_no_restarts():
    """Loops that count batches within an epoch never went back."""
    run = made(
        {"epoch": [1, 1, 1, 2, 2, 2, 3, 3], "step": [0, 1, 2, 0, 1, 2, 0, 1], "loss": [1.0] * 8}
    )
    assert len(run.attempts) == 1
    assert run.frame["step"].to_list() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert any("counted on over 3 epochs" in n for n in run.notes)


def test_a_restart_within_an_epoch_is_one():
    """An epoch that goes back with the step, or is a fraction, says nothing of the kind."""
    for epoch in ([1, 1, 2, 2, 1, 2], [0.1, 0.2, 0.3, 0.4, 0.2, 0.3]):
        run = made({"epoch": epoch, "step": [1, 2, 3, 4, 2, 3], "loss": [1.0] * 6})
        assert len(run.attempts) == 2


def test_a_log_that_runs_backwards_is_turned_round():
    """Newest first, as some exports are."""
    run = made({"step": [4, 3, 2, 1], "loss": [4.0, 3, 2, 1]})
    assert len(run.attempts) == 1
    assert run.frame["loss"].to_list() == [1.0, 2.0, 3.0, 4.0]


def test_a_late_evaluation_is_no_restart():
    """A value that was not logged before may come a row late."""
    run = made(
        {
            "step": [1, 2, 3, 2, 4],
            "loss": [1.0, 2, 3, None, 4],
            "eval_loss": [None] * 3 + [9.0, None],
        }
    )
    assert len(run.attempts) == 1
    assert run.frame.filter(pl.col("step") == 2)["val_loss"].to_list() == [9.0]


def test_rows_out_of_order_are_put_in_order():
    """One late row of the same series is disorder, not a restart."""
    run = made({"step": [1, 2, 4, 3, 5], "loss": [1.0, 2, 4, 3, 5]})
    assert len(run.attempts) == 1
    assert run.frame["loss"].to_list() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert any("out of order" in n for n in run.notes)


def test_rows_in_no_order_are_no_thousand_restarts():
    """Many writers, or a sort by something else: rows are put in order, and a note says so."""
    steps = [i * 1237 % 3000 for i in range(3000)]
    run = made({"step": steps, "loss": [3 - s / 2000 for s in steps]})

    assert len(run.attempts) == 1
    assert run.frame["step"].to_list() == list(range(3000))
    assert run.frame["loss"].to_list() == [3 - s / 2000 for s in range(3000)]
    assert any("times, too often for restarts" in note for note in run.notes)


def test_many_restarts_of_some_length_stay_restarts():
    """A run that crashes every fifty steps and goes back ten is restarted, eighty times."""
    steps = [s for k in range(80) for s in range(40 * k, 40 * k + 50)]
    run = made({"step": steps, "loss": [3 - s / 9000 for s in steps]})

    assert len(run.attempts) == 80


def test_rows_of_one_step_become_one():
    """The train row and the evaluation row of a step are one row; the last value of a field wins."""
    run = made(
        {
            "step": [1, 1, 2, 2],
            "loss": [1.0, None, 2.0, 2.5],
            "eval_loss": [None, 9.0, None, None],
        }
    )
    assert run.frame["loss"].to_list() == [1.0, 2.5]
    assert run.frame["val_loss"].to_list() == [9.0, None]
    assert any("a step with other values" in n for n in run.notes)


def test_a_nan_is_not_overwritten_by_another_rank():
    """Of several values for one step a non-finite one speaks."""
    run = made({"step": [1, 1, 1], "loss": [1.0, NAN, 1.0]})
    assert run.frame["loss"].is_nan().to_list() == [True]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("nan", NAN),
        ("-nan", NAN),
        ("NaN", NAN),
        ("nan(ind)", NAN),
        ("inf", float("inf")),
        ("-Infinity", float("-inf")),
        ("+1.5", 1.5),
        ("1,234.5", 1234.5),
        ("37.9%", 37.9),
        ("1e-4", 1e-4),
    ],
)
def test_spellings_of_numbers(text, value):
    """Numbers are read in whatever spelling trainers print them."""
    (got,) = as_number(pl.Series(["", text, "n/a"])).drop_nulls().to_list()
    assert got == value or (np.isnan(got) and np.isnan(value))


def test_text_is_no_number():
    """A column with one word in it is text, not a column of holes."""
    assert as_number(pl.Series(["1", "two"])) is None


def test_steps_as_fractions_and_floats():
    """``10/500`` and ``9.0`` are steps; a NaN is none."""
    assert made({"step": ["10/500", "11/500"], "loss": [1.0, 2.0]}).frame["step"].to_list() == [
        10,
        11,
    ]
    run = made({"step": [9.0, NAN, 10.0], "loss": [1.0, 2.0, 3.0]})
    assert run.frame["step"].to_list() == [9, 10]


@pytest.mark.parametrize(
    ("name", "values", "mfu"),
    [
        ("mfu(%)", [40.0, 41.0], [0.40, 0.41]),
        ("mfu", [40.0, 41.0], [0.40, 0.41]),
        ("mfu", [0.40, 1.018], [0.40, 1.018]),
        ("mfu", [-100.0, 40.0], [None, 0.40]),
    ],
)
def test_mfu_becomes_a_fraction(name, values, mfu):
    """Percentages are scaled, fractions above 1 are left to be doubted, -100 is not known yet."""
    got = made({"step": [1, 2], name: values}).frame["mfu"].to_list()
    assert got == pytest.approx(mfu) if None not in mfu else got == mfu


def test_milliseconds_become_seconds():
    """The name of the column says its unit."""
    run = made({"step": [1], "elapsed time per iteration (ms)": [2312.0]})
    assert run.frame["step_seconds"].to_list() == [2.312]


def test_times_in_any_unit():
    """Seconds, milliseconds and ISO text all become seconds since 1970; durations do not."""
    assert made({"step": [1], "loss": [1.0], "timestamp": [1.7e9]}).frame["wall_time"][0] == 1.7e9
    assert made({"step": [1], "loss": [1.0], "timestamp": [1.7e12]}).frame["wall_time"][0] == 1.7e9
    iso = made({"step": [1], "loss": [1.0], "timestamp": ["2023-11-14T22:13:20Z"]})
    assert iso.frame["wall_time"][0] == 1.7e9
    assert "wall_time" not in made({"step": [1], "loss": [1.0], "time": [0.25]}).frame.columns


def test_constant_columns_are_facts():
    """A column that never changes can tell a fact of the whole run, and is named as its source."""
    run = made({"step": [1, 2], "loss": [1.0, 2.0], "num_gpus": [8, 8], "seq_len": [2048, 2048]})
    assert run.facts["gpus"].value == 8
    assert run.facts["sequence_length"].source == "column, seq_len"


def test_a_wide_log_keeps_what_is_known_and_searches_the_rest(monkeypatch):
    """Beyond the budget other columns go, but their non-finite values are still told."""
    monkeypatch.setattr(assembly, "FRAME_BUDGET", 100)
    table = {"step": [1, 2, 3], "loss": [1.0, 2, 3], "a": [1.0, NAN, 1.0], "b": [1.0, 1, 1]}
    table |= {f"c{i}": [1.0, 1, 1] for i in range(4)}
    run = made(table, Options(metrics=("b",)))

    assert "a" not in run.frame.columns
    assert "b" in run.frame.columns
    (a,) = [c for c in run.left_out if c.name == "a"]
    assert (a.first, a.last, a.count) == ((0, 2), (0, 2), 1)
    assert any("--metric" in n for n in run.notes)


rows = st.lists(
    st.tuples(
        st.integers(0, 50), st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True))
    ),
    min_size=1,
    max_size=60,
)


@given(rows)
def test_frames_keep_their_promises(data):
    """Sorted, one row per attempt and step, no value lost but by an overruling one."""
    steps, losses = zip(*data, strict=True)
    table = pl.DataFrame(
        {"step": list(steps), "loss": pl.Series(losses, dtype=pl.Float64), "one": [1.0] * len(data)}
    )
    frame = made(table).frame

    keys = list(zip(frame["attempt"], frame["step"], strict=True))
    assert keys == sorted(set(keys))
    assert set(frame["step"]) == set(steps)
    last = frame.filter(~pl.col("discarded"))["step"].to_list()
    assert last == sorted(set(last))
    assert ("loss" in frame.columns) == any(x is not None for x in losses)
    broken = "loss" in frame.columns and bool(frame["loss"].is_nan().any())
    assert any(np.isnan(x) for x in losses if x is not None) == broken


@pytest.mark.parametrize("order", [("loss", "eval_loss"), ("eval_loss", "loss")])
def test_each_value_of_a_step_is_cited_by_its_own_line(order):
    """Training and evaluation write a line each for one step; findings about both know theirs."""
    rows = [{"step": s, c: 2.0 + s / 100} for s in range(1, 40) for c in order]
    run = made(pl.DataFrame(rows, infer_schema_length=None))

    assert run.frame.height == 39
    assert run.place("loss", 9) == (None, 19 + order.index("loss"))
    assert run.place("val_loss", 9) == (None, 19 + order.index("eval_loss"))


# ---- what is named but says nothing ----


@pytest.mark.parametrize(
    ("values", "why"),
    [([None] * 9, "is empty in every row"), (["fine"] * 9, "holds text, not numbers")],
)
def test_a_loss_that_says_nothing_is_told_and_not_called_fine(values, why):
    """A column of nothing or of words is no loss: nothing is said of the run's health."""
    run = made({"step": [*range(9)], "loss": values, "grad_norm": [1.0 + i / 9 for i in range(9)]})

    assert why in run.blind
    assert any(why in note for note in run.notes)
    assert why in (diagnose(run).cannot_judge or "")
    assert diagnose(run, only=["nonfinite"]).cannot_judge is None, "that alone was asked for"


def test_an_empty_column_hides_no_other():
    """Where a column of a better name is empty, the next one is the loss."""
    run = made({"step": [1, 2, 3], "loss": [None] * 3, "train_loss": [2.0, 1.9, 1.8]})

    assert run.frame["loss"].to_list() == [2.0, 1.9, 1.8]
    assert (run.columns["loss"], run.blind) == ("train_loss", "")


@pytest.mark.parametrize(
    ("spelt", "want"),
    [
        (["6,0093", "5,9987"], [6.0093, 5.9987]),
        (["0,123", "1,456"], [0.123, 1.456]),
        (["1,048,576", "65,536"], [1048576.0, 65536.0]),
        (["1,234.5", "2.5"], [1234.5, 2.5]),
        (["-2,5e-3", "1"], [-0.0025, 1.0]),
        (["6,0093", "2.5"], None),
        (["1,2,3"], None),
    ],
)
def test_commas_are_told_apart_by_their_column(spelt, want):
    """Before groups of three digits they part thousands; else they are points, or nothing."""
    got = as_number(pl.Series(spelt))

    assert (None if got is None else got.to_list()) == want


def test_what_commas_were_taken_for_is_told():
    """Where a comma may be a point or not, the run says what it was taken for."""
    for spelt, told in (("6,0093", "decimal points"), ("2,345", "between thousands")):
        run = made({"step": [1, 2], "loss": [spelt, spelt]})
        assert any(told in note and spelt in note for note in run.notes), spelt
    run = made({"step": [1, 2], "loss": [2.0, 1.9], "tokens": ["1,048,576", "65,536"]})
    assert not any("commas" in note for note in run.notes)


def test_rows_that_are_there_twice_are_told():
    """Rows that say nothing new are counted once and told of; rows of other columns are not."""
    run = made({"step": [1, 1, 2, 2, 3], "loss": [2.0, 2.0, 1.9, 1.9, 1.8]})
    assert "rows that only repeat the row before them, counted once: 2" in run.notes
    assert run.frame.height == 3

    apart = {
        "step": [1, 1, 2, 2],
        "loss": [2.0, None, 1.9, None],
        "val_loss": [None, 2.0, None, 2.0],
    }
    assert not any("repeat" in note for note in made(apart).notes)
    end = {"step": [1, 2, 2], "loss": [2.0, 1.9, None], "lr": [0.1, 0.1, None], "of": [2.0] * 3}
    assert not any("repeat" in note for note in made(end).notes), "a summary at the end"
