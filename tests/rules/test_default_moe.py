"""Mixtures of experts: what the default rules say of routing."""

import numpy as np
import pytest

from tests.rules.runs import findings, make_run, skipped


def aux(seed, n=1000, scale=1.0, noise=0.01):
    """A balanced auxiliary loss: a little above its minimum, more so at the start."""
    random = np.random.default_rng(seed)
    step = np.arange(n)
    return scale * (1.02 + 0.2 * np.exp(-step / 60) + np.abs(random.normal(0, noise, n)))


@pytest.mark.parametrize("rule", ["moe-aux-loss", "router-hacking"])
@pytest.mark.parametrize("noise", [0.001, 0.01, 0.05])
@pytest.mark.parametrize("seed", range(5))
def test_balanced_routing_is_silent(rule, noise, seed):
    """A value of 1.02 with noise, Megatron's balanced routing, gives nothing."""
    assert findings(make_run(aux_loss=aux(seed, noise=noise)), rule) == []


@pytest.mark.parametrize("seed", range(5))
def test_symmetric_noise_about_one_is_silent(seed):
    """Rows below 0.97 by noise alone are no router that games the loss."""
    values = 1.0 + np.random.default_rng(seed).normal(0, 0.05, 2000)

    assert findings(make_run(aux_loss=values), "router-hacking") == []
    assert findings(make_run(aux_loss=values), "moe-aux-loss") == []


@pytest.mark.parametrize(
    ("scale", "facts"),
    [
        (2.0, {}),
        (2.0, {"top_k": 2}),
        (0.01, {"aux_loss_coefficient": 0.01}),
        (0.08, {"aux_loss_coefficient": 0.01, "top_k": 8}),
        (0.001, {}),
    ],
)
def test_conventions_are_told_apart(scale, facts):
    """Balanced is silent and 1.5 times it is a warning, whatever the framework's scale."""
    healthy = aux(0, scale=scale)
    starved = healthy.copy()
    starved[600:] *= 1.6

    assert findings(make_run(aux_loss=healthy, facts=facts), "moe-aux-loss") == []
    found = findings(make_run(aux_loss=starved, facts=facts), "moe-aux-loss")
    assert [f.severity for f in found] == ["warning"]
    assert abs(found[0].first - 600) < 10
    assert found[0].last == 1000


@pytest.mark.parametrize("seed", range(5))
def test_collapse_is_an_error(seed):
    """Twice the balanced value and more for the rest of the run is an error."""
    values = aux(seed)
    values[500:] = 2.3

    found = findings(make_run(aux_loss=values), "moe-aux-loss")

    assert [(f.severity, f.expected) for f in found] == [("error", 1.0)]


def test_collapse_from_the_start_needs_the_coefficient():
    """2.3 throughout is an error where the scale is known, a normal level where it is not."""
    values = np.full(500, 2.3)

    assert findings(make_run(aux_loss=values), "moe-aux-loss") == []
    found = findings(
        make_run(aux_loss=values, facts={"aux_loss_coefficient": 0.01}), "moe-aux-loss"
    )
    assert [f.severity for f in found] == ["error"]


def test_single_rows_are_silent():
    """Five rows at three times the balanced value are no collapse."""
    values = aux(1)
    values[500:505] = 3.0

    assert findings(make_run(aux_loss=values), "moe-aux-loss") == []


@pytest.mark.parametrize("seed", range(5))
def test_hacked_router_is_a_warning(seed):
    """0.90 of the balanced value for 300 rows is a warning."""
    values = aux(seed)
    values[600:900] = 0.9

    found = findings(make_run(aux_loss=values), "router-hacking")

    assert [f.severity for f in found] == ["warning"]
    assert 600 <= found[0].first <= 615


@pytest.mark.parametrize("rule", ["moe-aux-loss", "router-hacking"])
def test_cannot_look(rule):
    """Switched off, too short, or absent: said, not passed over."""
    assert "switched off" in skipped(make_run(aux_loss=np.zeros(100)), rule)
    assert "fewer than" in skipped(make_run(aux_loss=np.ones(5)), rule)
    assert "no aux_loss" in skipped(make_run(loss=np.ones(50)), rule)
    assert "switched off" in skipped(make_run(aux_loss=np.full(100, np.nan)), rule)


def test_hacking_needs_a_known_balance():
    """A loss of unknown scale cannot lie below its balanced value."""
    assert "not known" in skipped(make_run(aux_loss=aux(0, scale=0.37)), "router-hacking")


@pytest.mark.parametrize("seed", range(5))
def test_fair_load_is_silent(seed):
    """A busiest expert at 1.6 times the mean, with noise and single bursts, gives nothing."""
    load = 1.6 + np.abs(np.random.default_rng(seed).normal(0, 0.4, 1000))
    load[::97] = 6.0

    assert findings(make_run(expert_load_ratio=load), "expert-imbalance") == []
    assert "fewer than" in skipped(make_run(expert_load_ratio=load[:4]), "expert-imbalance")


def test_one_expert_for_all():
    """Seven times the mean is a warning; where there are eight experts it is an error."""
    load = np.full(1000, 1.6)
    load[400:700] = 7.0

    found = findings(make_run(expert_load_ratio=load), "expert-imbalance")
    known = findings(make_run(expert_load_ratio=load, facts={"experts": 8}), "expert-imbalance")

    assert [f.severity for f in found] == ["warning"]
    assert [f.severity for f in known] == ["error"]
    assert found[0].value == 7.0


@pytest.mark.parametrize("rule", ["moe-aux-loss", "expert-imbalance"])
def test_warm_up_counts_one_degree_less(rule):
    """Routers that start unbalanced and find their balance within warm-up are worth a notice."""
    rate = np.minimum(np.arange(1000) / 100, 1.0)
    start = np.exp(-np.arange(1000) / 40)
    run = make_run(aux_loss=1.02 + start, expert_load_ratio=1.7 + 4 * start, learning_rate=rate)

    assert [(f.severity, f.tags) for f in findings(run, rule)] == [("notice", ("warm-up",))]


def test_layers_of_their_own_are_looked_at_one_by_one():
    """An average over layers hides the one that starves its experts."""
    layers = {f"moe/layer_{k}/load_imbalance": np.full(1000, 1.4) for k in range(4)}
    layers["moe/layer_2/load_imbalance"][400:700] = 6.0
    (found,) = findings(make_run(**layers), "expert-imbalance")
    assert (found.metric, found.severity, found.first) == (
        "moe/layer_2/load_imbalance", "warning", 401)  # fmt: skip


@pytest.mark.parametrize(("name", "unit"), [("moe/dead_expert_fraction", 1), ("dead_experts", 64)])
def test_experts_that_die_are_told_and_those_dead_from_the_start_are_not(name, unit):
    """As a share, or as a number where the run says how many experts there are."""
    dead = np.full(1000, 0.25)
    facts = {"experts": 64}
    run = {name: dead * unit, "loss": np.full(1000, 2.0)}
    assert findings(make_run(**run, facts=facts), "expert-imbalance") == []
    dead[500:] = 0.5
    (found,) = findings(make_run(**run | {name: dead * unit}, facts=facts), "expert-imbalance")
    assert (found.severity, found.first, found.last) == ("warning", 501, 1000)
    assert (found.value, found.expected) == (0.5 * unit, 0.25 * unit)


def test_a_number_of_dead_experts_alone_tells_no_share():
    why = skipped(make_run(dead_experts=np.full(1000, 16.0)), "expert-imbalance")
    assert why == "the log has no expert_load_ratio"
