"""Preset ``seed``: planted faults and their quiet twins, and what logs do to the rules of thumb."""

import math
from itertools import pairwise

import numpy as np
import pytest

from stabcli.errors import SettingError
from stabcli.rules import run_rules, select
from tests.rules.runs import findings, fires, healthy, make_run, skipped

NAN, INF = math.nan, math.inf

SEVERITY = {
    "seed-loss-spike": "error",
    "seed-grad-norm-high": "warning",
    "seed-nonfinite": "critical",
    "seed-perplexity-rise": "error",
    "seed-perplexity-jump": "warning",
    "seed-moe-aux-loss": "error",
    "seed-grad-norm-run": "error",
    "seed-throughput-drop": "warning",
    "seed-mfu-low": "warning",
    "seed-entropy-collapse": "error",
    "seed-overfitting": "warning",
}

COLUMNS = {
    "seed-loss-spike": ("loss",),
    "seed-grad-norm-high": ("grad_norm",),
    "seed-nonfinite": ("loss",),
    "seed-perplexity-rise": ("val_perplexity",),
    "seed-perplexity-jump": ("val_perplexity",),
    "seed-moe-aux-loss": ("aux_loss",),
    "seed-grad-norm-run": ("grad_norm",),
    "seed-throughput-drop": ("tokens_per_second",),
    "seed-mfu-low": ("mfu",),
    "seed-entropy-collapse": ("entropy", "reward"),
    "seed-overfitting": ("loss", "val_loss"),
}
"""What each rule looks at, in the smallest run that it can judge."""


def test_the_preset_holds_the_eleven_and_nothing_else():
    assert {r.name for r in select(("seed",), ())} == set(SEVERITY)


# A planted fault, and its quiet twin

N = 400
EVALS = np.arange(19, N, 20)


def pretraining(seed=0):
    """A pretraining run that nothing is wrong with, with all that the seed rules look at."""
    random = np.random.default_rng(seed)
    columns = healthy(N, seed)
    columns["grad_norm"] = random.lognormal(np.log(0.35), 0.18, N)
    columns["mfu"] = 0.4 + random.normal(0, 0.005, N)
    columns["aux_loss"] = 0.011 + random.normal(0, 0.0002, N)
    columns["val_loss"] = [None] * N
    for row in EVALS.tolist():
        columns["val_loss"][row] = 2.0 + 8.5 * (row + 20.0) ** -0.42
    return columns


def policy(seed=0):
    """A run of reinforcement learning that nothing is wrong with."""
    random = np.random.default_rng(seed)
    return {
        "step": np.arange(1, N + 1),
        "loss": random.normal(0, 0.01, N),
        "grad_norm": random.lognormal(np.log(0.1), 0.1, N),
        "reward": np.linspace(0.1, 0.8, N) + random.normal(0, 0.01, N),
        "entropy": 1.6 + random.normal(0, 0.05, N),
    }


def spoil(columns, metric, rows, change):
    values = columns[metric]
    for row in rows:
        if values[row] is not None:
            values[row] = change(values[row])


FAULTS = [
    ("seed-loss-spike", pretraining, "loss", range(300, 303), lambda x: 3 * x, (301, 303)),
    ("seed-grad-norm-high", pretraining, "grad_norm", [300], lambda x: 8 * x, (301, 301)),
    ("seed-nonfinite", pretraining, "loss", range(300, N), lambda _: NAN, (301, N)),
    ("seed-perplexity-rise", pretraining, "val_loss", range(300, N), lambda x: x + 1, (320, N)),
    ("seed-perplexity-jump", pretraining, "val_loss", range(319, 320), lambda x: x + 1, (320, 320)),
    ("seed-moe-aux-loss", pretraining, "aux_loss", range(300, N), lambda _: 0.2, (301, N)),
    ("seed-grad-norm-run", pretraining, "grad_norm", range(300, 303), lambda _: 40.0, (301, 303)),
    (
        "seed-throughput-drop",
        pretraining,
        "tokens_per_second",
        range(300, 310),
        lambda x: x / 2,
        (301, 310),
    ),
    ("seed-mfu-low", pretraining, "mfu", range(300, 320), lambda x: x / 2, (301, 320)),
    ("seed-entropy-collapse", policy, "entropy", range(300, N), lambda _: 0.1, (301, N)),
]


@pytest.mark.parametrize("make", [pretraining, policy])
@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_found_in_runs_that_are_well(make, seed):
    """The quiet twins; every rule that can look at the run stays silent."""
    found, not_looked = run_rules(make_run(**make(seed)), select(("seed",), ()))
    assert found == []
    assert len(not_looked) == (1 if make is pretraining else 7)


