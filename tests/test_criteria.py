"""Criteria: met, missed, or impossible to tell and then never met."""

import math

import numpy as np
import pytest

from stabcli.criteria import LIMITS, Limits, limit, limits, looked, required
from stabcli.diagnosis import diagnose
from stabcli.errors import SettingError
from tests.ledgers import make_run as run_with_clock
from tests.ledgers import steady
from tests.rules.runs import healthy, make_run


def judged(run, **asked):
    """Status, value and text of the one limit asked."""
    found = list(limits(diagnose(run), Limits(**asked)))
    assert len(found) == 1
    return found[0]


def clocked(**changes):
    """A run with a clock, GPUs and tokens."""
    flags = {"gpus": 8, "tokens_per_step": 1000, **changes}
    return run_with_clock(steady(1, 400), flags=flags)


def test_nothing_asked_is_nothing_judged():
    """Without limits there is no criterion."""
    assert list(limits(diagnose(clocked()), Limits())) == []


@pytest.mark.parametrize(("most", "status"), [(0.0, "pass"), (100.0, "pass")])
def test_a_clean_run_wastes_nothing(most, status):
    """A limit of zero is met by a run that wasted nothing."""
    assert judged(clocked(), max_wasted_gpu_hours=most).status == status
    assert judged(clocked(), max_wasted_share=most / 100).status == status


def test_waste_beyond_the_limit_fails():
    """Steps redone after a restart are waste, and are counted."""
    first, again = steady(1, 300), steady(200, 400, start=1.7e9 + 400)
    rows = {k: np.concatenate([first[k], again[k]]) for k in first}
    run = run_with_clock(rows, flags={"gpus": 8, "tokens_per_step": 1000})

    assert judged(run, max_wasted_gpu_hours=0.01).status == "fail"
    assert judged(run, max_wasted_share=0.01).status == "fail"
    found = judged(run, max_discarded_steps=100)
    assert (found.status, found.value) == ("fail", 101)
    assert judged(run, max_discarded_steps=101).status == "pass"


def test_unknown_gpu_hours_are_not_under_any_limit():
    """Without GPUs the criterion cannot be told, and says which flag would tell it."""
    found = judged(run_with_clock(steady(1, 400)), max_wasted_gpu_hours=1e9)

    assert (found.status, found.value) == ("unknown", None)
    assert "add --gpus N" in found.text


def test_share_without_a_clock_says_what_it_is_a_share_of():
    """A share of the steps is told as one."""
    loss = 2.0 + np.random.default_rng(0).normal(0, 0.01, 300)
    found = judged(make_run(loss=loss), max_wasted_share=0.1)

    assert found.status == "pass"
    assert "of the steps (GPU time is unknown" in found.text


def test_mfu_is_computed_or_logged_or_unknown():
    """A logged MFU counts; without one, what is missing is named; an impossible one is unknown."""
    columns = healthy(400)

    assert judged(make_run(**columns, mfu=np.full(400, 0.4)), min_mfu=0.35).status == "pass"
    assert judged(make_run(**columns, mfu=np.full(400, 0.4)), min_mfu=0.45).status == "fail"
    unknown = judged(make_run(**columns), min_mfu=0.35)
    assert unknown.status == "unknown"
    assert "add --params N" in unknown.text
    assert "--gpu NAME" in unknown.text
    wrong = {"parameters": 7e9, "gpus": 1, "gpu": "H100", "tokens_per_step": 4_000_000}
    run = run_with_clock(steady(1, 400), flags=wrong)
    assert judged(run, min_mfu=0.35).status == "unknown"


@pytest.mark.parametrize(("most", "status"), [(2.2, "pass"), (1.9, "fail")])
def test_final_loss_is_that_of_the_end(most, status):
    """A loss that was high at the start counts as it ended."""
    loss = np.concatenate([np.full(200, 9.0), np.full(100, 2.0)])

    assert judged(make_run(loss=loss), max_final_loss=most).status == status


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize(("rows", "status"), [(1000, "unknown"), (1990, "pass"), (2000, "pass")])
def test_a_loss_that_is_no_longer_logged_is_no_final_loss(rows, status, every):
    """What the loss was half-way says nothing of the end; a few rows without it are usual."""
    columns = healthy(2000)
    columns["step"] = columns["step"] * every
    columns["loss"] = [*columns["loss"][:rows].tolist(), *[None] * (2000 - rows)]
    found = judged(make_run(**columns), max_final_loss=9.0)

    assert found.status == status
    if status == "unknown":
        said = f"logged last at step {rows * every:,}, and the log goes on to step {2000 * every:,}"
        assert said in found.text
        assert found.value is None


