"""Reinforcement learning: what the default rules say of policies."""

import numpy as np
import pytest

from stabcli.rules import run_rules, select
from tests.rules.runs import findings, grave, make_run, skipped

RULES = (
    "entropy-collapse",
    "entropy-explosion",
    "kl-runaway",
    "clip-fraction-high",
    "dead-groups",
    "reward-hacking",
    "reward-drop",
    "chosen-reward-drop",
)


def policy(n=300, seed=0, noise=1.0):
    """Columns of a healthy run: steady entropy, rising reward, growing divergence."""
    random = np.random.default_rng(seed)
    step = np.arange(n)
    gain = 1 - np.exp(-step / (n / 3))
    val = 0.2 + 0.4 * gain + noise * random.normal(0, 0.02, n)
    return {
        "entropy": 0.35 * np.exp(noise * random.normal(0, 0.08, n)),
        "reward": 0.2 + 0.5 * gain + noise * random.normal(0, 0.06, n),
        "val_reward": [float(v) if i % 20 == 19 else None for i, v in enumerate(val)],
        "kl": 0.001 + 0.08 * gain * np.exp(noise * random.normal(0, 0.2, n)),
        "clip_fraction": np.abs(random.normal(0.02, 0.02, n)),
        "dead_group_fraction": np.clip(0.3 + noise * random.normal(0, 0.1, n), 0, 1),
        "response_clip_fraction": np.abs(random.normal(0.05, 0.02, n)),
        "response_length": 400 + np.linspace(0, 600, n) + noise * random.normal(0, 30, n),
        "rewards/chosen": -gain + noise * random.normal(0, 0.1, n),
    }


def decay(n, start, first, last, end):
    """Values at ``start``, then falling exponentially between two rows to ``end``."""
    return start * (end / start) ** np.clip((np.arange(n) - first) / (last - first), 0, 1)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("noise", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(6))
def test_healthy_policy_is_silent(rule, noise, seed):
    """A policy that learns, at three noise levels, gives nothing above notice."""
    assert grave(make_run(**policy(seed=seed, noise=noise)), rule) == []


@pytest.mark.parametrize("rule", RULES)
def test_no_column_cannot_look(rule):
    """A run without the columns, or too short, is skipped with a reason."""
    assert skipped(make_run(loss=np.ones(50)), rule) is not None
    assert skipped(make_run(**{k: v[:6] for k, v in policy().items()}), rule) is not None


@pytest.mark.parametrize("rule", RULES)
def test_all_nan_cannot_look(rule):
    """Columns of NaN are the rule ``nonfinite``'s; here nothing can be said of them."""
    columns = {k: np.full(100, np.nan) for k in policy()}

    assert skipped(make_run(**columns), rule) is not None


@pytest.mark.parametrize("rule", RULES)
def test_constant_policy_is_silent(rule):
    """Values without any spread make no finding."""
    columns = {k: np.full(100, 0.25) for k in policy()}

    assert findings(make_run(**columns), rule) == []


# --- entropy --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_entropy_collapse_fires(seed):
    """0.35 to 0.08 while the reward rises is an error."""
    columns = policy(seed=seed)
    columns["entropy"] *= decay(300, 1.0, 120, 180, 0.08 / 0.35)

    found = grave(make_run(**columns), "entropy-collapse")

    assert [(f.severity, f.last) for f in found] == [("error", 300)]
    assert 150 < found[0].first < 200
    assert found[0].expected == pytest.approx(0.35, rel=0.2)


def test_collapse_beside_a_saturated_reward_is_a_warning():
    """A smooth decay of a policy that solves its task may be wanted: a warning at most."""
    columns = policy()
    columns["entropy"] *= decay(300, 1.0, 50, 280, 0.2)
    columns["reward"] = np.linspace(0.5, 0.97, 300)

    found = grave(make_run(**columns), "entropy-collapse")

    assert [(f.severity, f.tags) for f in found] == [("warning", ("reward-saturated",))]


