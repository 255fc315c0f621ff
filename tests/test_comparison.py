"""Comparison: which run to keep, where runs stood, and in which settings they differ."""

import math

import numpy as np
import pytest

from stabcli.comparison import compare
from stabcli.comparison.sides import letter
from stabcli.diagnosis import diagnose
from stabcli.readers import read_runs
from stabcli.report._compare_rows import table
from tests.conftest import SAMPLES
from tests.rules.runs import make_run


def curve(n: int = 400, seed: int = 0, level: float = 1.9, noise: float = 0.03) -> np.ndarray:
    """A healthy loss."""
    step = np.arange(1, n + 1)
    return level + 8.5 * (step + 20.0) ** -0.42 + np.random.default_rng(seed).normal(0, noise, n)


def compared(*runs, at=()):
    """Compare runs made of their columns."""
    made = [make_run(name=f"run{i}", **columns) for i, columns in enumerate(runs)]
    return compare([diagnose(run) for run in made], at)


def sample(*names):
    return compare(
        [diagnose(r) for n in names for r in read_runs([str(SAMPLES / n)])[0]], [50, 200]
    )


# ---- which to keep ----


def test_a_tie_is_a_tie():
    """Two draws of one curve, nothing wrong with either: nothing tells them apart."""
    assert compared({"loss": curve(seed=0)}, {"loss": curve(seed=1)}).choice.keep == ("A", "B")


def test_the_lower_loss_is_kept():
    """Beyond noise."""
    found = compared({"loss": curve(level=2.2)}, {"loss": curve(seed=1)})

    assert found.choice.keep == ("B",)
    assert any("B is best" in why for why in found.choice.why)


def test_the_beginning_of_a_run_is_no_run_to_choose():
    """An older copy of a log ended at a higher loss only because it is older."""
    whole = curve()
    older = compared({"loss": whole[:250]}, {"loss": whole}).choice

    assert older.keep == ("B",)
    assert older.why == ("the only one",)
    assert older.unfit == (
        ("A", "it is the beginning of B: its 250 rows are the first of B, to the last value"),
    )
    other = whole[:250].copy()
    other[100] += 0.001
    assert not compared({"loss": other}, {"loss": whole}).choice.unfit


def test_held_out_data_decides_before_training_loss():
    """A lower training loss with a higher held-out loss is what overfitting looks like."""
    val = np.where(np.arange(400) % 50 == 49, 2.0, np.nan)
    seen = [None if math.isnan(v) else v for v in val]
    worse = [None if v is None else 1.1 * v for v in seen]
    found = compared(
        {"loss": curve(level=2.2), "val_loss": seen},
        {"loss": curve(level=1.9), "val_loss": worse},
    )

    assert found.choice.keep == ("A",)


def test_held_out_data_of_one_run_alone_decides_nothing():
    """It cannot be compared."""
    val = [2.0 if i % 50 == 49 else None for i in range(400)]
    found = compared({"loss": curve(level=2.2), "val_loss": val}, {"loss": curve(seed=1)})

    assert found.choice.keep == ("B",)
    assert found.choice.why[0] == "no held-out figure that all of them have"


@pytest.mark.parametrize("first_nan", [100, 399])
def test_a_run_that_ended_non_finite_is_never_kept(first_nan):
    """However low its loss had been, and even if it is all there is."""
    broken = curve(level=0.5)
    broken[first_nan:] = np.nan
    assert compared({"loss": broken}, {"loss": curve()}).choice.keep == ("B",)

    alone = compared({"loss": broken}, {"loss": broken})
    assert alone.choice.keep == ()
    assert len(alone.choice.unfit) == 2


def test_a_run_that_diverged_is_never_kept():
    """Even where its loss is still the lower one."""
    loss = curve(1200, level=0.4)
    climbing = loss + np.maximum(0, np.arange(1200) - 800) * 2.5e-3
    found = compared({"loss": climbing}, {"loss": curve(1200, level=1.9)})

    assert found.sides[0].lost is not None
    assert found.choice.keep == ("B",)


def test_incidents_decide_between_equals():
    """Of two that reached the same, the one that did not leap on the way."""
    leapt = curve(seed=1)
    leapt[200:203] = 9.0

    assert compared({"loss": leapt}, {"loss": curve()}).choice.keep == ("B",)


def test_different_vocabularies_are_not_compared_by_loss():
    """A loss per byte is always below one per token."""
    small = make_run(loss=curve(level=0.5), facts={"vocab_size": 256})
    large = make_run(loss=curve(level=2.0), facts={"vocab_size": 50_000})
    found = compare([diagnose(small), diagnose(large)])

    assert found.choice.keep == ("A", "B")
    assert "vocabularies" in found.choice.why[0]


