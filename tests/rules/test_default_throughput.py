"""Speed: what the default rules say of throughput and MFU."""

import numpy as np
import pytest

from tests.rules.runs import findings, healthy, make_run, skipped


def speed(n=2000, seed=0, noise=0.015):
    """Tokens per second of a healthy run: a compiled start, then noise with a heavy lower tail."""
    random = np.random.default_rng(seed)
    x = 3.5e6 * (1 - 0.3 * noise * np.abs(random.standard_t(3, n)))
    x = np.maximum(x * (1 + random.normal(0, noise, n)), 1.5e6)
    x[: min(2, n)] *= 0.1
    return x


def grave(run, rule="throughput-drop", **settings):
    return [f for f in findings(run, rule, **settings) if f.severity != "notice"]


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.05, 0.15])
@pytest.mark.parametrize("n", [30, 300, 3000])
@pytest.mark.parametrize("seed", range(5))
def test_healthy_speed_is_silent(seed, n, noise):
    """Noise up to 15 % and a compiled start give nothing, as a rate and as a time."""
    x = speed(n, seed, noise)

    assert grave(make_run(tokens_per_second=x)) == []
    assert grave(make_run(step_seconds=4e6 / x)) == []
    assert grave(make_run(mfu=0.42 * x / np.median(x)), "mfu-low") == []


@pytest.mark.parametrize("every", [5, 10, 50, 250])
@pytest.mark.parametrize("depth", [0.9, 0.5, 0.05])
def test_periodic_dips_are_silent(every, depth):
    """A slow row at every evaluation is the run's habit, not a drop."""
    x = speed(seed=every)
    x[every - 1 :: every] *= depth

    assert grave(make_run(tokens_per_second=x)) == []


def test_two_kinds_of_periodic_dips_are_silent():
    """Evaluations every 50 rows and deeper checkpoints every 300 have each their own distance."""
    x = speed(seed=1)
    x[49::50] *= 0.6
    x[299::300] *= 0.1

    assert grave(make_run(tokens_per_second=x)) == []


def test_evaluations_explain_their_rows():
    """Rows that hold a validation loss, and those after them, may be slow at any distance."""
    x = speed(seed=2)
    at = np.array([130, 411, 702, 1333, 1801])
    x[at + 1] *= 0.1
    val = [2.0 if i in at else None for i in range(len(x))]

    assert grave(make_run(tokens_per_second=x, val_loss=val)) == []
    assert len(grave(make_run(tokens_per_second=x))) == len(at)


def test_checkpoints_explain_their_rows():
    """Rows at the steps of known checkpoints may be slow."""
    x = speed(seed=3)
    x[[399, 1199]] *= 0.1

    assert grave(make_run(tokens_per_second=x, facts={"checkpoint_every": 400})) == []
    assert grave(make_run(tokens_per_second=x, facts={"checkpoints": (400, 1200)})) == []
    assert len(grave(make_run(tokens_per_second=x))) == 2


def test_last_row_is_silent():
    """The last row holds the final checkpoint."""
    x = speed(seed=4)
    x[-1] *= 0.02

    assert grave(make_run(tokens_per_second=x)) == []


def test_faster_is_silent():
    """A run that gets faster has no drop."""
    x = speed(seed=5)
    x[1000:] *= 1.5

    assert grave(make_run(tokens_per_second=x)) == []


def test_planned_change_begins_anew():
    """Half the speed from where the number of GPUs halves is no drop."""
    x = speed(seed=6)
    x[1000:] *= 0.5
    gpus = np.where(np.arange(2000) < 1000, 512.0, 256.0)

    assert grave(make_run(tokens_per_second=x, gpus=gpus)) == []
    assert [f.severity for f in grave(make_run(tokens_per_second=x))] == ["error"]


