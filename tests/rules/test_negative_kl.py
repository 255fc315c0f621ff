"""A divergence below 0 whose estimator never is: named so, or known to be so, and never k1."""

import numpy as np
import pytest

from tests.rules.runs import findings, make_run, skipped


def told(values, name="kl", n=300, **facts):
    """Severity, first and last step of what is said of the values from row 100 to 119."""
    column = np.abs(np.random.default_rng(0).normal(0.02, 0.01, n))
    column[100:120] = values
    run = make_run(reward=np.linspace(0, 1, n), facts=facts, **{name: column})
    if skipped(run, "kl-runaway"):
        return []
    return [
        (f.severity, f.first, f.last)
        for f in findings(run, "kl-runaway")
        if "negative-k3" in f.tags
    ]


@pytest.mark.parametrize(
    "name", ["kl/k3", "kl.k3", "train/low_var_kl", "low_var_kl", "kl/low_var_kl/mean"]
)
def test_k3_below_zero_is_a_warning(name):
    assert told(-0.05, name) == [("warning", 101, 120)]
    assert told(0.0, name) == []


@pytest.mark.parametrize(
    ("name", "facts", "fires"),
    [
        ("actor/kl_loss", {"kl_loss_type": "low_var_kl"}, True),
        ("actor/kl_loss", {"kl_loss_type": "k3"}, True),
        ("actor/kl_loss", {"kl_loss_type": "kl"}, False),
        ("actor/kl_loss", {"kl_estimator": "k3"}, False),
        ("actor/kl_loss", {}, False),
        ("kl", {"kl_estimator": "k3"}, True),
        ("train/kl", {"kl_estimator": "k3"}, True),
        ("kl", {"kl_estimator": "k1"}, False),
        ("kl", {"kl_loss_type": "low_var_kl"}, False),
        ("kl", {"algorithm": "grpo"}, False),
        ("critic/kl", {"kl_loss_type": "low_var_kl"}, False),
        ("actor/reward_kl_penalty", {"kl_loss_type": "low_var_kl"}, False),
        ("objective/kl", {}, False),
        ("actor/ppo_kl", {"kl_loss_type": "low_var_kl"}, False),
        ("kl/k3_coef", {}, False),
        ("grad_norm/low_var_kl", {}, False),
        ("reward/k3", {}, False),
    ],
)
def test_only_what_is_known_to_be_k3(name, facts, fires):
    """Of k1, which ``objective/kl`` of TRL's PPO is, healthy runs log negative means."""
    assert bool(told(-0.05, name, **facts)) == fires


@pytest.mark.parametrize(
    ("value", "severity"), [(-0.0041, "warning"), (-0.003, "notice"), (-1e-8, None), (0.0, None)]
)
def test_rounding_is_a_notice_and_its_last_digits_nothing(value, severity):
    """Half the distance of two bf16 numbers above 1 is 0.0039."""
    assert [s for s, *_ in told(value, "low_var_kl")] == ([severity] if severity else [])


def test_negative_in_half_of_the_rows_is_another_estimator():
    """k1 around 0 under the name of k3."""
    values = np.random.default_rng(1).normal(-0.01, 0.02, 200)
    found = findings(make_run(**{"kl/k3": values}), "kl-runaway")
    assert [(f.severity, f.expected) for f in found] == [("error", 0.0)]
    assert found[0].value == pytest.approx(values.min())


@pytest.mark.parametrize("values", [[float("nan")] * 30, [0.0] * 30, [0.02], [None, 0.1] * 10])
def test_without_a_negative_value_nothing_is_said_or_looked_at(values):
    run = make_run(**{"kl/k3": values})
    assert skipped(run, "kl-runaway") or findings(run, "kl-runaway") == []


def test_one_row_is_enough():
    """What cannot be needs no second witness."""
    assert [f.severity for f in findings(make_run(**{"kl/k3": [-0.5]}), "kl-runaway")] == [
        "warning"
    ]