def test_a_hacked_reward_wins_nothing():
    """A policy that left its range has a reward that nobody should trust."""
    step = np.arange(1, 801)
    reward = 0.2 + 0.5 * (1 - np.exp(-step / 150)) + np.random.default_rng(0).normal(0, 0.01, 800)
    kl = np.full(800, 0.02) + np.random.default_rng(1).normal(0, 0.001, 800)
    away = kl + np.clip((step - 400) / 100, 0, 1) * 6
    found = compared({"reward": reward + 0.3, "kl": away}, {"reward": reward, "kl": kl})

    assert found.metric == "reward"
    assert found.choice.keep == ("B",)


# ---- where they stood ----


def test_points_asked_for_are_rows_as_logged():
    """The row of that step; the one before it where there is none; nothing beyond the ends."""
    long = {"loss": np.arange(100.0), "step": np.arange(10, 1010, 10)}
    short = {"loss": np.arange(50.0), "step": np.arange(10, 510, 10)}
    found = compared(long, short, at=[5, 55, 500, 900])
    cells = {p.at: p.cells for p in found.points}

    assert [c.value for c in cells[5]] == [None, None]
    assert "begins at step 10" in cells[5][0].why
    assert [(c.value, c.step) for c in cells[55]] == [(4.0, 50), (4.0, 50)]
    assert [c.value for c in cells[500]] == [49.0, 49.0]
    assert cells[900][0].value == 89.0
    assert "ends at step 500" in cells[900][1].why


def test_points_of_ones_own_choosing_are_in_all_runs():
    """Of runs of different lengths and intervals: steps that both logged, up to the shorter's end."""
    every, tenth = curve(400), curve(1000)[::10]
    found = compared(
        {"loss": every, "step": np.arange(1, 401)}, {"loss": tenth, "step": np.arange(10, 1010, 10)}
    )

    assert [p.at for p in found.points] == [100, 200, 300, 400]
    assert all(c.step == p.at for p in found.points for c in p.cells)
    assert found.common is not None
    assert found.common.at == 400


def test_tokens_are_compared_where_steps_hold_different_numbers():
    """Half the steps of twice the size are the same way."""
    small = make_run(loss=curve(400), facts={"tokens_per_step": 1000})
    large = make_run(loss=curve(200), facts={"tokens_per_step": 2000})
    found = compare([diagnose(small), diagnose(large)])

    assert {p.unit for p in found.points} == {"tokens"}
    assert [c.step for c in found.points[-1].cells] == [400, 200]
    assert found.points[-1].at == 400_000
    assert "compared by tokens" in found.notes[0]


def test_steps_are_said_where_tokens_are_unknown():
    """One run without tokens is enough."""
    known = make_run(loss=curve(), facts={"tokens_per_step": 1000})
    found = compare([diagnose(known), diagnose(make_run(loss=curve()))])

    assert {p.unit for p in found.points} == {"steps"}
    assert found.notes[0] == "compared by steps: tokens of B are unknown"


def test_runs_without_a_stretch_in_common():
    """One ends before the other begins: no points, and it is said."""
    found = compared({"loss": curve(50)}, {"loss": curve(50), "step": np.arange(500, 550)})

    assert found.points == ()
    assert "the runs have no stretch in common" in found.notes


@pytest.mark.parametrize("n", [1, 2, 3])
def test_very_short_runs(n):
    """One row is a comparison too."""
    found = compared({"loss": curve(n)}, {"loss": curve(n, seed=1)})

    assert len(found.sides) == 2
    assert found.points[-1].at == n


def test_runs_of_different_metrics():
    """Compared by what most of them have; a run without it is not kept."""
    found = compared({"loss": curve()}, {"grad_norm": np.ones(400)}, {"loss": curve(seed=1)})

    assert found.metric == "loss"
    assert found.choice.keep == ("A", "C")
    assert found.choice.unfit == (("B", "its log has no loss"),)


def test_many_runs_have_letters_and_few_pairs():
    """Beyond five, each is compared with the first alone."""
    found = compared(*({"loss": curve(40, seed=i)} for i in range(7)))

    assert [s.key for s in found.sides] == list("ABCDEFG")
    assert [p.keys for p in found.pairs] == [("A", k) for k in "BCDEFG"]
    assert [letter(i) for i in (25, 26, 51, 52)] == ["Z", "AA", "AZ", "BA"]


# ---- settings ----


def test_settings_that_differ_and_those_that_are_shared():
    """Known to differ first; what one run does not tell is told to be so; the rest is shared."""
    a = make_run(loss=curve(), facts={"weight_decay": 0.1, "seed": 1, "grad_clip": 1.0})
    b = make_run(loss=curve(), facts={"weight_decay": 0.1, "seed": 2})
    found = compare([diagnose(a), diagnose(b)])

    assert [d.setting for d in found.differences] == ["seed", "grad_clip"]
    assert [d.certain for d in found.differences] == [True, False]
    assert found.shared == ("weight_decay",)
    assert found.twins == (("A", "B"),)