@pytest.mark.parametrize(("rule", "make", "metric", "rows", "change", "span"), FAULTS)
def test_a_planted_fault_is_one_finding(rule, make, metric, rows, change, span):
    columns = make()
    spoil(columns, metric, rows, change)
    (found,) = findings(make_run(**columns), rule)
    assert (found.first, found.last) == span
    assert (found.rule, found.severity) == (rule, SEVERITY[rule])
    assert found.first <= found.peak <= found.last
    assert found.line == found.peak
    assert found.score is None or found.score > 1


def test_overfitting_is_one_finding_from_the_turn_on():
    columns = pretraining()
    for k, row in enumerate(EVALS[10:].tolist()):
        columns["val_loss"][row] = 3.0 + 0.05 * k
    columns["val_loss"][EVALS[9]] = 3.0
    (found,) = findings(make_run(**columns), "seed-overfitting")
    assert found.last == N
    assert EVALS[10] + 1 <= found.first <= EVALS[13] + 1


# One event is one finding


def test_neighbouring_rows_are_one_finding_and_distant_ones_two():
    norms = np.full(100, 0.5)
    norms[[20, 25, 31]] = 3.0, 5.0, 4.0
    norms[80] = 2.0
    found = findings(make_run(grad_norm=norms), "seed-grad-norm-high")
    assert [(f.first, f.last, f.peak, f.value) for f in found] == [
        (21, 32, 26, 5.0),
        (81, 81, 81, 2),
    ]
    assert len(findings(make_run(grad_norm=norms), "seed-grad-norm-high", join=0)) == 4


@pytest.mark.parametrize("rule", ["seed-moe-aux-loss", "seed-grad-norm-high"])
def test_rows_that_always_fire_are_one_finding(rule):
    (metric,) = COLUMNS[rule]
    (found,) = findings(make_run(**{metric: np.full(5000, 2.0)}), rule)
    assert (found.first, found.last) == (1, 5000)


# What the logs do to them


def test_nan_does_not_blind_the_loss_spike():
    """A hundred and fifty NaN rows are longer than the window; the spike after them is seen."""
    loss = np.full(300, 2.0)
    loss[100:250] = NAN
    loss[260] = 5.0
    assert [f.peak for f in findings(make_run(loss=loss), "seed-loss-spike")] == [261]


def test_an_infinite_loss_is_above_twice_the_mean_and_not_part_of_it():
    loss = np.full(100, 2.0)
    loss[50], loss[70] = INF, 5.0
    found = findings(make_run(loss=loss), "seed-loss-spike")
    assert [(f.first, f.value) for f in found] == [(51, INF), (71, 5.0)]


def test_one_huge_loss_leaves_no_rounding_behind():
    """1e30 leaves the window after a hundred rows; the mean is 2 again, to the last digit."""
    loss = np.full(400, 2.0)
    loss[50] = 1e30
    loss[300] = 4.001
    assert [f.peak for f in findings(make_run(loss=loss), "seed-loss-spike")] == [51, 301]


def test_negative_losses_have_no_ratio():
    assert skipped(make_run(loss=np.full(200, -1.0)), "seed-loss-spike")


@pytest.mark.parametrize(
    ("columns", "metric", "value", "expected"),
    [
        ({"tokens_per_second": 90.0, "step_seconds": 9.0}, "tokens_per_second", 45.0, 90.0),
        ({"tokens_per_second_per_gpu": 80.0}, "tokens_per_second_per_gpu", 40.0, 80.0),
        ({"step_seconds": 2.0}, "step_seconds", 4.0, 2.0),
    ],
)
def test_throughput_is_taken_from_the_best_there_is(columns, metric, value, expected):
    """The finding names the metric used, and gives its value in the metric's own unit."""
    series = {name: np.full(60, level) for name, level in columns.items()}
    series[metric][55] = value
    (found,) = findings(make_run(**series), "seed-throughput-drop")
    assert (found.metric, found.value, found.expected) == (metric, value, expected)


def test_a_step_time_of_just_under_ten_sevenths_is_no_drop():
    series = np.full(60, 0.7)
    series[55] = 1.0
    assert not fires("seed-throughput-drop", step_seconds=series)
    series[55] = 1.0001
    assert fires("seed-throughput-drop", step_seconds=series)


def test_steps_that_take_no_time_and_a_run_that_stands_still():
    """Zeros neither divide nor crash; a throughput of 0 after 100 is the worst drop there is."""
    assert skipped(make_run(step_seconds=np.zeros(60)), "seed-throughput-drop")
    assert not fires("seed-throughput-drop", tokens_per_second=np.zeros(60))
    (found,) = findings(make_run(tokens_per_second=[100.0] * 60 + [0.0]), "seed-throughput-drop")
    assert found.score == INF


