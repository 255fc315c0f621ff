import json
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stabcli.assembly import LINE, Options, assemble
from stabcli.errors import LogError
from stabcli.readers import readers
from stabcli.readers.hf_trainer import hf_trainer, matches
from stabcli.sources import open_source
from tests.conftest import SAMPLES

NAN = float("nan")
SUMMARY = {"epoch": 1.0, "total_flos": 1e15, "train_loss": 1.23, "train_runtime": 812.4}


def row(step, **more):
    return {
        "epoch": step / 100,
        "grad_norm": 1.0,
        "learning_rate": 1e-5,
        "loss": 2.5,
        "step": step,
    } | more


def written(rows, **more):
    """Return a state as the Trainer writes it."""
    return json.dumps({"log_history": rows, "global_step": 50, **more}, indent=2, sort_keys=True)


@pytest.fixture
def state(tmp_path):
    """Write a state and open it."""

    def write(rows, name="trainer_state.json", cut=None, **more):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((rows if isinstance(rows, str) else written(rows, **more))[:cut])
        return open_source(path)

    return write


def the_run(source):
    (reading,) = hf_trainer(source)
    return assemble(reading, source, "hf-trainer", Options())


def test_a_plain_history_gives_its_numbers_and_nothing_else(state):
    """No note, no bad line, every entry at the line on which it begins."""
    source = state([row(s, loss=3 - s / 100) for s in range(1, 21)])
    run = the_run(source)
    lines = source.path.read_text().splitlines()

    assert run.frame["loss"].to_list() == [3 - s / 100 for s in range(1, 21)]
    assert run.frame["step"].to_list() == list(range(1, 21))
    assert all(lines[n - 1].strip() == "{" for n in run.frame["line"])
    assert all(
        f'"step": {s}' in lines[n + 4] for s, n in zip(range(1, 21), run.frame["line"], strict=True)
    )
    assert run.notes == ()
    assert run.bad.count == 0


def test_an_evaluation_shares_the_row_of_its_step(state):
    run = the_run(state([row(1), row(2), {"epoch": 0.02, "eval_loss": 2.25, "step": 2}]))

    assert run.frame.height == 2
    assert run.frame["val_loss"].to_list() == [None, 2.25]
    assert run.notes == ()


def test_the_row_that_ends_a_training_is_no_step(state):
    """Its train_loss is a mean of the whole run and must never be a loss."""
    run = the_run(state([row(1), row(2), SUMMARY | {"step": 2}]))

    assert run.frame["loss"].to_list() == [2.5, 2.5]
    assert not {"train_loss", "train_runtime", "total_flos"} & {*run.frame.columns}
    assert run.notes == ("a training ended at step 2 after 812 s, mean loss 1.23",)


def test_a_run_that_counts_its_tokens_keeps_its_steps(state):
    """There every row has a train_runtime: the time since the start, and no end of a training."""
    counted = {"num_input_tokens_seen": 64, "train_tokens_per_second": 128.0}
    rows = [row(s, train_runtime=0.5 * s, **counted) for s in (1, 2, 3)]
    run = the_run(state([*rows, SUMMARY | {"step": 3}]))

    assert run.frame["step"].to_list() == [1, 2, 3]
    assert run.frame["elapsed_seconds"].to_list() == [0.5, 1.0, 1.5]
    assert not run.has("tokens_per_second")  # what stands there is a mean since the start
    assert run.notes == ("a training ended at step 3 after 812 s, mean loss 1.23",)


def test_non_finite_values_are_values(state):
    rows = [row(1), row(2, loss=NAN), row(3, loss=math.inf, grad_norm="nan"), row(4, loss=None)]
    run = the_run(state(rows))

    assert [str(v) for v in run.frame["loss"]] == ["2.5", "nan", "inf", "None"]
    assert math.isnan(run.frame["grad_norm"][2])


