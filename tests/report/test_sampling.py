"""Sampling: the least spike that a log could have shown is the least that is found in it."""

import numpy as np
import pytest

from stabcli.report._sampling import blind_spots, least_spike
from tests.rules.runs import findings, healthy, make_run


def shown(k, noise, seed, size=None, rows=1000, at=600):
    """A log of the means of k steps each, one of which is ``size`` times what it was."""
    steps = healthy(rows * k, seed, noise)["loss"].reshape(rows, k)
    steps[at, 0] *= size or 1.0
    return make_run(step=np.arange(1, rows + 1) * k, loss=steps.mean(axis=1))


@pytest.mark.parametrize("noise", [0.005, 0.035])
@pytest.mark.parametrize("k", [1, 2, 10, 50])
def test_a_spike_beyond_it_is_a_warning_and_one_far_below_is_none(k, noise):
    """In a log of every step too, where a row alone must rise further to be more than a notice."""
    above, below = 0, 0
    for seed in range(6):
        least = least_spike(shown(k, noise, seed))
        for factor in (1.5, 0.5):
            run = shown(k, noise, seed, 1 + (least - 1) * factor)
            step = 601 * k
            grave = any(
                f.first <= step <= f.last and f.severity != "notice"
                for f in findings(run, "loss-spike")
            )
            above += factor > 1 and grave
            below += factor < 1 and grave
    assert above >= 5
    assert below <= 1


def test_it_cannot_be_told_of_too_few_losses():
    assert least_spike(make_run(loss=[2.0] * 10)) is None


def test_leaps_of_the_gradient_norm_between_rows_are_told():
    """Most trainers log the norm of the last step: a log of nothing but norms has them too."""
    norms = np.full(100, 0.3)
    every, tenth = np.arange(1, 101), 10 * np.arange(1, 101)
    assert any("1 of 10" in s for s in blind_spots(make_run(step=tenth, grad_norm=norms)))
    assert blind_spots(make_run(step=every, grad_norm=norms)) == []
