"""One run told by several logs at once."""

import math

import numpy as np
import pytest

from stabcli.readers import read_runs
from stabcli.rules import run_rules, select
from tests.joining.writing import (
    NAN,
    events,
    jsonl,
    only,
    said,
    spans,
    state,
    text,
    truth,
    values,
    wandb,
)


def test_log_tracker_and_configuration_are_one_run(tmp_path):
    """Columns of each, the exact value of those both have, facts of the configuration."""
    rows = truth(range(200))
    text(tmp_path / "run" / "train.log", rows)
    events(tmp_path / "run" / "tb", [{**r, "aux": r["step"] / 7} for r in rows],
           tags={"train/loss": "loss", "moe/aux_loss": "aux"})  # fmt: skip
    (tmp_path / "run" / "config.yaml").write_text("seq_length: 2048\nseed: 7\n")
    run = only(tmp_path / "run")

    assert (run.name, run.reader) == ("run", "generic-text + tensorboard")
    assert values(run, "loss")[7] == pytest.approx(rows[7]["loss"], rel=1e-6)
    assert values(run, "grad_norm")[7] == round(rows[7]["grad_norm"], 4)
    assert values(run, "aux_loss")[7] == pytest.approx(1.0)
    assert run.facts["sequence_length"].value == 2048
    assert run.facts["seed"].source == "config.yaml, seed"
    assert said(run, "joined with", "'loss' is the same in 200 of 200 rows")
    assert [f.rpartition("/")[2] for f in run.files] == [
        "train.log", "events.out.tfevents.1700000000.host.1.0", "config.yaml"]  # fmt: skip
    assert set(run.frame["file"]) == {"train.log"}


@pytest.mark.parametrize("shift", [1, -1])
def test_steps_counted_from_another_number_are_moved(tmp_path, shift):
    """Found out by the values; the lines of the base stay where they are."""
    rows = truth(range(5, 200))
    text(tmp_path / "train.log", rows)
    jsonl(tmp_path / "metrics.jsonl", [{**r, "entropy2": r["step"]} for r in rows], shift=shift,
          keys=("step", "loss", "entropy2"))  # fmt: skip
    run = only(tmp_path)

    assert said(run, "counts steps 1", "moved to match")
    assert run.frame.height == len(rows)
    base = values(run, "grad_norm" if said(run, "cited from train.log") else "entropy2")
    other = values(run, "entropy2")
    assert set(base) == set(other)


@pytest.mark.parametrize("shift", [2, 10, 500])
def test_other_distances_are_not_guessed(tmp_path, shift):
    """Two runs, and a note on each that says what was compared."""
    rows = truth(range(1000))
    text(tmp_path / "train.log", rows)
    jsonl(tmp_path / "metrics.jsonl", rows, shift=shift)
    runs, _ = read_runs([str(tmp_path)])

    assert len(runs) == 2
    assert all(said(run, "kept apart from", "agrees in") for run in runs)


def test_another_run_with_the_same_steps_and_schedule_stays_apart(tmp_path):
    """A learning rate is no fingerprint: every run of a sweep has it."""
    text(tmp_path / "train.log", truth(range(300)), digits=6, keys=("loss", "lr"))
    jsonl(tmp_path / "metrics.jsonl", truth(range(300), seed=1))
    runs, _ = read_runs([str(tmp_path)])

    assert [run.frame.height for run in runs] == [300, 300]


def test_counters_of_their_own_name_are_no_proof(tmp_path):
    """Progress and consumed samples are the same in every run of a sweep."""
    for name, seed in (("a.jsonl", 0), ("b.csv", 1)):
        rows = truth(
            range(200), seed=seed, done=lambda s: s / 2.7, schedule=lambda s: abs(s - 90) / 7
        )
        jsonl(tmp_path / "a.jsonl", rows, keys=("step", "done", "schedule", "loss"))
        if name == "b.csv":
            lines = [f"{r['step']},{r['done']},{r['schedule']},{r['grad_norm']}" for r in rows]
            (tmp_path / name).write_text("step,done,schedule,grad_norm\n" + "\n".join(lines) + "\n")
    runs, _ = read_runs([str(tmp_path)])

    assert len(runs) == 2
    assert said(runs[0], "no metric in common")


def test_a_tracker_that_dates_its_folders(tmp_path):
    """``tb/2026-01-02_10:00:00/``, as ColossalAI and others name them."""
    rows = truth(range(100))
    text(tmp_path / "train.log", rows)
    events(tmp_path / "tb" / "2026-01-02_10:00:00", rows)
    events(tmp_path / "tb" / "2026-01-03_10:00:00", truth(range(100), seed=3))
    runs, _ = read_runs([str(tmp_path)])

    assert [run.reader for run in runs] == ["generic-text + tensorboard", "tensorboard"]