def test_numbers_may_be_text(state):
    """transformers 5 prints them so."""
    run = the_run(state([row(s, loss="2.317", learning_rate="4.98e-05") for s in (1, 2)]))

    assert run.frame["loss"].to_list() == [2.317, 2.317]
    assert run.frame["learning_rate"].to_list() == [4.98e-5, 4.98e-5]


def test_one_value_that_is_no_number_does_not_cost_its_column(state):
    run = the_run(state([row(s, loss="tensor(?)" if s == 5 else 2.5) for s in range(1, 30)]))

    assert run.frame["loss"].count() == 28
    assert run.bad.count == 1
    assert run.bad.first[0][1] == "loss: 'tensor(?)' is not a number"


def test_a_float_late_after_integers_keeps_its_fraction(state):
    run = the_run(state([row(s, loss=2 if s < 300 else 2.25) for s in range(1, 301)]))

    assert run.frame["loss"][-1] == 2.25


def test_a_metric_that_comes_late_is_kept(state):
    run = the_run(state([*(row(s) for s in range(1, 200)), row(200, entropy=0.5)]))

    assert run.frame["token_entropy"].drop_nulls().to_list() == [0.5]


def test_learning_rates_of_groups_and_nested_values_are_laid_flat(state):
    rows = [row(s, learning_rate=[1e-5, 1e-4], more={"a": s}) for s in (1, 2)]
    run = the_run(state(rows))

    assert run.frame["learning_rate"].to_list() == [1e-5, 1e-5]
    assert run.frame["learning_rate/1"].to_list() == [1e-4, 1e-4]
    assert run.frame["more/a"].to_list() == [1, 2]


def test_of_several_evaluation_sets_the_first_is_named(state):
    rows = [row(1), {"eval_a_loss": 2.0, "step": 1}, {"eval_b_loss": 3.0, "step": 1}]
    run = the_run(state(rows))

    assert run.columns["val_loss"] == "eval_a_loss"
    assert any("2 evaluation sets" in note for note in run.notes)


def test_a_loss_of_exactly_zero_beside_a_nan_norm_is_nan():
    """The Trainer hides it; healthy rows before stay as they are."""
    run = the_run(open_source(SAMPLES / "hf-trainer" / "hidden_nan.json"))

    assert run.frame["loss"].is_nan().sum() == 40
    assert run.frame.filter(run.frame["loss"].is_nan())["step"].min() == 305
    assert run.frame["hidden"].sum() == 40


def test_a_loss_of_zero_beside_a_finite_norm_is_zero(state):
    run = the_run(state([row(1), row(2, loss=0.0), row(3, loss=0.0)]))

    assert run.frame["loss"].to_list() == [2.5, 0, 0]
    assert "hidden" not in run.frame.columns


def test_policy_optimisation_has_an_objective_and_no_loss():
    run = the_run(open_source(SAMPLES / "hf-trainer" / "grpo.json"))

    assert run.columns["objective_loss"] == "loss"
    assert "loss" not in run.frame.columns
    assert run.has("reward", "reward_std", "kl", "response_length")


def test_entries_that_are_no_steps_are_counted(state):
    run = the_run(state([row(1), 5, {"loss": 2.0}, row(2)]))

    assert run.frame["step"].to_list() == [1, 2]
    assert run.bad.count == 2
    assert {why for _, why in run.bad.first} == {
        "an entry that is no object",
        "an entry without a step",
    }


def test_a_broken_entry_costs_itself_only(state):
    text = written([row(s) for s in range(1, 10)]).replace('"step": 5', '"step": \0\0')
    run = the_run(state(text))

    assert run.frame["step"].to_list() == [1, 2, 3, 4, 6, 7, 8, 9]
    assert run.bad.count == 1
    assert run.facts == {}
    assert not any("breaks off" in note for note in run.notes)


# ---- claims ----


