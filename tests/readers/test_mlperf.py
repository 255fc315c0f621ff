"""Reader mlperf: :::MLLOG lines."""

import pytest

from stabcli.errors import LogError
from stabcli.readers import read_runs
from tests.conftest import SAMPLES
from tests.readers.tracker_runs import assert_written, claimed, column, the_run
from tests.tracker_writing import MLPERF_SETTINGS, ROWS, clock, mllog, mlperf_log

NAMES = {"train/loss": "train_loss", "train/grad_norm": "grad_norm", "eval/loss": "eval_accuracy"}
STEPPED = [(s + 1, v) for s, v in ROWS]


def log(tmp_path, text, name="result_0.txt"):
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("batch", "what"),
    [(16, "samples: divided by global_batch_size, 16"), (2048, "tokens: divided by")],
)
def test_places_become_steps(tmp_path, batch, what):
    """Samples, or tokens, divided by what a step takes."""
    path = log(tmp_path, mlperf_log(batch=batch))
    run = the_run(path)

    assert claimed(path) == ["mlperf"]
    assert_written(run, STEPPED, names=NAMES)
    assert run.columns["val_loss"] == "eval_accuracy"
    assert run.frame["wall_time"].to_list() == [clock(s) for s, _ in ROWS]
    assert run.notes[0].startswith(f"places are counted in {what}")
    assert run.notes[1:] == (
        "eval_accuracy of gpt3 is the loss on held-out data",
        "2 events without a number and a place stand in no row: run_start, run_stop",
        "gpt3: run_stop says success",
    )
    facts = {k: f.value for k, f in run.facts.items()}
    assert facts["batch_sequences"] == 16
    assert facts["sequence_length"] == 128
    assert facts["grad_clip"] == 1.0


def test_places_that_are_no_steps_are_said(tmp_path):
    """Without a batch that divides them they stay, and what is known of a step is not used."""
    path = log(tmp_path, mlperf_log(batch=1009))
    run = the_run(path)

    assert run.frame["step"].to_list() == [1009 * (s + 1) for s, _ in ROWS]
    assert (
        run.notes[0]
        == "steps are counted in samples or tokens, as the benchmark logs them (samples_count)"
    )
    assert "batch_sequences" not in run.facts
    assert run.facts["seed"].value == 7


def test_an_accuracy_is_no_loss(tmp_path):
    path = log(tmp_path, mlperf_log(settings={**MLPERF_SETTINGS, "submission_benchmark": "bert"}))
    run = the_run(path)

    assert "val_loss" not in run.columns
    assert_written(run, STEPPED, names=NAMES)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("aborted", "gpt3: run_stop says aborted"),
        ("", "gpt3: no run_stop: the run crashed, was killed or goes on"),
    ],
)
def test_how_a_run_stopped(tmp_path, status, said):
    assert the_run(log(tmp_path, mlperf_log(status=status))).notes[-1] == said


def test_prefixes_other_lines_and_glued_lines(tmp_path):
    """Launchers write in front, loops between, and processes into one another's lines."""
    lines = mlperf_log().splitlines()
    made = [
        f"{i % 3}: {line}" if i % 2 else f"[1,0]<stdout>: {line}" for i, line in enumerate(lines)
    ]
    made.insert(5, "loading data ...")
    made[-3:-1] = ["".join(made[-3:-1])]
    run = the_run(log(tmp_path, "\n".join(made)))

    assert_written(run, STEPPED, names=NAMES)


def test_broken_lines_are_told_of(tmp_path):
    text = mlperf_log()
    run = the_run(
        log(tmp_path, ":::MLLOG {broken\n:::MLLOG\n" + text + ':::MLLOG {"namespace": "", "ti')
    )

    assert_written(run, STEPPED, names=NAMES)
    assert [line for line, _ in run.bad.first] == [1, 2, text.count("\n") + 3]


def test_epochs_that_are_fractions_are_counted(tmp_path):
    lines = [
        mllog("eval_accuracy", 0.5 + i / 100, epoch_num=i / 4, wall=clock(i)) for i in range(1, 9)
    ]
    run = the_run(log(tmp_path, "".join(lines)), format_name="mlperf")

    assert run.frame["step"].to_list() == list(range(1, 9))
    assert run.notes[0] == "steps are fractions: counted in order; 1 stands for 0.25 and 8 for 2"


