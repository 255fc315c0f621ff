"""Faults that end as suddenly as they began: when they are over, and what they cost."""

import numpy as np
import pytest

from stabcli.diagnosis import diagnose
from tests.rules.runs import make_run

AT = 1500
"""Rows before the fault."""


def falling(seed, noise, n=3000):
    """Loss and gradient norm of a run that still learns."""
    draw = np.random.default_rng(seed)
    loss = 2 + 7 * np.exp(-np.arange(n) / (n / 8)) + draw.normal(0, noise, n)
    return loss, draw.lognormal(np.log(0.5), 0.15, n)


def told(loss, norm):
    """What is graver than a notice, and the bill."""
    d = diagnose(make_run(loss=loss, grad_norm=norm))
    return [i for i in d.incidents if i.severity != "notice"], d.cost


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("noise", [0.01, 0.03, 0.08])
@pytest.mark.parametrize("height", [0.7, 2.0])
@pytest.mark.parametrize("width", [10, 25, 40, 100])
def test_a_pulse_is_over_where_it_ends(width, height, noise, seed):
    """A bad shard is read to its end: the fall after it is its end, and no drop of its own."""
    loss, norm = falling(seed, noise)
    loss[AT : AT + width] += height

    (incident,), cost = told(loss, norm)

    assert (incident.first, incident.ending) == (AT + 1, "fast-recovery")
    assert 0 <= incident.recovered - (AT + 1 + width) <= 8  # of five rows most must be back
    assert cost.total.steps <= width + 8


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("width", [1, 10, 20, 60])
def test_nan_that_heals_is_over_with_its_last_row(width, seed):
    """Skipped steps leave the weights as they were."""
    loss, norm = falling(seed, 0.03)
    loss[AT : AT + width] = norm[AT : AT + width] = np.nan

    (incident,), _ = told(loss, norm)

    assert (incident.first, incident.ending) == (AT + 1, "fast-recovery")
    assert 0 <= incident.recovered - (AT + 1 + width) <= 8


@pytest.mark.parametrize("seed", range(3))
def test_a_drop_below_all_before_is_still_told(seed):
    """After a pulse as without one."""
    loss, norm = falling(seed, 0.03)
    loss[AT : AT + 30] += 1.0
    loss[AT + 400 :] *= 0.7

    incidents, _ = told(loss, norm)

    assert [(i.rule, abs(i.first - AT - 401) <= 3) for i in incidents[1:]] == [("loss-drop", True)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("factor", [4, 30])
def test_a_norm_that_leaps_for_good_did_not_drift(factor, seed):
    """It is told that it stays high, and from the leap on."""
    loss, norm = falling(seed, 0.03)
    norm[AT + 200 :] *= factor

    incidents, _ = told(loss, norm)

    (drift,) = [i for i in incidents if i.rule == "grad-norm-drift"]
    assert abs(drift.first - (AT + 201)) <= 3
    assert drift.last == len(loss)
    assert not any("gradual-onset" in i.tags for i in incidents)


@pytest.mark.parametrize("seed", range(5))
def test_a_norm_that_climbs_slowly_drifts(seed):
    """From where it began."""
    loss, norm = falling(seed, 0.03)
    norm *= np.exp(np.clip((np.arange(len(norm)) - AT) / 1000, 0, None))

    incidents, _ = told(loss, norm)

    (drift,) = [i for i in incidents if i.rule == "grad-norm-drift"]
    assert abs(drift.first - AT) <= 200
    assert "gradual-onset" in drift.tags


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("width", [20, 40, 100])
def test_the_end_of_a_dip_is_no_rise(width, seed):
    """Masked or repeated data make a loss that is too good for a while; then it is as before."""
    loss, norm = falling(seed, 0.03)
    loss[AT : AT + width] *= 0.7

    incidents, _ = told(loss, norm)

    assert {f.rule for i in incidents for f in i.findings if f.severity != "notice"} <= {
        "loss-drop"
    }
