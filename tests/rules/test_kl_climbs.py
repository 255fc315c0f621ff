"""Divergence from the reference that climbs over many rows: when it is a fault, and when not."""

import numpy as np
import pytest

from tests.rules.runs import grave, make_run


def climbs(n, seed, noise=0.3):
    """Ways in which a divergence grows 600-fold, by name, and ways in which it may."""
    random = np.random.default_rng(seed)
    far = np.clip((np.arange(n) - n // 3) / (n // 3), 0, 1)
    age = np.arange(n) / n
    noisy = random.lognormal(0, noise, n)
    bad = {"steeper": 0.002 * 600**far, "straight": 0.002 * (1 + 599 * far)}
    well = {
        "learns": 0.0005 + 0.3 * (1 - np.exp(-5 * age)),
        "straight": 0.0005 + 0.3 * age,
        "root": 0.0005 + 0.3 * np.sqrt(age),
        "square": 0.0005 + 0.3 * age**2,
    }
    return {k: v * noisy for k, v in bad.items()}, {k: v * noisy for k, v in well.items()}


@pytest.mark.parametrize("n", [300, 600, 2000])
@pytest.mark.parametrize("seed", range(3))
def test_divergence_that_climbs_over_many_rows_is_no_notice(n, seed):
    """600 times the level it had for a third of the run, reached over another third: an error."""
    bad, _ = climbs(n, seed)
    for way, kl in bad.items():
        told = grave(make_run(reward=np.linspace(0, 1, n), kl=kl), "kl-runaway")
        assert told, way
        assert told[-1].severity == "error", way
        assert n // 3 <= told[0].first <= 2 * n // 3


@pytest.mark.parametrize("n", [120, 300, 600, 2000])
@pytest.mark.parametrize("seed", range(3))
def test_divergence_of_a_policy_that_learns_is_silent(n, seed):
    """It reaches 600 times its first value too, but moves away steadily, or ever more slowly."""
    _, well = climbs(n, seed)
    for way, kl in well.items():
        assert grave(make_run(reward=np.linspace(0, 1, n), kl=kl), "kl-runaway") == [], way