def test_batches_of_every_size_are_no_plan():
    """A batch whose tokens differ in every row does not stop the rule from looking."""
    x = speed(seed=7)
    x[1000:1400] *= 0.5
    tokens = np.random.default_rng(0).integers(900, 1100, 2000).astype(float)

    assert len(grave(make_run(tokens_per_second=x, batch_tokens=tokens))) == 1


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "metric", ["tokens_per_second", "tokens_per_second_per_gpu", "step_seconds"]
)
def test_sick_node_is_a_warning(seed, metric):
    """6 % slower for 200 rows, BLOOM's sick node, is one warning over those rows."""
    x = speed(seed=seed)
    x[1000:1200] *= 0.94
    values = 4e6 / x if metric == "step_seconds" else x

    found = grave(make_run(**{metric: values}))

    assert [f.severity for f in found] == ["warning"]
    assert abs(found[0].first - 1001) <= 8
    assert abs(found[0].last - 1200) <= 8
    assert found[0].metric == metric
    assert (found[0].value > found[0].expected) == (metric == "step_seconds")


def test_third_of_the_speed_gone_is_an_error():
    """A lasting loss of 40 % is an error, also between periodic dips."""
    x = speed(seed=8)
    x[49::50] *= 0.5
    x[1200:] *= 0.6

    found = grave(make_run(tokens_per_second=x))

    assert [f.severity for f in found] == ["error"]
    assert abs(found[0].first - 1201) <= 8
    assert found[0].last >= 1999


def test_slow_slide_is_found():
    """A loss of 30 % spread over the whole run is found though no row differs from the one before."""
    x = speed(3000, 9) * np.linspace(1.0, 0.7, 3000)

    assert len(grave(make_run(tokens_per_second=x))) == 1


def test_slower_after_restart():
    """A resumed attempt that is 20 % slower from its first row is compared with the one before."""
    x = speed(2000, 10)
    x[1000:] *= 0.8
    steps = np.concatenate([np.arange(1, 1001), np.arange(901, 1901)])

    found = grave(make_run(step=steps, tokens_per_second=x))

    assert [(f.severity, f.attempt) for f in found] == [("warning", 1)]


@pytest.mark.parametrize("rows", [1, 3])
def test_stall_is_a_warning(rows):
    """A few rows at a fifth of the speed are a stall."""
    x = speed(seed=11)
    x[1234 : 1234 + rows] *= 0.2

    found = grave(make_run(tokens_per_second=x))

    assert [(f.severity, f.first, f.last, f.tags) for f in found] == [
        ("warning", 1235, 1234 + rows, ("stall",))
    ]


def test_short_shallow_drop_is_a_notice():
    """6 % for 40 rows costs less than three rows: worth a notice."""
    x = speed(seed=15, noise=0.005)
    x[1000:1040] *= 0.94

    assert [f.severity for f in findings(make_run(tokens_per_second=x), "throughput-drop")] == [
        "notice"
    ]


def test_single_slow_row_at_a_round_step_is_a_notice():
    """One slow row at step 1,000 may be the checkpoint; the same row at step 1,017 may not."""
    x, y = speed(1300, 16), speed(1300, 16)
    x[999] *= 0.05
    y[1016] *= 0.05

    assert grave(make_run(tokens_per_second=x)) == []
    assert [f.first for f in grave(make_run(tokens_per_second=y))] == [1017]


def test_stall_in_a_log_of_ten_rows():
    """A stall is seen in a run of ten rows, past its start."""
    x = speed(10, 12)
    x[6] *= 0.2

    assert [f.first for f in grave(make_run(tokens_per_second=x))] == [7]


def test_many_stalls_are_one_statistic():
    """Where one row in fifty stalls at random it is the run's habit: one notice."""
    x = speed(seed=13)
    x[np.random.default_rng(0).choice(2000, 40, replace=False)] *= 0.2

    found = findings(make_run(tokens_per_second=x), "throughput-drop")

    assert [f.severity for f in found] == ["notice"]
    assert "statistic" in found[0].tags


@pytest.mark.parametrize("n", [1, 2, 4])
def test_cannot_look(n):
    """No column, or too few rows: said, not passed over."""
    assert "fewer than" in skipped(make_run(tokens_per_second=np.ones(n)), "throughput-drop")
    assert "no tokens_per_second" in skipped(make_run(loss=np.ones(50)), "throughput-drop")