def test_nothing_in_common_to_tell_by_stays_apart(tmp_path):
    """Same steps are no proof."""
    text(tmp_path / "train.log", truth(range(100)), keys=("loss",))
    jsonl(tmp_path / "metrics.jsonl", truth(range(100)), keys=("step", "grad_norm"))
    runs, _ = read_runs([str(tmp_path)])

    assert len(runs) == 2
    assert said(runs[0], "no metric in common")


@pytest.mark.parametrize("where", ["text", "events", "both"])
def test_a_value_that_is_not_finite_survives_whoever_has_it(tmp_path, where):
    """And is said, where only one has it."""
    rows = truth(range(100))
    broken = [{**r, "loss": NAN} if r["step"] in (60, 61) else r for r in rows]
    text(tmp_path / "train.log", broken if where != "events" else rows)
    events(tmp_path, broken if where != "text" else rows)
    run = only(tmp_path)

    assert [s for s, v in values(run, "loss").items() if math.isnan(v)] == [60, 61]
    assert said(run, "not finite in 2 rows of one log") == (where != "both")


def test_a_loss_that_one_log_leaves_out_and_the_other_has_as_nan(tmp_path):
    """Null in one is no number: the NaN of the other stands."""
    rows = truth(range(100))
    jsonl(
        tmp_path / "a.jsonl",
        [{k: v for k, v in r.items() if k != "loss" or r["step"] != 50} for r in rows],
    )
    events(tmp_path, [{**r, "loss": NAN} if r["step"] == 50 else r for r in rows])

    assert math.isnan(values(only(tmp_path), "loss")[50])


def test_a_disagreement_is_said_and_never_chosen_in_silence(tmp_path):
    """Few rows differ: one column, a note. Most rows differ: both columns."""
    rows = truth(range(200))
    text(tmp_path / "a" / "train.log", rows)
    events(tmp_path / "a", [{**r, "loss": r["loss"] * 1.5} if r["step"] == 9 else r for r in rows])
    few = only(tmp_path / "a")
    text(tmp_path / "b" / "train.log", [{**r, "loss": r["loss"] * 3} for r in rows])
    events(tmp_path / "b", rows)
    most = only(tmp_path / "b")

    assert said(few, "'loss' differs in 1 of 200 rows", "first at step 9")
    assert said(most, "agrees in only 0 of 200 rows", "kept as")
    kept = next(c for c in most.frame.columns if c.startswith("loss ("))
    both = {values(most, "loss")[3], values(most, kept)[3]}
    assert {round(v, 2) for v in both} == {round(rows[3]["loss"], 2), round(3 * rows[3]["loss"], 2)}


def test_gaps_of_the_fuller_log_are_filled(tmp_path):
    """A tracker that lost its end, a log that starts late: nothing of either is lost."""
    rows = truth(range(300))
    text(tmp_path / "train.log", rows[50:])
    events(tmp_path, rows[:200])
    run = only(tmp_path)

    assert sorted(values(run, "loss")) == list(range(300))
    assert spans(run) == [(0, 299)]
    files = run.frame["file"].to_list()
    assert files[10].startswith("events")
    assert files[250] == "train.log"


def test_attempts_of_a_restarted_run_meet_their_own_rows(tmp_path):
    """The tracker has both attempts; the log too; the state of transformers only what counts."""
    first, second = truth(range(100)), truth(range(60, 160), seed=5)
    text(tmp_path / "train.log", [*first, *second])
    events(tmp_path / "tb", first)
    events(tmp_path / "tb", second, name="events.out.tfevents.1700000500.host.2.0", wall=500)
    state(tmp_path / "trainer_state.json", [*first[1:60], *second])
    run = only(tmp_path)

    assert spans(run) == [(0, 99), (60, 159)]
    assert run.reader == "generic-text + hf-trainer + tensorboard"
    assert values(run, "loss", 0)[70] == pytest.approx(first[70]["loss"], rel=1e-6)
    assert values(run, "loss", 1)[70] == pytest.approx(second[10]["loss"], rel=1e-6)
    assert run.frame["discarded"].sum() == 40


def test_what_wandb_keeps_of_the_console_joins_its_run(tmp_path):
    """Rows that history lacks are added; what the console says of errors is kept."""
    rows = truth(range(100))
    folder = wandb(tmp_path, rows[:80])
    tail = "Traceback (most recent call last):\n  File x\ntorch.OutOfMemoryError: CUDA out of memory. Tried\n"
    text(folder / "files" / "output.log", rows, tail=tail)
    (run,), unread = read_runs([str(tmp_path)])

    assert run.name == "nice"
    assert sorted(values(run, "loss")) == list(range(100))
    assert [(t.kind, t.step) for t in run.troubles] == [("out-of-memory", 99)]
    assert said(run, "out-of-memory, after step 99", "output.log, line 103")
    assert unread == []