def test_collapse_within_the_first_rows_is_seen():
    """0.37 at row 10, 0.0002 from row 13 to the end: the start is not the collapsed level."""
    entropy = np.full(261, 2e-4)
    entropy[:10] = 0.37
    entropy[10:12] = [0.088, 0.007]

    found = grave(make_run(entropy=entropy, reward=np.full(261, -1.0)), "entropy-collapse")

    assert [(f.severity, f.last) for f in found] == [("error", 261)]
    assert found[0].first <= 15


@pytest.mark.parametrize("seed", range(5))
def test_dip_of_the_entropy_is_silent(seed):
    """Five rows near zero are no collapse."""
    columns = policy(seed=seed)
    columns["entropy"][150:155] = 0.01

    assert findings(make_run(**columns), "entropy-collapse") == []


def test_low_from_the_start_is_silent():
    """A policy that starts sure of itself has not collapsed."""
    run = make_run(entropy=np.full(200, 0.04), reward=np.zeros(200))

    assert findings(run, "entropy-collapse") == []


def test_rise_and_return_is_silent():
    """0.24 to 0.63 and back to 0.32 is healthy."""
    entropy = np.interp(np.arange(240), [0, 95, 160, 239], [0.24, 0.63, 0.32, 0.3])

    run = make_run(entropy=entropy, reward=np.zeros(240))

    assert grave(run, "entropy-collapse") == []
    assert findings(run, "entropy-explosion") == []


def test_negative_entropy_is_turned_round():
    """A loss of minus the entropy is read as the entropy."""
    entropy = -policy()["entropy"] * decay(300, 1.0, 120, 180, 0.1)

    found = grave(make_run(entropy=entropy, reward=np.zeros(300)), "entropy-collapse")

    assert [f.severity for f in found] == ["error"]
    assert found[0].value < 0
    assert found[0].expected < 0


def test_entropy_of_continuous_actions_cannot_look():
    """Entropies of both signs are differential ones, which may be anything."""
    run = make_run(entropy=np.linspace(3, -3, 200), reward=np.zeros(200))

    assert "both signs" in skipped(run, "entropy-collapse")


def test_summed_entropy_is_compared_with_itself():
    """A sum over tokens, 100 nats, that falls to a tenth is a warning."""
    entropy = decay(300, 100.0, 120, 180, 10.0)

    found = grave(make_run(entropy=entropy, reward=np.zeros(300)), "entropy-collapse")

    assert [f.severity for f in found] == ["warning"]


def test_entropy_explosion():
    """0.35 to 2 nats is a warning where the reward falls, a notice where it does not."""
    columns = policy()
    columns["entropy"] = columns["entropy"] / decay(300, 1.0, 120, 180, 0.35 / 2)
    rising = findings(make_run(**columns), "entropy-explosion")
    columns["reward"] = columns["reward"] - np.linspace(0, 1, 300)
    falling = findings(make_run(**columns), "entropy-explosion")

    assert [f.severity for f in rising] == ["notice"]
    assert [f.severity for f in falling] == ["warning"]
    assert 140 < falling[0].first < 200


@pytest.mark.parametrize(("top", "severity"), [(1.9, "warning"), (2.6, "error")])
def test_entropy_that_explodes_while_the_reward_falls_is_an_error(top, severity):
    """From two nats above where it began; with a rising reward a notice, however far."""
    columns = policy()
    columns["entropy"] = columns["entropy"] * decay(300, 1.0, 120, 180, top / 0.35)
    assert [f.severity for f in findings(make_run(**columns), "entropy-explosion")] == ["notice"]
    columns["reward"] = columns["reward"] - np.linspace(0, 1, 300)
    assert [f.severity for f in findings(make_run(**columns), "entropy-explosion")] == [severity]


@pytest.mark.parametrize(("times", "severity"), [(4, "warning"), (8, "error")])
def test_summed_entropy_that_explodes_is_compared_with_itself(times, severity):
    """Two nats more are nothing for a sum over a response."""
    columns = policy()
    columns["entropy"] = 100 * columns["entropy"] * decay(300, 1.0, 120, 180, times)
    columns["reward"] = columns["reward"] - np.linspace(0, 1, 300)
    assert [f.severity for f in findings(make_run(**columns), "entropy-explosion")] == [severity]


