"""Baseline: worse is worse by more than the margin and the noise; nothing is passed unseen."""

import numpy as np
import pytest

from stabcli.baseline import MARGINS, Margins, against, margins
from stabcli.diagnosis import diagnose
from stabcli.errors import SettingError
from tests.rules.runs import healthy, make_run


def compared(ours, theirs, **allowed):
    """Name -> criterion of two runs given by their columns, or as runs."""
    runs = [r if not isinstance(r, dict) else make_run(**r) for r in (ours, theirs)]
    found = against(diagnose(runs[0]), diagnose(runs[1]), Margins(**allowed))
    return {c.name.removeprefix("baseline "): c for c in found}


def statuses(found):
    """Name -> status."""
    return {name: c.status for name, c in found.items()}


@pytest.mark.parametrize("seed", range(5))
def test_another_seed_of_the_same_run_passes(seed):
    """Two runs that differ in nothing but noise are not worse than one another."""
    found = compared(healthy(3000, seed=seed), healthy(3000, seed=seed + 50))

    assert set(statuses(found).values()) == {"pass", "skipped"}
    assert found["mfu"].status == "skipped"


def test_a_worse_end_fails_in_both_losses():
    """A run that settled 0.2 nats higher is worse at the end and at equal steps."""
    worse = healthy(3000)
    worse["loss"] = worse["loss"] + 0.2
    found = statuses(compared(worse, healthy(3000, seed=1)))

    assert (found["final-loss"], found["loss"]) == ("fail", "fail")


@pytest.mark.parametrize("whose", ["ours", "theirs"])
def test_a_loss_that_is_no_longer_logged_is_not_compared_at_the_end(whose):
    """Neither half-way loss is a final one; at equal steps they still compare."""
    stopped, whole = healthy(3000), healthy(3000, seed=1)
    stopped["loss"] = [*stopped["loss"][:1500].tolist(), *[None] * 1500]
    pair = (stopped, whole) if whose == "ours" else (whole, stopped)
    found = compared(*pair)

    assert found["final-loss"].status == "unknown"
    assert "logged last at step 1,500" in found["final-loss"].text
    assert found["loss"].status == "pass"


def test_margin_decides():
    """The same difference passes where the margin allows it."""
    worse = healthy(3000)
    worse["loss"] = worse["loss"] * 1.05

    assert compared(worse, healthy(3000, seed=1), loss=0.01)["final-loss"].status == "fail"
    assert compared(worse, healthy(3000, seed=1), loss=0.08)["final-loss"].status == "pass"


def test_noise_decides():
    """A difference within the noise of a noisy tail is no difference; in a quiet one it is."""
    quiet, noisy = healthy(1000, noise=0.001), healthy(1000, noise=0.8)
    higher = [{**c, "loss": c["loss"] * 1.05} for c in (quiet, noisy)]

    assert compared(higher[0], healthy(1000, seed=1, noise=0.001))["final-loss"].status == "fail"
    assert compared(higher[1], healthy(1000, seed=1, noise=0.8))["final-loss"].status == "pass"


def test_half_a_run_is_compared_where_both_have_been():
    """At equal steps a run that is half done is as good, though its end is worse."""
    half = {k: v[:1500] for k, v in healthy(3000, noise=0.01).items()}
    found = compared(half, healthy(3000, seed=1, noise=0.01))

    assert found["final-loss"].status == "fail"
    assert found["loss"].status == "pass"
    assert "at 1.5k steps" in found["loss"].text


def test_equal_tokens_not_equal_steps():
    """With twice the batch the same loss is due at half the steps."""
    large, small = healthy(1000, noise=0.01), healthy(2000, seed=1, noise=0.01)
    large["loss"] = small["loss"][1::2]
    runs = [
        make_run(**columns, facts={"tokens_per_step": n})
        for columns, n in ((large, 2000), (small, 1000))
    ]
    found = compared(*runs)

    assert "at 2M tokens" in found["loss"].text
    assert found["loss"].status == "pass"


def test_no_stretch_in_common_is_not_judged():
    """A run that begins after the baseline's end has no equal steps."""
    later = healthy(1000)
    later["step"] = later["step"] + 5000
    found = compared(later, healthy(1000, seed=1))

    assert found["loss"].status == "unknown"
    assert "no stretch in common" in found["loss"].text


def test_baseline_that_broke_is_no_baseline():
    """NaN at the end of the baseline is not a bar that anything clears."""
    broken = healthy(1000)
    broken["loss"][900:] = np.nan

    assert compared(healthy(1000), broken)["final-loss"].status == "unknown"
    assert compared(broken, healthy(1000))["final-loss"].status == "fail"


@pytest.mark.parametrize(("factor", "status"), [(0.97, "pass"), (0.9, "fail"), (1.5, "pass")])
def test_throughput(factor, status):
    """Slower by more than 5 % is worse."""
    ours = healthy(1000)
    ours["tokens_per_second"] = ours["tokens_per_second"] * factor

    assert compared(ours, healthy(1000, seed=1))["throughput"].status == status