def test_rates_and_warm_ups_are_seen_in_the_log():
    """Where no configuration tells them."""
    flat = np.full(400, 1e-3)
    risen = np.minimum(np.arange(1, 401) / 50, 1) * 2e-3
    found = compared({"loss": curve(), "lr": flat}, {"loss": curve(seed=1), "lr": risen})
    told = {d.setting: [f and f.value for f in d.values] for d in found.differences}

    assert told["peak_lr"] == [1e-3, 2e-3]
    assert told["warmup_steps"] == [0, 50]
    assert found.twins == ()


# ---- the three fine-tunes ----


def test_the_three_fine_tunes():
    """The healthy one is kept: one broke, and the other leapt on the way."""
    found = sample("hf-trainer/lora_fine", "hf-trainer/lora_nan", "hf-trainer/lora_spike")

    assert found.choice.keep == ("A",)
    assert found.choice.unfit == (("B", "not finite from step 9 on"),)
    assert [p.at for p in found.points] == [50, 200]
    values = [[c.value for c in p.cells] for p in found.points]
    assert values[0] == [pytest.approx(1.718, abs=1e-3), pytest.approx(np.nan, nan_ok=True),
                         pytest.approx(1.718, abs=1e-3)]  # fmt: skip


# ---- figures that end before their run ----


def stopped(rows, n=800):
    """A run that logs its loss up to a row and its validation loss every 20 steps up to there."""
    step = np.arange(1, n + 1)
    known = step <= rows
    return {
        "step": step,
        "loss": [float(v) if k else None for v, k in zip(curve(n), known, strict=True)],
        "val_loss": [2.5 if k and s % 20 == 0 else None for s, k in zip(step, known, strict=True)],
        "grad_norm": np.full(n, 0.5),
    }


@pytest.mark.parametrize("figure", ["final loss", "last val_loss"])
def test_a_figure_that_is_no_longer_logged_is_told_with_its_step(figure):
    """What a run ended at is unknown where it went on without the figure."""
    found = compared(stopped(300), stopped(800))
    row = next(r for r in table(found) if r.name == figure)
    metric = figure.split()[-1]

    assert row.cells[0].endswith("(step 300, not logged since)")
    assert "not logged since" not in row.cells[1]
    assert any(
        note.startswith(f"{metric} at the end is unknown: A, logged last at step 300")
        for note in found.notes
    )
    assert any(r.name == "level at step 300" for r in table(found))


@pytest.mark.parametrize("rows", [800, 795])
def test_a_figure_logged_to_the_end_is_told_as_ever(rows):
    """A few rows without it at the end are no end of it; nor an evaluation not due yet."""
    found = compared(stopped(rows), stopped(800))

    assert not any("not logged since" in cell for row in table(found) for cell in row.cells)
    assert not any("at the end is unknown" in note for note in found.notes)


def test_a_run_whose_loss_vanished_is_not_kept():
    """However low it was: what came after is not known. Nor is it kept for want of another."""
    lower = {**stopped(600), "loss": [None if v is None else v - 0.5 for v in stopped(600)["loss"]]}
    broken = stopped(800)
    broken["loss"][700:] = [math.nan] * 100
    why = ("B", "cannot be judged: its loss was not logged after step 600")

    found = compared(stopped(800), lower, {"loss": curve(800, level=2.5)}).choice
    assert (found.keep, found.unfit) == (("A",), (why,))
    found = compared(stopped(800), lower).choice
    assert (found.keep, found.unfit) == (("A",), (why,))
    assert found.why == ("the only one that is known to have ended well",)
    found = compared(broken, lower).choice
    assert (found.keep, found.unfit[1]) == ((), why)
    assert found.why == ("no run is known to have ended well",)


@pytest.mark.parametrize("rows", [800, 765])
def test_a_run_with_a_loss_to_the_end_is_kept(rows):
    """The twin: one row in twenty without it, at the end, is no reason against the better run."""
    lower = stopped(rows)
    lower["loss"] = [None if v is None else v - 0.5 for v in lower["loss"]]

    found = compared(stopped(800), lower).choice
    assert (found.keep, found.unfit) == (("B",), ())


def test_a_loss_logged_once_in_a_while_is_logged_to_the_end():
    """Rows between two logged losses are no end of it."""
    n = 1199
    seldom = [float(v) - 0.5 if s % 100 == 0 else None for s, v in enumerate(curve(n), start=1)]

    found = compared({"loss": curve(n)}, {"loss": seldom, "grad_norm": np.full(n, 0.5)}).choice
    assert (found.keep, found.unfit) == (("B",), ())


def test_held_out_figures_of_different_times_decide_nothing():
    """A last evaluation from half the way is not held against one from the end."""
    early = stopped(800)
    early["val_loss"] = [2.4 if s % 20 == 0 and s <= 400 else None for s in range(1, 801)]

    found = compared(early, stopped(800)).choice
    assert "last val_loss: cannot be judged: not logged to the end in A" in found.why
    assert found.keep == ("A", "B")
    early["val_loss"] = [2.4 if s % 20 == 0 else None for s in range(1, 801)]
    assert compared(early, stopped(800)).choice.keep == ("A",)