def test_a_loss_logged_in_few_rows_has_an_end():
    """One row in fifty has a loss, the last of them 49 rows before the end."""
    loss = [2.0 if i % 50 == 0 else None for i in range(2000)]
    run = make_run(loss=loss, grad_norm=np.ones(2000))

    assert judged(run, max_final_loss=9.0).status == "pass"


def test_final_loss_that_is_not_finite_fails_and_one_never_logged_is_unknown():
    """NaN is under no limit; an absent loss is not judged."""
    loss = np.where(np.arange(300) > 250, np.nan, 2.0)

    assert judged(make_run(loss=loss), max_final_loss=9.0).status == "fail"
    assert judged(make_run(grad_norm=np.ones(300)), max_final_loss=9.0).status == "unknown"


def test_required_metric_by_either_name():
    """What has to be there is there under its canonical or its own name, or is unknown."""
    d = diagnose(make_run(train_loss=np.full(100, 2.0), grad_norm=np.full(100, np.nan)))

    assert required(d, "loss").status == "pass"
    assert required(d, "train_loss").status == "pass"
    assert required(d, "grad_norm").status == "pass"
    absent = required(d, "mfu")
    assert (absent.status, "--map mfu=NAME" in absent.text) == ("unknown", True)
    assert "did you mean loss?" in required(d, "los").text


def test_required_rule_has_to_have_looked():
    """A rule that could not look, or was not chosen, is not passed."""
    d = diagnose(make_run(**healthy(400)), only=("loss-spike", "mfu-low"))

    assert required(d, "loss-spike").status == "pass"
    assert "the log has no mfu" in required(d, "mfu-low").text
    assert required(d, "mfu-low").status == "unknown"
    assert "not among those chosen" in required(d, "nonfinite").text


def test_blind_run_is_unknown():
    """Where no rule looked there is no verdict; where one did there is nothing to add."""
    run = make_run(**healthy(400))

    assert looked(diagnose(run)) is None
    assert looked(diagnose(run, only=("mfu-low",))).status == "unknown"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("max_wasted_share", "5%", 0.05),
        ("max_wasted_share", "0.05", 0.05),
        ("max_wasted_share", 0, 0.0),
        ("min_mfu", "100 %", 1.0),
        ("max_final_loss", "-1.5", -1.5),
        ("max_discarded_steps", "10k", 10_000),
        ("max_wasted_gpu_hours", 50, 50.0),
    ],
)
def test_limits_as_people_write_them(name, text, value):
    """Shares, counts and numbers, from a flag or a file."""
    assert limit(name, text, "--x") == pytest.approx(value)


@pytest.mark.parametrize("name", list(LIMITS))
@pytest.mark.parametrize("value", ["", "many", "nan", "inf", True, None, [1]])
def test_limits_that_are_none(name, value):
    """Whatever is no such figure is one line that names where it stands."""
    with pytest.raises(SettingError, match=r"^stabcli.toml: check.x: takes a "):
        limit(name, value, "stabcli.toml: check.x")


@pytest.mark.parametrize("value", ["5", 5, "-1%", "101%"])
def test_shares_are_between_nothing_and_all(value):
    """5 is no share: it might be meant as 5 % or as five times."""
    with pytest.raises(SettingError, match="takes a share"):
        limit("max_wasted_share", value, "--x")


def test_every_limit_has_a_measure():
    """No limit can be given and then be passed by."""
    given = Limits(**dict.fromkeys(LIMITS, 0.5))

    assert len(list(limits(diagnose(clocked()), given))) == len(LIMITS)
    assert all(not math.isnan(getattr(given, name)) for name in LIMITS)