@pytest.mark.parametrize("clock", [False, True])
def test_a_third_of_the_run_at_60_percent_is_less_throughput(clock):
    """What is compared is all tokens over all time, which a median of rows would not show."""
    runs = []
    for seed, slow in ((0, True), (1, False)):
        run = healthy(1500, seed=seed)
        took = np.where(slow & (np.arange(1500) >= 1000), 1 / 0.6, 1.0)
        run["tokens_per_second"] = 1e6 / took * np.random.default_rng(seed).normal(1, 0.01, 1500)
        if clock:
            run["elapsed_seconds"] = np.cumsum(took)
        runs.append(run)
    found = compared(*runs)["throughput"]

    assert found.status == "fail"
    assert found.value == pytest.approx(1e6 * 1500 / (1000 + 500 / 0.6), rel=0.01)
    assert compared(runs[1], runs[1])["throughput"].status == "pass"


@pytest.mark.parametrize("clock", ["elapsed_seconds", "step_seconds"])
def test_a_pause_is_no_less_throughput(clock):
    """A stall of an hour, evaluations and the first steps, which compile, are left out."""
    at = np.arange(1000)
    ours, theirs = healthy(1000), healthy(1000, seed=1)
    for run, pause in ((ours, True), (theirs, False)):
        del run["tokens_per_second"]
        took = np.random.default_rng(0).normal(1, 0.01, 1000)
        if pause:
            took += np.where(at == 500, 3600.0, 0) + np.where(at % 100 == 99, 20.0, 0)
            took += np.where(at < 6, 40.0, 0)
        run[clock] = np.cumsum(took) if clock == "elapsed_seconds" else took
    found = compared(ours, theirs)["throughput"]

    assert found.status == "pass"
    assert found.value == pytest.approx(1.0, rel=0.01)
    assert "standstills left out" in found.text


def test_throughput_is_per_gpu_where_both_say_how_many():
    """Half the GPUs at half the throughput is no loss of speed."""
    ours, theirs = healthy(1000), healthy(1000, seed=1)
    ours["tokens_per_second"] = ours["tokens_per_second"] / 2
    runs = [make_run(**ours, facts={"gpus": 4}), make_run(**theirs, facts={"gpus": 8})]
    found = compared(*runs)["throughput"]

    assert found.status == "pass"
    assert "per GPU" in found.text


@pytest.mark.parametrize(("mine", "status"), [(0.4, "pass"), (0.385, "pass"), (0.35, "fail")])
def test_mfu(mine, status):
    """Lower by more than 5 % of it is worse."""
    ours = {**healthy(400), "mfu": np.full(400, mine)}
    theirs = {**healthy(400), "mfu": np.full(400, 0.4)}

    assert compared(ours, theirs)["mfu"].status == status


@pytest.mark.parametrize("wrong", [0, 1])
def test_an_mfu_that_cannot_be_right_is_compared_with_nothing(wrong):
    """Neither as this run's figure nor as the bar."""
    facts = [{"gpus": 8, "gpu": "H100", "parameters": 7e7, "tokens_per_step": 1e6} for _ in "ab"]
    facts[wrong]["parameters"] = 7e9
    runs = []
    for own in facts:
        runs.append(make_run(**healthy(400), step_seconds=np.full(400, 1.0), facts=own))
    found = compared(*runs)["mfu"]

    assert found.status == "unknown"
    assert "cannot be right" in found.text


def test_what_only_the_baseline_tells_is_unknown():
    """A metric that is no longer logged is not passed; one that never was is skipped."""
    ours, theirs = healthy(1000), {**healthy(1000), "mfu": np.full(1000, 0.4)}
    del ours["tokens_per_second"]
    found = statuses(compared(ours, theirs))

    assert (found["throughput"], found["mfu"]) == ("unknown", "unknown")
    assert statuses(compared(theirs, ours))["throughput"] == "skipped"
    no_loss = {k: v for k, v in healthy(1000).items() if k == "tokens_per_second"}
    assert statuses(compared(no_loss, theirs))["final-loss"] == "unknown"
    assert statuses(compared(no_loss, theirs))["spikes"] == "unknown"


def test_nothing_in_common_is_no_pass():
    """Where everything is skipped there is a criterion that says so."""
    found = statuses(compared({"kl": np.full(50, 0.1)}, {"kl": np.full(50, 0.1)}))

    assert found.pop("baseline") == "unknown"
    assert set(found.values()) == {"skipped"}


def spiked(at, seed=0):
    """A healthy run with spikes."""
    columns = healthy(4000, seed=seed)
    for step in at:
        columns["loss"][step : step + 3] += 3.0
    return columns


def test_a_spike_more_may_be_chance_and_six_more_are_not():
    """Spikes are counts: what chance makes of equal rates is no worse rate."""
    assert compared(spiked([1000]), healthy(4000, seed=1))["spikes"].status == "pass"
    many = spiked(range(1000, 4000, 500))
    found = compared(many, healthy(4000, seed=1))["spikes"]
    assert found.status == "fail"
    assert found.value == pytest.approx(6 / 4)
    assert compared(many, spiked(range(1200, 4000, 500), seed=1))["spikes"].status == "pass"


def test_margins_are_checked():
    """An unknown margin or a value that is no share is one line."""
    assert margins({"loss": ("2%", "--margin loss")}).loss == pytest.approx(0.02)
    for name, value, said in (
        ("los", "2%", "did you mean loss?"),
        ("loss", "2", "takes a share"),
    ):
        with pytest.raises(SettingError, match=said.replace("?", r"\?")):
            margins({name: (value, f"--margin {name}")})
    assert set(MARGINS) == set(Margins.__dataclass_fields__)