def test_resumed_runs_join_the_consoles_of_all_their_folders(tmp_path):
    """Two folders of one id, each with what its process printed."""
    first, second = truth(range(100)), truth(range(60, 160), seed=5)
    for begun, started, rows in (("20260101_080000", 1_700_000_000, first),
                                 ("20260102_080000", 1_700_086_400, second)):  # fmt: skip
        folder = wandb(tmp_path, rows, begun=begun, started=started)
        text(
            folder / "files" / "output.log",
            [{**r, "mem": r["step"]} for r in rows],
            keys=("loss", "mem"),
        )
    run = only(tmp_path)

    assert spans(run) == [(0, 99), (60, 159)]
    assert values(run, "mem", 1)[160 - 1] == 159
    assert len(run.files) == 4


def test_two_twins_that_agree_with_one_tracker_stay_apart(tmp_path):
    """Runs repeated bit by bit: whose tracker it is nobody can say."""
    rows = truth(range(200))
    text(tmp_path / "a.log", rows)
    text(tmp_path / "b.log", rows)
    other = tmp_path / "b.log"  # its lines lie elsewhere: no copy of the other
    other.write_text("another start of the very same\n" + other.read_text())
    events(tmp_path, rows)
    runs, _ = read_runs([str(tmp_path)])

    assert len(runs) == 3
    assert sum(said(run, "kept apart: it and", "both agree") for run in runs) >= 1


def test_a_log_with_more_of_the_steps_gives_the_grid(tmp_path):
    """State every ten steps, log every step: all rows, the state's columns where it has them."""
    rows = truth(range(1, 301))
    jsonl(tmp_path / "metrics.jsonl", rows, keys=("step", "loss"))
    state(tmp_path / "trainer_state.json", rows, every=10)
    run = only(tmp_path)

    assert len(values(run, "loss")) == 300
    assert sorted(values(run, "grad_norm")) == list(range(10, 301, 10))


@pytest.mark.parametrize("seed", range(12))
def test_no_row_and_nothing_that_is_not_finite_is_ever_lost(tmp_path, seed):
    """Whatever is joined or kept apart: each row and each NaN of each log is in some run."""
    made = np.random.default_rng(seed)
    n = int(made.integers(30, 300))
    restart = int(made.integers(1, n)) if made.random() < 0.5 else None
    rows = truth(range(n), seed=seed)
    if restart is not None:
        rows += truth(range(restart, restart + n), seed=seed + 100)
    for row in rows:
        for name in ("loss", "grad_norm"):
            if made.random() < 0.05:
                row[name] = made.choice([NAN, math.inf])
    mine = [r for r in rows if made.random() < 0.9]
    theirs = [r for r in rows if made.random() < 0.9]
    for r in theirs:
        if made.random() < 0.05:
            r["loss"] = NAN
    shift = int(made.integers(-1, 2))
    text(tmp_path / "train.log", mine)
    jsonl(tmp_path / "metrics.jsonl", theirs, shift=shift)
    runs, _ = read_runs([str(tmp_path)])
    apart, _ = read_runs([str(tmp_path)], join=False)

    assert len(apart) == 2
    steps = {s for run in runs for s in run.frame["step"].to_list()}
    for one in apart:
        wanted = set(one.frame["step"].to_list())
        assert wanted <= {s + d for s in steps for d in (-1, 0, 1)}
        assert sum(run.frame.height for run in runs) >= one.frame.height
        for name in ("loss", "grad_norm"):
            broken = int((~one.frame[name].is_finite()).sum())
            kept = sum(
                int((~run.frame[c].is_finite()).sum())
                for run in runs
                for c in run.frame.columns
                if c.startswith(name)
            )
            assert kept >= broken


def test_speed_is_no_proof_and_what_disagrees_counts(tmp_path):
    """Two runs on one machine are as fast; two that share an evaluation alone are two."""
    one, two = truth(range(200)), truth(range(200), seed=1)
    for a, b in zip(one, two, strict=True):
        a["step_time"] = b["step_time"] = round(1 + a["grad_norm"], 2)
        a["val_loss"] = b["val_loss"] = a["loss"] if a["step"] % 10 == 0 else None
    for name, rows in (("fast", "step_time"), ("eval", "val_loss")):
        keys = ("step", "loss", *(("grad_norm",) if name == "eval" else ()), rows)
        folder = tmp_path / name
        folder.mkdir()
        jsonl(folder / "a.jsonl", one, keys=keys)
        text(folder / "b.log", two, keys=keys[1:])
        runs, _ = read_runs([str(folder)])

        assert len(runs) == 2
    assert said(runs[0], "'val_loss' agrees, but 'loss' does not")


