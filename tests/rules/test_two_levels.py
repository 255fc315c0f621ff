"""Batches of two kinds: two levels all through a run are no news, what leaps above both is."""

import numpy as np
import pytest

from stabcli.diagnosis import diagnose
from stabcli.series import signals
from stabcli.twofold import twofold
from tests.rules.runs import make_run

N = 2000
AT = 1300
"""Row of a fault."""


def mixed(seed, share=0.3, ratio=2.7, n=N, noise=0.05):
    """Losses of a run that still learns and their gradient norms, and which rows are of the upper kind."""
    draw = np.random.default_rng(seed)
    upper = draw.random(n) < share
    level = np.where(upper, ratio, 1.0) * 1.2 * (1 + np.exp(-np.arange(n) / 400))
    norm = np.where(upper, 1.6, 0.7) * draw.lognormal(0, 0.15, n)
    return level * draw.lognormal(0, noise, n), norm, upper


def grave(loss, norm):
    """What is graver than a notice."""
    incidents = diagnose(make_run(loss=loss, grad_norm=norm)).incidents
    return [i for i in incidents if i.severity != "notice"]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("share", "ratio"), [(0.03, 2.7), (0.1, 2.0), (0.3, 1.5), (0.5, 3.0)])
def test_two_kinds_of_batches_are_no_incident(share, ratio, seed):
    """Neither the upper level nor a stretch that holds more of it is a spike or a divergence."""
    loss, norm, _ = mixed(seed, share, ratio)

    assert grave(loss, norm) == []


@pytest.mark.parametrize("seed", range(3))
def test_a_row_above_both_levels_is_a_spike(seed):
    """Three times the upper level is news, and told by the value that was logged."""
    loss, norm, upper = mixed(seed)
    row = int(np.flatnonzero(upper[AT:])[0]) + AT
    loss[row] *= 3

    (incident,) = grave(loss, norm)

    assert (incident.lead.rule, incident.first) == ("loss-spike", row + 1)
    assert incident.lead.value == pytest.approx(loss[row])
    assert 2 < incident.lead.value / incident.lead.expected < 4.5


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rise", [1.3, 2.0])
def test_both_levels_that_rise_for_good_are_found(rise, seed):
    """The run as a whole got worse: what kind a batch is of does not hide it."""
    loss, norm, _ = mixed(seed)
    loss[AT:] *= rise

    told = grave(loss, norm)

    assert any(i.first - 100 <= AT + 1 <= i.last for i in told)


def of(values):
    """What is seen in losses."""
    (signal,) = signals(make_run(loss=np.asarray(values, float)), "loss")
    return twofold(signal.finite())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("share", "ratio"), [(0.03, 2.7), (0.2, 1.5), (0.6, 4.0)])
def test_levels_are_what_they_were_made_of(share, ratio, seed):
    """Nearly each row is told to be of its own kind, and the distance is right."""
    loss, _, upper = mixed(seed, share, ratio)
    found = of(loss)

    assert found.ratio == pytest.approx(ratio, rel=0.05)
    assert (found.upper != upper).mean() < 0.005


def _oscillating(draw):
    return np.where(np.arange(N) // 100 % 2, 2.0, 1.0) * draw.lognormal(0, 0.02, N)


ONE_LEVEL = {
    "noise": lambda draw: draw.lognormal(0, 0.1, N),
    "heavy tails": lambda draw: np.exp(0.1 * draw.standard_t(3, N)),
    "a level for the second half": lambda draw: (
        np.where(np.arange(N) < N // 2, 1.0, 2.0) * draw.lognormal(0, 0.02, N)
    ),
    "slow turns": _oscillating,
    "spikes in the first half": lambda draw: (
        np.where((np.arange(N) < N // 2) & (np.arange(N) % 20 == 0), 3.0, 1.0)
        * draw.lognormal(0, 0.02, N)
    ),
    "a constant": lambda draw: np.full(N, 2.0),
    "zeros among them": lambda draw: np.where(draw.random(N) < 0.3, 0.0, 1.0),
    "negative values": lambda draw: draw.normal(0, 1, N),
    "few rows": lambda draw: (
        np.where(draw.random(300) < 0.3, 3.0, 1.0) * draw.lognormal(0, 0.02, 300)
    ),
}


@pytest.mark.parametrize("kind", ONE_LEVEL)
def test_nothing_else_is_taken_for_two_levels(kind):
    """Levels that come one after the other, tails, and what cannot be told are left as they are."""
    assert of(ONE_LEVEL[kind](np.random.default_rng(0))) is None
