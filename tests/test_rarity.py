"""Rarity: how high is high depends on the noise of the run itself."""

import math

import numpy as np
import pytest

from stabcli.rarity import Rarity


def noise(kind, n, seed):
    """Log noise of one standard deviation: normal, or Student's t of five degrees."""
    random = np.random.default_rng(seed)
    return (
        random.normal(0, 1, n) if kind == "normal" else random.standard_t(5, n) / math.sqrt(5 / 3)
    )


@pytest.mark.parametrize("kind", ["normal", "t5"])
def test_the_highest_row_of_noise_is_no_rarity(kind):
    """Of 60 runs of either noise, the highest row is judged rarer than one in 20 in 8 at most."""
    rare = 0
    for seed in range(60):
        rarity = Rarity(np.exp(0.05 * noise(kind, 1500, seed)), floor=0.005)
        highest = int(np.argmax(rarity.sigmas))
        rare += rarity.chance(highest, highest) <= 0.05
    assert rare <= 8


def test_eight_deviations_are_rare_in_normal_noise_only():
    """The same height is news among even batches and none among uneven ones."""
    for kind, news in (("normal", True), ("t5", False)):
        log = 0.05 * noise(kind, 4000, 3)
        log[2000] = 8 * 0.05
        rarity = Rarity(np.exp(log), floor=0.005)
        assert (rarity.chance(2000, 2000) <= 0.03) == news, kind


def test_a_row_does_not_vouch_for_itself():
    """However high a row is, it is no part of the law that judges it; nor are its neighbours."""
    log = 0.05 * noise("normal", 3000, 1)
    log[1500:1503] = (1.5, 1.6, 1.5)
    rarity = Rarity(np.exp(log), floor=0.005)
    assert rarity.chance(1500, 1502) < 1e-9
    assert rarity.besides(1500, 1502) < 5


def test_the_first_fall_is_no_law_of_single_rows():
    """The first rows of a run lie far above the level around them, and say nothing of its noise."""
    step = np.arange(1, 2001)
    log = np.log(1.5 + 8 / np.sqrt(step)) + 0.02 * noise("normal", 2000, 2)
    log[1200] += 0.3
    assert Rarity(np.exp(log), floor=0.005).chance(1200, 1200) < 0.001


@pytest.mark.parametrize("n", [0, 1, 2, 40])
def test_too_few_rows_tell_no_law(n):
    """Then nothing is rare, and nothing breaks."""
    rarity = Rarity(np.full(n, 2.0), floor=0.005)
    assert len(rarity.sigmas) == n
    if n:
        assert rarity.chance(0, 0) == math.inf


def test_a_constant_series_has_nothing_above():
    """No row stands out where all are the same."""
    rarity = Rarity(np.full(1000, 2.0), floor=0.005)
    assert not rarity.sigmas.any()
    assert rarity.chance(500, 500) == math.inf