def test_a_smooth_curve_rounded_to_its_trend_is_no_proof(tmp_path):
    """Two runs whose averaged losses print alike to two digits are two."""
    one, two = truth(range(300)), truth(range(300), seed=1)
    for rows in (one, two):
        smooth = 0.0
        for r in rows:
            smooth = 0.98 * smooth + 0.02 * (r["loss"] - 2 - 8 / (r["step"] + 10)) * 0.2
            r["loss"] = 2 + 8 / (r["step"] + 10) + smooth
    text(tmp_path / "a.log", one, digits=2, keys=("loss",))
    jsonl(tmp_path / "b.jsonl", two, keys=("step", "loss"))
    runs, _ = read_runs([str(tmp_path)])

    assert len(runs) == 2
    assert said(runs[0], "rounded so far that other runs would agree as well")


def test_a_restless_schedule_is_no_proof_either(tmp_path):
    """A learning rate that goes up and down is the same in every run of a sweep, too."""
    rates = {s: 1e-4 * (1 + (s * 7 % 13)) for s in range(200)}
    one, two = ([{**r, "lr": rates[r["step"]]} for r in truth(range(200), seed=s)] for s in (0, 1))
    jsonl(tmp_path / "a.jsonl", one, keys=("step", "loss", "lr"))
    lines = [f"{r['step']},{r['lr']},{r['grad_norm']}" for r in two]
    (tmp_path / "b.csv").write_text("step,lr,grad_norm\n" + "\n".join(lines) + "\n")
    runs, _ = read_runs([str(tmp_path)])

    assert len(runs) == 2
    assert said(runs[0], "no metric in common")


def test_rows_that_look_alike_in_two_attempts_stay_in_their_own(tmp_path):
    """Printed to two digits many losses of an attempt are those of another at the same step."""
    attempts = [truth(range(a, a + 150), seed=9 + a) for a in (0, 20, 40)]
    rows = [row for attempt in attempts for row in attempt]
    jsonl(tmp_path / "metrics.jsonl", rows)
    text(tmp_path / "train.log", [{**r, "mem": i} for i, r in enumerate(rows)], digits=2,
         keys=("loss", "mem"))  # fmt: skip
    run = only(tmp_path)

    assert spans(run) == [(0, 149), (20, 169), (40, 189)]
    for number in range(3):
        got = values(run, "mem", number)
        assert list(got.values()) == [float(i) for i in range(150 * number, 150 * number + 150)]


def test_one_metric_of_many_that_agrees_is_no_proof(tmp_path):
    """Nor a crash: here one of three agrees, one never, and one in six rows of ten."""
    one, two = truth(range(200)), truth(range(200), seed=1)
    for a, b in zip(one, two, strict=True):
        a["val_loss"], b["val_loss"] = a["grad_norm"], a["grad_norm"]
        b["reward"] = a["loss"] + (0 if a["step"] % 5 < 3 else 1)
        a["reward"] = a["loss"]
        a["loss"], b["loss"] = a["loss"] + 1, b["loss"]
        a["entropy"], b["entropy"] = a["loss"] * 2, b["loss"] * 3 + (0 if a["step"] % 5 < 3 else 9)
    keys = ("step", "loss", "val_loss", "reward", "entropy")
    jsonl(tmp_path / "a.jsonl", one, keys=keys)
    text(tmp_path / "b.log", two, keys=keys[1:])
    runs, _ = read_runs([str(tmp_path)])

    assert len(runs) == 2


def cited(run, metric, step):
    """File and line that a finding about a metric at a step of the first attempt names."""
    row = run.frame["step"].to_list().index(step)
    return run.place(metric, row)


@pytest.mark.parametrize("shift", [0, 1])
def test_a_value_is_cited_from_the_log_it_stands_in(tmp_path, shift):
    """A NaN that only one of two logs has, and a metric of only one, whatever it calls its steps."""
    rows = truth(range(200))
    text(tmp_path / "train.log", rows, head="starting\n\n")
    others = [{**r, "aux_loss": r["step"] / 7} for r in rows]
    others[120]["loss"] = NAN
    jsonl(tmp_path / "metrics.jsonl", others, shift=shift, keys=("step", "loss", "aux_loss"))
    run = only(tmp_path)
    shown = int(run.frame["step"][0])

    assert cited(run, "loss", 120 + shown) == ("metrics.jsonl", 121)
    assert cited(run, "aux_loss", 50 + shown) == ("metrics.jsonl", 51)
    assert cited(run, "grad_norm", 50 + shown) == ("train.log", 53)
    (nan,) = [f for f in run_rules(run, select((), ("nonfinite",)))[0] if f.metric == "loss"]
    assert (nan.file, nan.line) == ("metrics.jsonl", 121)