def test_an_mfu_of_zero_throughout_was_not_measured():
    assert skipped(make_run(mfu=[0.0, 0.0, 0.0]), "seed-mfu-low")
    assert findings(make_run(mfu=[0.4, 0.0, 0.4]), "seed-mfu-low")[0].score == INF


@pytest.mark.parametrize("rule", ["seed-grad-norm-high", "seed-grad-norm-run"])
def test_a_norm_logged_after_clipping_cannot_be_judged(rule):
    """Norms that stop at the clip say nothing of the gradients; without the clip they might."""
    norms = np.minimum(np.random.default_rng(0).lognormal(0, 0.5, 200), 1.0)
    why = skipped(make_run(grad_norm=norms, facts={"grad_clip": 1.0}), rule)
    assert why == "grad_norm is logged after clipping to 1: the norm is not known"
    assert not fires(rule, grad_norm=norms)
    low = np.random.default_rng(0).lognormal(-2, 0.3, 200)
    assert skipped(make_run(grad_norm=low, facts={"grad_clip": 1.0}), rule) is None


def test_entropy_and_reward_need_not_share_their_rows():
    """The reward is logged on odd rows, the entropy on even ones."""
    entropy = [None if k % 2 else (2.0 if k < 60 else 0.5) for k in range(80)]
    reward = [k * 0.1 if k % 2 else None for k in range(80)]
    (found,) = findings(make_run(entropy=entropy, reward=reward), "seed-entropy-collapse")
    assert (found.first, found.last) == (61, 79)


def test_a_rule_objects_only_to_its_own_attempt():
    """A restart at step 51 goes on from the history before 51, not from the spike it discarded."""
    step = np.concatenate([np.arange(1, 81), np.arange(51, 121)])
    loss = np.full(len(step), 2.0)
    loss[60:80] = 50.0  # attempt 0, steps 61 to 80
    loss[81] = 5.0  # attempt 1, step 52: above twice 2, far below twice the mean with the spike
    found = findings(make_run(step=step, loss=loss), "seed-loss-spike")
    assert [(f.attempt, f.first) for f in found] == [(0, 61), (1, 52)]
    assert found[1].expected == pytest.approx(2.0)


def test_history_goes_on_across_a_restart():
    """An attempt of few rows is judged by what it goes on from."""
    step = np.concatenate([np.arange(1, 101), np.arange(91, 96)])
    values = np.concatenate([np.full(100, 10.0), [10.0, 10.0, 5.0, 25.0, 10.0]])
    assert [f.first for f in findings(make_run(step=step, loss=values), "seed-loss-spike")] == [94]
    drops = findings(make_run(step=step, tokens_per_second=values), "seed-throughput-drop")
    assert [(f.attempt, f.first) for f in drops] == [(1, 93)]
    rise = findings(make_run(step=step, val_perplexity=values), "seed-perplexity-rise")
    assert [(f.attempt, f.first) for f in rise] == [(1, 94)]
    best = np.concatenate([[10.0], np.full(99, 11.9), np.full(5, 12.1)])
    rise = findings(make_run(step=step, val_perplexity=best), "seed-perplexity-rise")
    assert [(f.attempt, f.first, f.expected) for f in rise] == [(1, 91, 10.0)]
    jump = findings(
        make_run(step=[1, 2, 3, 4, 3], val_perplexity=[9, 9, 99, 99, 11]), "seed-perplexity-jump"
    )
    assert [(f.attempt, f.first, f.expected) for f in jump] == [(0, 3, 9), (1, 3, 9)]
    reward = np.concatenate([np.arange(100.0), np.arange(90.0, 95.0)])
    entropy = np.concatenate([np.full(100, 2.0), [2.0, 2.0, 0.5, 2.0, 2.0]])
    collapse = findings(
        make_run(step=step, entropy=entropy, reward=reward), "seed-entropy-collapse"
    )
    assert [(f.attempt, f.first) for f in collapse] == [(1, 93)]


def test_overfitting_goes_on_across_a_restart():
    """Four evaluations before the restart and one after it make five."""
    step = [10, 20, 30, 40, 60, 50]
    loss = [3.0, 2.9, 2.8, 2.7, 9.0, 2.6]
    held_out = [2.0, 2.1, 2.2, 2.3, None, 2.4]
    found = findings(make_run(step=step, loss=loss, val_loss=held_out), "seed-overfitting")
    assert [(f.attempt, f.first) for f in found] == [(1, 50)]


