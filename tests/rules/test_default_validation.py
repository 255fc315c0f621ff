"""Validation: what the default rules say of evaluations."""

import numpy as np
import pytest

from tests.rules.runs import findings, healthy, make_run, skipped

RULES = ("perplexity-rise", "perplexity-jump", "overfitting")
ALL = (*RULES, "seed-perplexity-rise", "seed-perplexity-jump")


def sparse(values, every, n):
    """A column of ``n`` rows that holds ``values`` every ``every``-th row, nothing elsewhere."""
    column = [None] * n
    for i, value in enumerate(values):
        column[(i + 1) * every - 1] = float(value)
    return column


def evaluated(seed, noise=0.01, n=2000, every=50):
    """A healthy run and its validation losses, to be spoilt before ``with_evals``."""
    columns = healthy(n, seed)
    at = np.arange(every, n + 1, every)
    random = np.random.default_rng(seed + 1)
    return columns, 1.95 + 8.5 * (at + 20.0) ** -0.42 + random.normal(0, noise, len(at)), every


def with_evals(columns, evals, every, name="val_loss"):
    return make_run(**columns, **{name: sparse(evals, every, len(columns["step"]))})


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("noise", [0.0, 0.01, 0.05, 0.1])
@pytest.mark.parametrize("seed", range(8))
def test_healthy_evals_are_silent(rule, noise, seed):
    """Falling validation losses give nothing, however noisy the evaluation set."""
    assert findings(with_evals(*evaluated(seed, noise)), rule) == []


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(5))
def test_plateau_is_silent(rule, seed):
    """Noise about one level, from which the best always lies below, is no rise."""
    columns, evals, every = evaluated(seed)
    evals = 2.0 + np.random.default_rng(seed).normal(0, 0.06, len(evals))

    assert findings(with_evals(columns, evals, every), rule) == []


@pytest.mark.parametrize("rule", RULES)
def test_constant_evals_are_silent(rule):
    """Evaluations without any spread make no finding."""
    columns, evals, every = evaluated(0)

    assert findings(with_evals(columns, np.full_like(evals, 2.0), every), rule) == []


@pytest.mark.parametrize("rule", RULES)
def test_cannot_look_without_evals(rule):
    """No validation column, one evaluation, or only NaN: the rule says that it could not look."""
    columns, _, every = evaluated(0)

    assert skipped(make_run(**columns), rule) == "the log has no val_loss or val_perplexity"
    assert "fewer than" in skipped(with_evals(columns, [2.0], every), rule)
    assert "fewer than" in skipped(with_evals(columns, [np.nan] * 30, every), rule)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", ["val_loss", "val_perplexity"])
def test_rise_fires(seed, name):
    """0.3 nats above the best for eight evaluations is an error with their steps."""
    columns, evals, every = evaluated(seed)
    evals[30:38] += 0.3
    values = evals if name == "val_loss" else np.exp(evals)

    found = findings(with_evals(columns, values, every, name), "perplexity-rise")

    assert [(f.severity, f.metric, f.first, f.last) for f in found] == [
        ("error", name, 31 * every, 38 * every)
    ]
    assert found[0].expected < found[0].value


def test_single_rise_is_a_jump_only():
    """One bad evaluation is a warning of ``perplexity-jump``, no rise."""
    columns, evals, every = evaluated(3)
    evals[30] += 0.4

    assert findings(with_evals(columns, evals, every), "perplexity-rise") == []
    found = findings(with_evals(columns, evals, every), "perplexity-jump")
    assert [(f.severity, f.first, f.last) for f in found] == [("warning", 31 * every, 31 * every)]


def test_rise_within_noise_is_silent():
    """With a noise of 0.15 nats a perplexity 20 % over the best says nothing."""
    for seed in range(8):
        assert findings(with_evals(*evaluated(seed, 0.15)), "perplexity-rise") == []
        assert findings(with_evals(*evaluated(seed, 0.15)), "perplexity-jump") == []


@pytest.mark.parametrize("rule", ["perplexity-rise", "perplexity-jump"])
def test_cap_is_a_placeholder(rule):
    """A perplexity of exp(20), Megatron's cap, is not compared with anything."""
    columns, evals, every = evaluated(0)
    values = np.exp(evals)
    values[[0, 1, 20, 21]] = np.exp(20)

    assert findings(with_evals(columns, values, every, "val_perplexity"), rule) == []


def test_first_eval_after_restart_is_no_jump():
    """The first evaluation of an attempt is not compared with that of another."""
    columns, evals, every = evaluated(0, n=2000)
    run = with_evals(columns, evals, every)
    steps = np.concatenate([np.arange(1, 1501), np.arange(1001, 1501)])
    spoilt = evals.copy()
    spoilt[30:] += 0.3

    restarted = with_evals({**columns, "step": steps}, spoilt, every)

    assert len(restarted.attempts) == 2
    assert len(run.attempts) == 1
    assert findings(restarted, "perplexity-jump") == []


@pytest.mark.parametrize("seed", range(5))
def test_overfitting_fires(seed):
    """Validation that turns up by 5 % while training goes on down is a warning."""
    columns, evals, every = evaluated(seed)
    evals[20:] += np.linspace(0, 0.25, len(evals) - 20)

    found = findings(with_evals(columns, evals, every), "overfitting")

    assert [f.severity for f in found] == ["warning"]
    assert found[0].last == 2000


def test_divergence_is_not_overfitting():
    """Where training rises along with validation nothing is learnt by heart."""
    columns, evals, every = evaluated(1)
    evals[20:] += np.linspace(0, 0.5, len(evals) - 20)
    columns["loss"][1000:] += np.linspace(0, 0.5, 1000)

    assert findings(with_evals(columns, evals, every), "overfitting") == []


CLASSIFIER = {"val_accuracy": np.linspace(0.1, 0.9, 2000)}


@pytest.mark.parametrize("rule", [r for r in ALL if "perplexity" in r])
def test_loss_of_a_classifier_is_no_perplexity(rule):
    """An image classifier has a val_loss and no tokens; the rules of perplexity say so."""
    columns, evals, every = evaluated(0)
    evals[30:] += 0.5
    del columns["tokens_per_second"]
    why = skipped(with_evals({**columns, **CLASSIFIER}, evals, every), rule)
    assert why.startswith("the log has val_accuracy, as classifiers do")
    assert "nothing counts tokens" in skipped(with_evals(columns, evals, every), rule)


@pytest.mark.parametrize("rule", [r for r in ALL if "perplexity" in r])
@pytest.mark.parametrize(
    ("more", "facts"),
    [
        ({"tokens_seen": np.arange(2000) * 1e6}, {}),
        ({"val_bpb": np.full(2000, 1.0)}, {}),
        ({}, {"sequence_length": 2048}),
        ({"loss": 10.8 - np.arange(2000) * 1e-3}, {}),
    ],
)
def test_loss_of_a_language_model_is_one(rule, more, facts):
    """Tokens that are counted, words of the log, a fact, or a start at a guess among thousands."""
    columns, evals, every = evaluated(0)
    evals[30:] += 0.5
    del columns["tokens_per_second"]
    columns |= {"val_loss": sparse(evals, every, 2000), **more}
    assert findings(make_run(**columns, facts=facts), rule)
