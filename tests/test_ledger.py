"""Where tokens and GPU time come from: columns, flags, clocks, and what contradicts what."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stabcli.cost import Cost, price
from stabcli.ledger import steps_of_rows
from tests.ledgers import START, make_run, steady


def cost_of(report, name):
    return dict(report.classes).get(name, Cost())


def said(report, *words):
    return [a for a in report.assumptions if all(w in a for w in words)]


# sources of time and tokens


def test_rate_is_used_without_a_clock():
    """1T tokens at 40,400 GPU-hours per 1T are 40,400 GPU-hours."""
    run = {"step": np.arange(1, 251), "loss": np.linspace(3, 2, 250)}
    flags = {"tokens_per_step": "4B", "gpu_hours_per_trillion": 40_400}

    report = price(make_run(run, flags=flags), ())

    assert report.all.gpu_hours == pytest.approx(40_400)
    assert (
        "40,400 GPU-hours per 1T tokens (--gpu-hours-per-trillion)"
        in dict(report.sources)["gpu_hours"]
    )


@pytest.mark.parametrize(("mfu", "hours"), [(0.4, 29_500), (0.2, 59_000)])
def test_seven_billion_on_h100(mfu, hours):
    """1T tokens of a 7B on H100: 29.5k GPU-hours at 40 % MFU, 59k at 20 %, by 6N."""
    run = {"step": np.arange(1, 251), "loss": np.linspace(3, 2, 250)}
    flags = {"tokens_per_step": "4B", "parameters": "7B", "gpu": "H100", "mfu": mfu,
             "flops_convention": "hf"}  # fmt: skip
    report = price(make_run(run, flags=flags), ())

    assert report.all.gpu_hours == pytest.approx(hours, rel=0.005)
    assert "6N" in dict(report.sources)["gpu_hours"]


def test_mfu_shortfall_stands_beside_the_classes():
    """Half of the target MFU: half of the GPU-hours would have done; no class holds them."""
    run = steady(1, 1000)
    flags = {"tokens_per_step": 1_000_000, "parameters": "7B", "gpu": "H100", "gpus": 100,
             "target_mfu": 0.8, "flops_convention": "hf"}  # fmt: skip
    report = price(make_run(run, flags=flags), ())

    mfu = 6 * 7e9 * 1e6 / (100 * 989.5e12)
    assert report.efficiency.mfu == pytest.approx(mfu)
    shortfall = report.all.gpu_hours * (1 - mfu / 0.8)
    assert report.efficiency.shortfall_gpu_hours == pytest.approx(shortfall)
    assert report.goodput == 1.0


def test_logged_mfu_that_cannot_be_right_is_said_to_be_so():
    """An MFU of 130 % is a wrong peak or unit."""
    run = steady(1, 100)
    run["mfu"] = np.full(100, 1.3)

    assert said(price(make_run(run), ()), "130.0 %", "cannot be right")


def test_computed_mfu_that_cannot_be_right_is_no_figure():
    """1M tokens a second on 8 GPUs with 7B parameters: what it was made of is named instead."""
    flags = {"gpus": 8, "gpu": "H100", "parameters": "7B", "tokens_per_step": 1_000_000,
             "target_mfu": 0.5}  # fmt: skip
    report = price(make_run(steady(1, 200), flags=flags), ())

    assert report.efficiency.mfu is None
    assert report.efficiency.shortfall_gpu_hours is None
    (doubt,) = said(report, "530.6 % cannot be right")
    for part in ("8 GPUs (--gpus)", "7B parameters (--parameters)", "the peak (H100", "tokens"):
        assert part in doubt
    assert said(report, "MFU shortfall: unknown: the MFU cannot be right")


@pytest.mark.parametrize(("rows", "words"), [(1, "1 row without a"), (2, "2 rows without a")])
def test_one_row_is_not_called_rows(rows, words):
    """A single row without a time is one row that gets the usual pace."""
    times = [None if 100 <= i < 100 + rows else 1.0 for i in range(200)]
    run = {"step": range(1, 201), "loss": np.linspace(3, 2, 200), "step_seconds": times}

    assert said(price(make_run(run), ()), words)


def test_throughput_times_gpus_where_there_is_no_clock():
    """Tokens / (tokens/s) is time."""
    run = {"step": np.arange(1, 101), "loss": np.linspace(3, 2, 100),
           "tokens_per_sec": np.full(100, 500.0)}  # fmt: skip
    report = price(make_run(run, flags={"tokens_per_step": 1000, "gpus": 4}), ())

    assert report.all.gpu_hours * 3600 == pytest.approx(100 * 2 * 4)


def test_throughput_of_one_gpu_needs_no_count_of_them():
    """Tokens / (tokens/s per GPU) are GPU-seconds."""
    run = {"step": np.arange(1, 101), "loss": np.linspace(3, 2, 100), "tgs": np.full(100, 500.0)}
    report = price(make_run(run, flags={"tokens_per_step": 1000}), ())

    assert report.all.gpu_hours * 3600 == pytest.approx(100 * 2)


def test_without_a_count_of_gpus_hours_are_unknown():
    """A clock alone makes no GPU-hours; the report says which flag does."""
    report = price(make_run(steady(1, 100)), ())

    assert report.all.gpu_hours is None
    assert said(report, "GPU-hours: unknown: add --gpus N")
    assert said(report, "goodput is a share of the steps")


def test_money_only_where_a_price_was_given():
    """There is no default price."""
    run = steady(1, 100)
    free = price(make_run(run, flags={"gpus": 36}), ())
    paid = price(make_run(run, flags={"gpus": 36, "gpu_price": 2.5}), ())

    assert free.all.usd is None
    assert paid.all.usd == pytest.approx(2.5)
    assert sum(c.usd for _, c in paid.classes) == pytest.approx(2.5)


def test_tokens_per_second_that_contradict_the_batch_are_reported():
    """tokens/s x time must make the tokens that were counted."""
    run = steady(1, 100)
    run["tokens_per_sec"] = np.full(100, 3000.0)
    flags = {"tokens_per_step": 1000, "gpus": 2}

    assert said(price(make_run(run, flags=flags), ()), "contradiction", "3 times")
    run["tokens_per_sec"] = np.full(100, 1010.0)
    assert not said(price(make_run(run, flags=flags), ()), "contradiction")


def test_throughput_of_one_gpu_taken_for_all_is_recognised():
    """Where tokens/s x GPUs fits, the log means one GPU."""
    run = steady(1, 100)
    run["tokens_per_sec"] = np.full(100, 125.0)
    report = price(make_run(run, flags={"tokens_per_step": 1000, "gpus": 8}), ())

    assert said(report, "contradiction", "one GPU")


def test_rate_that_contradicts_the_clock_is_reported():
    """The clock is believed, and the rate is said to differ."""
    flags = {"tokens_per_step": 1000, "gpus": 8, "gpu_hours_per_trillion": 40_400}
    report = price(make_run(steady(1, 100), flags=flags), ())

    assert said(report, "contradiction", "40,400")


def test_flag_overrules_the_log():
    """--gpus and --tokens-per-step win over columns."""
    run = steady(1, 100)
    run["gpus"] = np.full(100, 2)
    run["batch_tokens"] = np.full(100, 10)
    report = price(make_run(run, flags={"gpus": 4, "tokens_per_step": 20}), ())

    assert report.all.gpu_hours * 3600 == pytest.approx(400)
    assert report.all.tokens == 2000


def test_batch_ramp_is_counted_row_by_row():
    """Tokens follow the batch; small batches at a fast pace are no reason to call others slow."""
    run = steady(1, 400)
    run["batch_tokens"] = np.where(run["step"] <= 200, 1000, 4000)
    run["wall"] = START + np.cumsum(np.where(run["step"] <= 200, 1.0, 3.0))
    report = price(make_run(run, flags={"gpus": 1}), ())

    assert report.all.tokens == 200 * 1000 + 200 * 4000
    assert cost_of(report, "slow") == Cost()
    assert cost_of(report, "stall") == Cost()


def test_megatron_counts_sequences():
    """Sequences x sequence length where no tokens are logged."""
    run = steady(1, 100)
    run["batch_size"] = np.full(100, 8)
    report = price(make_run(run, facts={"sequence_length": 128}), ())

    assert report.all.tokens == 100 * 8 * 128


def test_counter_that_starts_anew_with_an_attempt():
    """tokens_seen of a second attempt begins at its checkpoint again; nothing is negative."""
    step = [*range(1, 101), *range(51, 151)]
    run = make_run({"step": step, "loss": [2.0] * 200, "tokens_seen": [s * 10 for s in step]})
    report = price(run, ())

    assert report.all.tokens == pytest.approx(2000)
    assert cost_of(report, "rolled-back").tokens == pytest.approx(500)


# clocks


def test_toldwithout_a_time_share_the_time_around_them():
    """A clock logged every tenth row times the rows between."""
    run = steady(1, 101)
    wall = [w if i % 10 == 0 else None for i, w in enumerate(run["wall"].tolist())]
    report = price(make_run({**run, "wall": wall}, flags={"gpus": 1}), ())

    assert report.all.gpu_hours * 3600 == pytest.approx(101)


def test_clock_that_goes_back_adds_no_negative_time():
    """The hour that goes back at the end of summer time costs that row its time, nothing else."""
    run = steady(1, 200)
    run["wall"] = run["wall"] - np.where(run["step"] > 100, 3600.0, 0.0)
    report = price(make_run(run, flags={"gpus": 1}), ())

    assert report.all.gpu_hours * 3600 == pytest.approx(200)
    assert said(report, "goes back")


def test_clock_put_right_later_is_no_stall():
    """An hour back and an hour forward again: two rows get the usual pace."""
    run = steady(1, 300)
    off = (run["step"] > 100) & (run["step"] <= 200)
    run["wall"] = run["wall"] - np.where(off, 3600.0, 0.0)
    report = price(make_run(run, flags={"gpus": 1}), ())

    assert report.all.gpu_hours * 3600 == pytest.approx(300)


def test_standstill_of_one_hour_may_be_a_time_zone():
    """It is counted, and the doubt is said."""
    run = steady(1, 200)
    run["wall"] = run["wall"] + np.where(run["step"] > 100, 3600.0, 0.0)
    report = price(make_run(run, flags={"gpus": 1}), ())

    assert cost_of(report, "stall").gpu_hours == pytest.approx(1)
    assert said(report, "time zone")


def test_downtime_is_unknown_where_attempts_overlap_in_time():
    """A second attempt that began before the first ended was timed in another zone."""
    rows = {
        name: np.concatenate([steady(1, 100)[name], steady(51, 150, start=START - 7200)[name]])
        for name in ("step", "loss", "wall")
    }
    report = price(make_run(rows, flags={"gpus": 1}), ())

    assert cost_of(report, "downtime") == Cost()
    assert said(report, "downtime before attempt 1: unknown")
    assert report.all.gpu_hours * 3600 == pytest.approx(200)


def test_second_wide_clock_of_faster_steps():
    """Times in whole seconds of steps of 0.3 s make neither stalls nor slowness."""
    run = steady(1, 1000, step_seconds=0.3)
    run["wall"] = np.floor(run["wall"])
    report = price(make_run(run, flags={"gpus": 1}), ())

    assert report.goodput > 0.99
    assert report.all.gpu_hours * 3600 == pytest.approx(300, abs=2)


def test_step_time_that_contradicts_the_wall_clock_is_reported():
    """A micro-step's time is a quarter of the wall clock's."""
    run = steady(1, 100)
    run["step_time"] = np.full(100, 0.25)

    assert said(price(make_run(run, flags={"gpus": 1}), ()), "contradiction", "4 times")


def test_elapsed_time_holds_the_start():
    """The time before the first step of an attempt is downtime."""
    run = {"step": np.arange(1, 101), "loss": np.linspace(3, 2, 100),
           "elapsed": 60.0 + np.arange(1, 101)}  # fmt: skip
    report = price(make_run(run, flags={"gpus": 1}), ())

    assert cost_of(report, "downtime").gpu_hours * 3600 == pytest.approx(60)


@given(st.integers(1, 50), st.integers(1, 5000))
def test_toldstand_for_all_steps_between(every, rows):
    """The steps of the rows add up to the last step, counted from the beginning."""
    step = np.arange(1, min(rows, 200) + 1) * every
    run = make_run({"step": step, "loss": np.full(len(step), 2.0)})
    total = int(steps_of_rows(run).sum())

    assert total == (step[-1] if len(step) > 1 else 1)


def rated(work, batch, *, pause=0.0, whole=False, seed=0):
    """Return a run of rows that take ``work`` seconds each, tell tokens/s, and nothing else."""
    rng = np.random.default_rng(seed)
    wall = START + np.cumsum((work + pause) * rng.normal(1, 0.005, ROWS))
    columns = {
        "step": AT + 1,
        "loss": np.linspace(3, 2, ROWS),
        "wall": np.floor(wall) if whole else wall,
        "tokens_per_sec": batch / work * rng.normal(1, 0.01, ROWS),
    }
    return make_run(columns)


ROWS = 1500
AT = np.arange(ROWS)
BATCH = np.full(ROWS, 1e6)
SLOWER = np.where(AT < 1000, 1.0, 3.0)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    ("work", "batch", "pause"),
    [
        (np.where(AT < 1000, 1.0, 1 / 0.6), BATCH, 0.0),
        (SLOWER, BATCH, 0.0),
        (SLOWER, BATCH, np.where(AT == 1200, 3600.0, 0.0)),
        (np.full(ROWS, 1.2), BATCH, 0.0),
        (np.full(ROWS, 0.3), BATCH, 0.0),
        (np.full(ROWS, 1.0), BATCH, np.where(AT == 700, 3600.0, 0.0)),
        (np.full(ROWS, 1.0), BATCH, np.where(AT % 10 == 9, 30.0, 0.0)),
        (np.where(AT < 700, 1.0, 2.0), np.where(AT < 700, 1e6, 2e6), 0.0),
        (np.full(ROWS, 1.1), np.where(AT < 700, 1e6, 2e6), 0.0),
    ],
    ids=["slow", "very slow", "stall in slow", "1.2 s", "0.3 s", "stall", "evaluations",
         "ramp that takes longer", "ramp"],
)  # fmt: skip
def test_tokens_of_a_rate_and_a_clock_are_those_of_the_steps(work, batch, pause, whole):
    """Slow steps hold as many tokens as fast ones, pauses hold none, and a ramp is followed."""
    report = price(rated(work, batch, pause=pause, whole=whole, seed=11), ())

    assert dict(report.sources)["tokens"] == "column tokens_per_sec x wall clock"
    assert report.all.tokens == pytest.approx(float(batch.sum()), rel=0.01)


@pytest.mark.parametrize("rows", [2, 3, 4])
def test_tokens_of_a_restart_of_few_toldare_finite(rows):
    """An attempt too short to show what its steps hold gets what the run's steps hold."""
    told = [
        {"step": s, "loss": 2.0, "wall": START + t, "tokens_per_sec": 1e6}
        for s, t in zip(
            [*range(1, 201), *range(150, 150 + rows)],
            [*range(1, 201), *range(3801, 3801 + 900 * rows, 900)],
            strict=True,
        )
    ]
    report = price(make_run(told), ())

    assert report.all.tokens == pytest.approx((200 + rows) * 1e6, rel=0.01)
