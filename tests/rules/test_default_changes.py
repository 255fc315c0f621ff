"""Losses after a planned change, and losses of mixed data: no amnesty, and no crying wolf."""

import numpy as np
import pytest

from stabcli.rules import run_rules, select
from tests.rules.runs import healthy, make_run


def grave(run, *names):
    """Findings above notice of the named rules."""
    found, _ = run_rules(run, select((), names))
    return [f for f in found if f.severity != "notice"]


@pytest.mark.parametrize("column", ["global_batch_size", "gpus", "learning_rate"])
def test_a_planned_change_is_no_amnesty(column):
    """A run that blows up right after a change of batch, GPUs or rate is told of, and told right."""
    columns = healthy(2000)
    at = np.arange(2000) >= 1200
    before = columns.get(column, np.full(2000, 64.0))
    columns[column] = np.where(at, before * 2, before)
    columns["loss"] = np.where(np.arange(2000) > 1200, columns["loss"] + 8, columns["loss"])
    found = grave(make_run(**columns), "loss-divergence", "loss-spike")

    assert {f.rule for f in found} == {"loss-divergence", "loss-spike"}
    assert all(f.severity == "critical" and 1201 <= f.first <= 1204 for f in found)
    assert all(f.expected < 3 for f in found)


@pytest.mark.parametrize("column", ["global_batch_size", "gpus", "learning_rate"])
def test_a_new_level_after_a_planned_change_is_a_notice(column):
    """The loss may settle a little higher with another batch size or rate."""
    columns = healthy(2000, noise=0.02)
    at = np.arange(2000) >= 1200
    before = columns.get(column, np.full(2000, 64.0))
    columns[column] = np.where(at, before * 2, before)
    columns["loss"] = np.where(at, columns["loss"] * 1.15, columns["loss"])
    assert grave(make_run(**columns), "loss-divergence", "loss-spike") == []


@pytest.mark.parametrize("seed", range(4))
def test_a_mixture_with_hard_batches_is_silent(seed):
    """Every twelfth batch from a harder source is the data, not a spike each time."""
    random = np.random.default_rng(seed)
    columns = healthy(2500, seed=seed)
    hard = random.random(2500) < 0.08
    columns["loss"] = np.where(hard, columns["loss"] * 1.7, columns["loss"])
    assert grave(make_run(**columns), "loss-spike") == []


def test_tr8_restart_discards_1010_steps_and_keeps_what_happened_in_them():
    """BigScience tr8-104B went back to the checkpoint of 6,210 after 7,220, logging every 10 steps.

    The 1,010 steps after the checkpoint are discarded, and the divergence in them is still told.
    """
    random = np.random.default_rng(0)
    first, again = np.arange(5000, 7230, 10), np.arange(6220, 8010, 10)
    loss = np.concatenate(
        [6.44 + random.normal(0, 0.05, len(first)), 6.4 + random.normal(0, 0.05, len(again))]
    )
    loss[: len(first)][first >= 7010] = 11.4
    run = make_run(step=np.concatenate([first, again]), loss=loss)
    found, _ = run_rules(run, select((), ("discarded-steps", "loss-spike")))

    (discarded,) = [f for f in found if f.rule == "discarded-steps"]
    assert discarded.value == 1010
    assert [(f.attempt, f.first) for f in found if f.rule == "loss-spike"] == [(0, 7010)]


@pytest.mark.parametrize("seed", range(4))
def test_spikes_of_an_even_run_do_not_make_each_other_usual(seed):
    """Batches half a percent apart, and leaps of all sizes: those of 1.28 and 1.38 are told."""
    random = np.random.default_rng(seed)
    loss = 2.4 * np.exp(random.normal(0, 0.005, 4000))
    sizes = [*np.geomspace(1.03, 1.22, 40), 1.28, 1.38]
    at = 100 + 90 * random.permutation(len(sizes))
    loss[at] *= sizes
    told = {f.first for f in grave(make_run(loss=loss), "loss-spike")}

    assert {at[-2] + 1, at[-1] + 1} <= told
    assert not told & set(at[:20] + 1)


@pytest.mark.parametrize("seed", range(4))
def test_heavy_tails_of_small_noise_are_no_spikes(seed):
    """The quiet twin: as even, but with the tails of Student's t, which reach 1.1 times the level."""
    random = np.random.default_rng(seed)
    loss = 2.4 * np.exp(0.005 * random.standard_t(3, 4000))
    assert grave(make_run(loss=loss), "loss-spike") == []