@pytest.mark.parametrize(
    "text",
    [
        '{"global_step": 5}',
        '{"log_history": 5}',
        "[]",
        '{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2.4}\n',
        "step,loss\n1,2\n",
        'see "log_history": [',
    ],
)
def test_other_files_are_not_claimed(state, text):
    source = state(text)

    assert not matches(source)
    if text.startswith("see"):
        return
    with pytest.raises(LogError, match="no log_history in it: give"):
        list(hf_trainer(source))


def test_samples_are_claimed_by_this_reader_alone():
    for path in sorted((SAMPLES / "hf-trainer").iterdir()):
        if path.suffix not in (".py", ".md"):
            source = open_source(path)

            assert [r.name for r in readers if r.matches(source)] == ["hf-trainer"], path


def test_an_empty_history_is_no_reading(state):
    assert list(hf_trainer(state([]))) == []
    assert list(hf_trainer(state([SUMMARY | {"step": 5}]))) == []


def test_one_entry_and_all_nan_are_read(state):
    assert the_run(state([row(1)])).frame.height == 1
    assert the_run(state([row(s, loss=NAN) for s in (1, 2, 3)])).frame["loss"].is_nan().all()


def test_on_one_line_entries_are_numbered(state):
    """Every entry stands on line 1, which would help nobody."""
    source = state(json.dumps({"log_history": [row(1), row(2)]}))
    (reading,) = hf_trainer(source)

    assert LINE not in reading.table.columns
    assert the_run(source).frame["line"].to_list() == [1, 2]


# ---- properties ----

VALUES = st.one_of(st.none(), st.floats(), st.integers(-(10**9), 10**9))
HISTORIES = st.lists(
    st.dictionaries(st.sampled_from(["loss", "grad_norm", "eval_loss", "kl", "x y"]), VALUES),
    min_size=1,
    max_size=20,
)
QUIET = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def same(a, b):
    return a == b or (a is not None and b is not None and math.isnan(a) and math.isnan(b))


@given(HISTORIES, st.sampled_from([None, 2]))
@QUIET
def test_what_was_written_is_read(state, history, indent):
    """read(write(x)) = x, NaN, infinities and gaps included."""
    rows = [entry | {"step": s} for s, entry in enumerate(history)]
    (reading,) = hf_trainer(state(json.dumps({"log_history": rows}, indent=indent)))

    assert reading.table["step"].to_list() == list(range(len(rows)))
    for name in {k for entry in history for k, v in entry.items() if v is not None}:
        assert all(map(same, reading.table[name].to_list(), [r.get(name) for r in rows]))


@given(HISTORIES, st.data())
@QUIET
def test_a_cut_anywhere_keeps_every_whole_entry_and_says_so(state, history, data):
    rows = [entry | {"step": s} for s, entry in enumerate(history)]
    text = written(rows, max_steps=100)
    begin = text.index("[") + 1
    cut = data.draw(st.integers(begin, len(text) - 1))
    whole = text[:cut].count("\n    }")
    readings = list(hf_trainer(state(text, cut=cut)))

    assert len(readings) == bool(whole)
    if whole:
        assert readings[0].table["step"].to_list() == list(range(whole))
        assert "trainer_state.json breaks off: what came before was read" in readings[0].notes


# ---- real files ----


@pytest.mark.parametrize(
    ("folder", "entries", "steps", "last", "noted"),
    [
        ("syGOAT__Mistral-v0.2-Translator-bf16", 867, 866, 8660, True),
        ("NijatZeynalov__mT5-based-azerbaijani-news-summarize", 770, 700, 7000, False),
        ("aigoncharov__trainer_state_viz", 216, 31, 12030, False),
    ],
)
def test_real_states_have_the_rows_they_should(shared_data, folder, entries, steps, last, noted):
    source = open_source(shared_data / "text" / folder / "trainer_state.json")
    (reading,) = hf_trainer(source)
    run = the_run(source)

    assert reading.table.height == entries - noted
    assert run.frame.height == steps
    assert run.frame["step"].max() == last
    assert len(run.attempts) == 1
    assert run.bad.count == 0
    assert any("a training ended" in note for note in run.notes) == noted