def test_events_with_another_counter_find_their_place(tmp_path):
    """An evaluation counted in epochs takes the place of the event before it."""
    lines = [mllog("train_loss", 3.0 - i / 10, 16 * i, wall=clock(i)) for i in range(1, 11)]
    lines.insert(5, mllog("eval_accuracy", 0.4, epoch_num=0.5))
    lines.append(mllog("eval_accuracy", 0.6, epoch_num=160))
    run = the_run(log(tmp_path, mllog("global_batch_size", 16) + "".join(lines)))

    assert column(run, "eval_accuracy") == {5: 0.4, 10: 0.6}
    assert "1 events without 'samples_count' take the place of the one before" in run.notes


def test_places_beyond_all_steps_are_none(tmp_path):
    """Counters that no training reaches, or that are no numbers, place nothing."""
    odd = [mllog("train_loss", 9.0, place) for place in (10**30, -(10**30))]
    odd += [
        mllog("train_loss", 9.0, samples_count=v) for v in (float("inf"), float("nan"), [2, 3], "x")
    ]
    run = the_run(log(tmp_path, mlperf_log() + "".join(odd)))

    assert_written(run, STEPPED, names=NAMES)


def test_a_restart_goes_back(tmp_path):
    run = the_run(log(tmp_path, mlperf_log([*ROWS[:15], *ROWS[8:]])))

    assert [(a.first_step, a.last_step) for a in run.attempts] == [(1, 15), (9, 20)]


def test_a_log_that_another_framework_wrote_stays_its(tmp_path):
    """Megatron's own lines tell more than a few events among them."""
    text = (SAMPLES / "megatron/bad_batch.log").read_text()
    path = log(tmp_path, mllog("run_start", None) + text + mllog("eval_accuracy", 2.5, 1600))

    assert claimed(path) == ["megatron"]


def test_nothing_to_read_is_one_line(tmp_path):
    path = log(tmp_path, mllog("seed", 1))
    with pytest.raises(LogError, match=r"no :::MLLOG event with a value and a step"):
        read_runs([str(path)], format_name="mlperf")
    with pytest.raises(LogError, match="a folder"):
        read_runs([str(tmp_path)], format_name="mlperf")


def test_what_mlperf_itself_wrote_is_what_was_logged():
    run = the_run(SAMPLES / "mlperf/bad_batch.log")
    lines = the_run(SAMPLES / "jsonl/bad_batch.jsonl")
    for metric in ("loss", "grad_norm", "learning_rate", "val_loss"):
        part = lines.frame.filter(lines.frame["step"].is_between(501, 700)).select("step", metric)
        assert run.frame.select("step", metric).drop_nulls().equals(part.drop_nulls()), metric


def test_events_that_lost_their_name_or_place_are_told(tmp_path):
    """A damaged key of the metadata, and a damaged mark: neither value goes without a word."""
    whole = mlperf_log()
    at = [i for i, line in enumerate(whole.splitlines()) if '"train_loss"' in line]
    lines = whole.splitlines()
    lines[at[3]] = lines[at[3]].replace('"metadata"', '"metbdata"')
    lines[at[4]] = lines[at[4]].replace(":::MLLOG", ":::NLLOG")
    run = the_run(log(tmp_path, "\n".join(lines)))

    assert any(
        "3 events without a number and a place" in n and "train_loss" in n for n in run.notes
    )
    assert run.bad.count == 1
    assert "an event without :::MLLOG" in run.bad.first[0][1]


def test_a_real_result(shared_data):
    """288 places of 4,194,304 tokens each, of 2,048 sequences of 2,048."""
    path = (
        shared_data
        / "text/mlcommons__training_results_v3.1/NVIDIA/results/eos_n64_ngc23.09_nemo/gpt3/result_0.txt"
    )
    run = the_run(path)

    assert (run.frame.height, run.frame["step"].max()) == (288, 288)
    assert run.frame["val_loss"].count() == 24
    assert run.notes[2].startswith("613 events without a number and a place stand in no row: init_")
    assert run.notes[3] == "gpt3, NVIDIA, 64xNVIDIA DGX H100: run_stop says success"