# --- divergence, clipping, rewards ------------------------------------------------------------


@pytest.mark.parametrize(("end", "severity"), [(3.0, "warning"), (16.0, "error")])
def test_kl_runaway(end, severity):
    """A divergence that leaps from 0.08 to 3 within 20 rows is a warning, to 16 an error."""
    columns = policy()
    columns["kl"] = columns["kl"] * decay(300, 1.0, 200, 220, end / 0.08)

    found = grave(make_run(**columns), "kl-runaway")

    assert [f.severity for f in found] == [severity]
    assert 200 < found[0].first < 225


def test_kl_that_grows_is_a_notice():
    """A policy that moves away steadily is worth a notice only; one that does ever faster, more."""
    steadily, faster = np.linspace(0.001, 0.5, 600), np.geomspace(0.001, 0.5, 600)

    assert [f.severity for f in findings(make_run(kl=steadily), "kl-runaway")] == ["notice"]
    assert [f.severity for f in findings(make_run(kl=faster), "kl-runaway")] == ["warning"]


def test_single_kl_rows_are_silent():
    """Heavy tails of a single-sample estimator are no runaway."""
    columns = policy()
    columns["kl"][::40] = 5.0

    assert grave(make_run(**columns), "kl-runaway") == []


def test_clip_fraction():
    """Half of the tokens clipped for 50 rows is a warning over these rows."""
    columns = policy()
    columns["clip_fraction"][100:150] = 0.5

    found = findings(make_run(**columns), "clip-fraction-high")

    assert [f.severity for f in found] == ["warning"]
    assert (found[0].first, found[0].last) == (101, 150)


def test_dead_groups():
    """95 % of groups alike, or a spread of exactly 0, for 50 rows is a warning."""
    columns = policy()
    columns["dead_group_fraction"][100:150] = 0.95
    spread = np.abs(np.random.default_rng(0).normal(0.3, 0.05, 300))
    silent = findings(make_run(reward_std=spread), "dead-groups")
    spread[100:150] = 0.0

    assert silent == []
    assert [f.severity for f in findings(make_run(**columns), "dead-groups")] == ["warning"]
    assert [f.severity for f in findings(make_run(reward_std=spread), "dead-groups")] == ["warning"]


@pytest.mark.parametrize("seed", range(5))
def test_reward_drop(seed):
    """A reward that loses all it had gained is an error from there on."""
    columns = policy(400, seed)
    columns["reward"][250:] -= 0.45

    found = grave(make_run(**columns), "reward-drop")

    assert [(f.severity, f.last) for f in found] == [("error", 391)]
    assert abs(found[0].first - 251) <= 8


@pytest.mark.parametrize(
    ("lost", "rows", "severity"), [(0.3, 150, "warning"), (0.5, 30, "warning"), (0.5, 60, "error")]
)
def test_reward_drop_is_an_error_where_it_is_severe_and_lasts(lost, rows, severity):
    """A part of the gain, or all of it for a while, is a warning; back at the start is an error."""
    columns = policy(600, 1)
    columns["reward"][300 : 300 + rows] -= lost

    assert [f.severity for f in grave(make_run(**columns), "reward-drop")] == [severity]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("left", "told"), [([0.0, 0.1, 0.4], 1), ([0.0], 0), ([0.5, 0.5, 0.5], 0)])
def test_reward_that_is_gone_for_a_few_rows(seed, left, told):
    """A policy that breaks down and finds back is a warning; one bad batch, or half, is none."""
    columns = policy(600, seed, noise=0.5)
    columns["reward"][400 : 400 + len(left)] = 0.2 + 0.5 * np.array(left)

    found = grave(make_run(**columns), "reward-drop")

    assert [f.severity for f in found] == ["warning"] * told
    assert all((f.first, f.peak) == (401, 401) for f in found)


