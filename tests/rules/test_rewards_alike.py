"""Rule ``dead-groups``: rewards that never differed, in logs that tell nothing of groups."""

import numpy as np
import pytest

from stabcli.diagnosis import diagnose
from stabcli.report._words import ending
from tests.rules.runs import findings, make_run, skipped


def policy(reward: np.ndarray, **more):
    """A run of reinforcement learning with these rewards, and entropies that are well."""
    random = np.random.default_rng(0)
    return make_run(reward=reward, entropy=0.5 + random.normal(0, 0.01, len(reward)), **more)


@pytest.mark.parametrize("value", [0.0, 1.0, -0.5])
@pytest.mark.parametrize("spread", [{}, {"reward_std": np.zeros(200)}])
def test_rewards_that_never_differed_point_at_what_gives_them(value, spread):
    """Nothing can be learnt from them, whatever the rest of the log looks like."""
    run = policy(np.full(200, value), **spread)
    (found,) = findings(run, "dead-groups")
    assert (found.severity, found.first, found.last) == ("warning", 1, 200)
    d = diagnose(run)
    at = next(n for n, i in enumerate(d.incidents) if i.rule == "dead-groups")
    assert ending(d.incidents[at]) == "rewards are all alike from the first row on"
    assert [(c.name, c.standing) for c in d.causes[at]] == [("reward-function", "supported")]


@pytest.mark.parametrize("first", [30, 150])
def test_rewards_that_are_0_at_first_and_rise_are_well(first):
    """A hard task begins like that."""
    reward = np.zeros(300)
    reward[first:] = np.linspace(0, 0.6, 300 - first) + np.random.default_rng(1).normal(
        0, 0.02, 300 - first
    )
    assert findings(policy(reward), "dead-groups") == []
    assert not [i for i in diagnose(policy(reward)).incidents if i.severity != "notice"]


def test_one_reward_that_differs_is_enough_to_be_silent():
    reward = np.zeros(200)
    reward[100] = 0.01
    assert findings(policy(reward), "dead-groups") == []


def test_rewards_alike_after_a_restart_alone_are_not_alike_throughout():
    """What came before the restart differed."""
    random = np.random.default_rng(2)
    step = np.concatenate([np.arange(1, 101), np.arange(81, 121)])
    reward = np.concatenate([random.normal(0.9, 0.02, 100), np.ones(40)])
    assert findings(policy(reward, step=step), "dead-groups") == []


def test_too_few_rewards_cannot_tell():
    assert "fewer than 20" in skipped(policy(np.zeros(19)), "dead-groups")
    assert "reward" in skipped(make_run(loss=np.ones(40)), "dead-groups")