def test_rows_that_repeat_a_step_are_one():
    """Train and validation rows of one step, and a norm written twice, count once."""
    run = make_run(
        step=[1, 1, 2, 2, 3, 3],
        grad_norm=[20.0, 20.0, 20.0, 20.0, None, 1.0],
        val_perplexity=[None, 10.0, None, 10.0, None, 13.0],
    )
    assert findings(run, "seed-grad-norm-run") == []
    assert [f.first for f in findings(run, "seed-perplexity-rise")] == [3]


# Where there is too little, nothing is called clean


@pytest.mark.parametrize("rule", sorted(SEVERITY))
def test_a_constant_series_is_quiet(rule):
    level = {"mfu": 0.5, "aux_loss": 0.05, "val_perplexity": 12.0, "grad_norm": 0.5}
    columns = {c: np.full(300, level.get(c, 2.0)) for c in COLUMNS[rule]}
    assert findings(make_run(**columns), rule) == []


JUDGE_ONE_ROW = {"seed-grad-norm-high", "seed-nonfinite", "seed-moe-aux-loss", "seed-mfu-low"}


@pytest.mark.parametrize("rule", sorted(SEVERITY))
def test_one_row_is_judged_only_by_rules_that_need_no_history(rule):
    run = make_run(**{c: np.array([0.5]) for c in COLUMNS[rule]})
    assert (skipped(run, rule) is None) is (rule in JUDGE_ONE_ROW)


@pytest.mark.parametrize("rule", sorted(SEVERITY))
@pytest.mark.parametrize("rows", [1, 300])
def test_all_nan_is_a_fault_or_cannot_be_judged(rule, rows):
    run = make_run(**{c: np.full(rows, NAN) for c in COLUMNS[rule]})
    if rule == "seed-nonfinite":
        assert [(f.first, f.last) for f in findings(run, rule)] == [(1, rows)]
    else:
        assert skipped(run, rule)


@pytest.mark.parametrize("rule", sorted(SEVERITY))
def test_columns_of_nulls_or_no_columns_cannot_be_judged(rule):
    """Nothing logged is not nothing wrong, and the reason names what is missing."""
    empty = make_run(other=[1.0, 2.0], **{c: [None, None] for c in COLUMNS[rule]})
    for run in (empty, make_run(other=[1.0, 2.0])):
        why = skipped(run, rule)
        assert why is not None
        assert why.startswith("the log has no ")
        assert COLUMNS[rule][0] in why


def test_the_reason_names_both_sources_of_perplexity():
    run = make_run(loss=[1.0, 2.0])
    for rule in ("seed-perplexity-rise", "seed-perplexity-jump"):
        assert skipped(run, rule) == "the log has no val_loss or val_perplexity"


@pytest.mark.parametrize(
    ("rule", "enough"),
    [
        ("seed-loss-spike", 21),
        ("seed-perplexity-rise", 2),
        ("seed-perplexity-jump", 2),
        ("seed-grad-norm-run", 3),
        ("seed-throughput-drop", 21),
        ("seed-entropy-collapse", 20),
        ("seed-overfitting", 5),
    ],
)
def test_a_log_shorter_than_the_window_cannot_be_judged(rule, enough):
    """One row less than the rule needs is skipped; just enough is looked at."""
    for rows in (enough - 1, enough):
        run = make_run(**{c: np.full(rows, 2.0) for c in COLUMNS[rule]})
        assert (skipped(run, rule) is None) is (rows == enough)


@pytest.mark.parametrize(
    ("rule", "setting"),
    [
        ("seed-loss-spike", "window"),
        ("seed-loss-spike", "minimum"),
        ("seed-grad-norm-run", "rows"),
        ("seed-throughput-drop", "window"),
        ("seed-throughput-drop", "minimum"),
        ("seed-entropy-collapse", "window"),
        ("seed-overfitting", "evaluations"),
    ],
)
def test_a_window_of_no_rows_is_the_users_mistake(rule, setting):
    run = make_run(**{c: np.full(60, 2.0) for c in COLUMNS[rule]})
    with pytest.raises(SettingError, match=rule):
        findings(run, rule, **{setting: 0})


def test_settings_move_the_thresholds():
    norms = [0.5, 1.5, 3.0, 1.5]
    firsts = [
        [f.first for f in findings(make_run(grad_norm=norms), "seed-grad-norm-high", threshold=t)]
        for t in (1.0, 2.0, 4.0)
    ]
    assert firsts == [[2], [3], []]
    assert all(len(a) >= len(b) for a, b in pairwise(firsts))