@pytest.mark.parametrize("seed", range(5))
def test_chosen_reward_that_falls_slowly_is_silent(seed):
    """Preferred answers become less likely in every such run; at once, they should not."""
    random = np.random.default_rng(seed)
    chosen = -np.log1p(np.arange(900) / 60) + random.normal(0, 0.2, 900)
    fell = chosen - np.where(np.arange(900) < 500, 0, 3.5)
    dip = chosen - np.where(np.arange(900) // 8 == 60, 3.5, 0)

    def said(**columns):
        return [f.first for f in grave(make_run(**columns), "chosen-reward-drop")]

    assert said(**{"rewards/chosen": chosen}) == said(**{"rewards/chosen": dip}) == []
    assert said(**{"train/chosen_rewards": fell}) == [501]
    assert skipped(make_run(**{"eval_rewards/chosen": fell}), "chosen-reward-drop")


@pytest.mark.parametrize("seed", range(5))
def test_reward_that_never_rose_is_silent(seed):
    """Noise about one level, or a slow decline from the first row, has gained nothing to lose."""
    noise = np.random.default_rng(seed).normal(0.2, 0.1, 400)

    assert grave(make_run(reward=noise), "reward-drop") == []
    assert grave(make_run(reward=noise - np.linspace(0, 0.1, 400)), "reward-drop") == []


@pytest.mark.parametrize("seed", range(5))
def test_held_out_reward_falls_while_training_rises(seed):
    """Held-out reward down by a third from its best while the training reward rises is a warning."""
    columns = policy(600, seed)
    columns["reward"] = columns["reward"] + np.linspace(0, 0.5, 600)
    down = np.clip((np.arange(600) - 300) / 300, 0, 1) * 0.3
    columns["val_reward"] = [
        None if v is None else v - d for v, d in zip(columns["val_reward"], down, strict=True)
    ]

    found = grave(make_run(**columns), "reward-hacking")

    assert [(f.severity, f.metric) for f in found] == [("warning", "val_reward")]


def test_cut_responses_grow_with_the_reward():
    """Responses that run into the length limit while the reward rises are a warning."""
    columns = policy()
    columns["response_clip_fraction"] = np.linspace(0.02, 0.7, 300)

    found = grave(make_run(**columns), "reward-hacking")

    assert [(f.severity, f.metric) for f in found] == [("warning", "response_clip_fraction")]


def test_all_rules_take_one_row():
    """One row of everything makes no rule fail."""
    run = make_run(**{k: [0.3] for k in policy()})

    found, _ = run_rules(run, select((), RULES))

    assert found == []


@pytest.mark.parametrize(("value", "fires"), [(2.5, True), (0.05, True), (1.3, False)])
@pytest.mark.parametrize("name", ["val/ratio", "actor/ratio_mean"])
def test_a_mean_ratio_far_from_1_is_an_error(name, value, fires):
    """It should float around 1, whatever share is clipped."""
    ratio = 1 + np.random.default_rng(0).normal(0, 0.03, 300)
    ratio[200:] *= value
    found = findings(make_run(**policy(), **{name: ratio}), "clip-fraction-high")
    assert [(f.metric, f.severity, f.first) for f in found] == (
        [(name, "error", 201)] if fires else []
    )


def test_shares_that_are_called_ratio_are_no_mean_ratio():
    """TRL logs the share of clipped tokens as a ratio."""
    shares = {
        "clip_ratio/low_mean": np.full(300, 0.01),
        "response_length/clip_ratio/mean": np.full(300, 0.02),
        "clip_ratio_mean": np.full(300, 0.03),
    }
    assert findings(make_run(**policy(), **shares), "clip-fraction-high") == []


def test_updates_that_move_the_policy_too_far_are_told():
    """The divergence of one update, from the policy that made the rollouts."""
    step = np.abs(np.random.default_rng(0).normal(0.001, 0.0005, 300))
    assert findings(make_run(**policy(), **{"actor/ppo_kl": step}), "kl-runaway") == []
    step[150:200] = 0.3
    (found,) = findings(make_run(**policy(), **{"actor/ppo_kl": step}), "kl-runaway")
    assert (found.metric, found.severity, found.first, found.last) == (
        "actor/ppo_kl", "warning", 151, 200)  # fmt: skip