def test_all_nan_cannot_look():
    """A column of NaN says nothing of the speed."""
    run = make_run(tokens_per_second=np.full(100, np.nan), mfu=np.full(100, np.nan))

    assert "fewer than" in skipped(run, "throughput-drop")
    assert "fewer than" in skipped(run, "mfu-low")


def test_low_mfu_is_a_statistic():
    """3 % throughout, a debug model's, is one notice that belongs to no event."""
    mfu = 0.03 * speed(seed=14) / 3.5e6

    found = findings(make_run(mfu=mfu), "mfu-low")

    assert [(f.severity, f.tags) for f in found] == [("notice", ("statistic",))]
    assert found[0].value == pytest.approx(0.03, rel=0.05)


BIG = {"parameters": 7e9, "precision": "bf16", "sequence_length": 4096}


@pytest.mark.parametrize(
    ("facts", "severity"),
    [
        (BIG, "warning"),
        ({"parameters": 7e9}, "warning"),
        ({**BIG, "algorithm": "pretraining"}, "warning"),
        ({}, "notice"),
        ({**BIG, "parameters": 124e6}, "notice"),
        ({**BIG, "precision": "fp8"}, "notice"),
        ({**BIG, "precision": "fp32"}, "notice"),
        ({**BIG, "sequence_length": 131072}, "notice"),
        ({**BIG, "experts": 64}, "notice"),
        ({**BIG, "active_parameters": 1e9}, "notice"),
        ({**BIG, "lora_rank": 16}, "notice"),
        ({**BIG, "base_model": "other/model"}, "notice"),
        ({**BIG, "algorithm": "grpo"}, "notice"),
    ],
)
def test_low_mfu_is_a_warning_of_large_dense_models_only(facts, severity):
    """20 % throughout: of what is known to do better, and of nothing else."""
    mfu = 0.2 * speed(seed=15) / 3.5e6

    (found,) = findings(make_run(mfu=mfu, facts=facts), "mfu-low")

    assert found.severity == severity


def test_low_mfu_of_policies_and_of_the_first_steps_is_a_notice():
    """Rollouts are no training; and 120 steps say little of a run, 250 enough."""
    mfu = 0.2 * speed(seed=16) / 3.5e6
    rewarded = make_run(mfu=mfu, reward=np.linspace(0, 1, 2000), facts=BIG)
    assert [f.severity for f in findings(rewarded, "mfu-low")] == ["notice"]
    for n, severity in ((120, "notice"), (250, "warning")):
        run = make_run(mfu=mfu[:n], facts=BIG)
        assert [f.severity for f in findings(run, "mfu-low")] == [severity]


@pytest.mark.parametrize("seed", range(5))
def test_mfu_below_its_own_best_is_a_warning(seed):
    """From 45 % to 36 % for good is a warning, though both are above 25 %."""
    mfu = 0.45 * speed(seed=seed) / 3.5e6
    mfu[1200:] *= 0.8

    found = findings(make_run(mfu=mfu), "mfu-low")

    assert [(f.severity, f.last) for f in found] == [("warning", 2000)]
    assert abs(found[0].first - 1201) <= 12


def test_impossible_mfu_is_a_notice():
    """120 % is a wrong figure; placeholders and a healthy MFU are none."""
    assert findings(make_run(mfu=np.full(100, 0.42)), "mfu-impossible") == []
    found = findings(make_run(mfu=np.full(100, 1.2)), "mfu-impossible")
    assert [f.severity for f in found] == ["notice"]
    sentinel = np.concatenate([np.full(5, -1.0), np.full(95, 0.4)])
    assert findings(make_run(mfu=sentinel), "mfu-impossible") == []
    assert findings(make_run(mfu=sentinel), "mfu-low") == []


def test_whole_healthy_run_is_silent():
    """The healthy run of the other rules' tests is silent here."""
    for seed in range(5):
        assert findings(make_run(**healthy(seed=seed)), "throughput-drop") == []
