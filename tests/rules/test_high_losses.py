"""Rule ``loss-broken``: losses that are high by nature, and those that are broken."""

import numpy as np
import pytest

from tests.rules.runs import findings, make_run, skipped


def high(first: float, last: float, n: int = 1500, noise: float = 0.05) -> np.ndarray:
    """A loss that falls from one level to another early on and stays there, with lognormal noise."""
    random = np.random.default_rng(3)
    return (last + (first - last) * np.exp(-np.arange(n) / 150)) * random.lognormal(0, noise, n)


@pytest.mark.parametrize(
    ("first", "last"), [(550.0, 105.0), (96.0, 18.0), (77.0, 17.0), (27.0, 16.5)]
)
def test_a_high_loss_that_falls_well_is_not_broken_where_nothing_counts_tokens(first, last):
    """Autoencoders, detectors and transducers have losses like that; the rule says it can't tell."""
    run = make_run(loss=high(first, last))
    assert "nothing counts tokens" in skipped(run, "loss-broken")


@pytest.mark.parametrize(
    ("columns", "facts"),
    [
        ({"tokens_per_second": np.full(1500, 1e5)}, {}),
        ({"lm loss": high(96, 18)}, {}),
        ({}, {"sequence_length": 2048}),
        ({}, {"vocab_size": 50257}),
    ],
)
def test_the_same_loss_of_a_language_model_is_broken(columns, facts):
    """Where tokens are counted, a loss far above a uniform guess is told, falling or not."""
    named = columns if "lm loss" in columns else {"loss": high(96, 18), **columns}
    (found,) = findings(make_run(**named, facts=facts), "loss-broken")
    assert (found.severity, found.first, found.last) == ("error", 1, 1500)


@pytest.mark.parametrize("last", [550.0, 450.0, 600.0])
def test_a_high_loss_that_does_not_fall_well_is_broken_whatever_it_is(last):
    (found,) = findings(make_run(loss=high(550.0, last)), "loss-broken")
    assert found.severity == "error"


def test_a_wild_loss_that_is_lower_at_its_end_by_chance_is_still_broken():
    """Of losses that scatter by a factor of three, eight rows tell no level."""
    for seed in range(40):
        loss = np.random.default_rng(seed).lognormal(3.5, 1.0, 160)
        assert findings(make_run(loss=loss), "loss-broken"), seed


def test_gradient_norms_are_judged_where_the_loss_is_not():
    norms = np.full(1500, 1e5)
    run = make_run(loss=high(96, 18), grad_norm=norms, facts={"precision": "bf16"})
    (found,) = findings(run, "loss-broken")
    assert found.metric == "grad_norm"
