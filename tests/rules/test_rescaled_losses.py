"""Rule ``loss-rescaled``: where it ends, and what is too noisy to be called whole."""

import numpy as np
import pytest

from stabcli.diagnosis import diagnose
from stabcli.report._words import ending
from tests.rules.runs import findings, healthy, make_run

N = 3000


def flat(noise: float, seed: int = 0) -> dict[str, np.ndarray]:
    """A healthy run near its plateau whose loss has lognormal noise."""
    random = np.random.default_rng(seed)
    trend = 2.0 + 0.5 * np.exp(-np.arange(N) / 1000)
    return healthy(N, seed) | {"loss": trend * random.lognormal(0, noise, N)}


@pytest.mark.parametrize("times", [8.0, 2.0, 1 / 4])
def test_a_loss_counted_otherwise_for_a_while_ends_with_the_leap_back(times):
    """One event, from the first leap to the row before the one back; it does not go on."""
    columns = flat(0.01)
    columns["loss"][1200:1500] *= times
    run = make_run(**columns)
    (found,) = findings(run, "loss-rescaled")
    assert (found.severity, found.first, found.last) == ("warning", 1201, 1500)
    assert found.tags == ("rescaled", "norm-unmoved", "counted-back")
    (incident,) = [i for i in diagnose(run).incidents if i.rule == "loss-rescaled"]
    assert (incident.first, incident.last) == (1201, 1500)
    assert ending(incident) == "after step 1,500 as before"


@pytest.mark.parametrize("times", [2.0, 3.0])
@pytest.mark.parametrize("noise", [0.01, 0.02])
def test_what_is_twice_as_high_for_fifty_rows_is_a_spike(noise, times):
    """Nobody changes what is reported for so short a time: it heals, and costs its steps."""
    columns = flat(noise)
    columns["loss"][1200:1250] *= times
    run = make_run(**columns)

    assert findings(run, "loss-rescaled") == []
    grave = [i for i in diagnose(run).incidents if i.severity != "notice"]
    assert [(i.rule, i.first, i.last) for i in grave] == [("loss-spike", 1201, 1250)]


def test_each_of_several_such_stretches_is_told():
    columns = flat(0.01)
    columns["loss"][600:900] *= 8
    columns["loss"][1500:1800] *= 8
    found = findings(make_run(**columns), "loss-rescaled")
    assert [(f.first, f.last) for f in found] == [(601, 900), (1501, 1800)]


@pytest.mark.parametrize(("then", "last"), [(8.0, 3000), (24.0, 1500)])
def test_what_does_not_leap_back_goes_on(then, last):
    """For good, or to another multiple, which is told as well."""
    columns = flat(0.01)
    columns["loss"][1200:1500] *= 8
    columns["loss"][1500:] *= then
    run = make_run(**columns)
    found = findings(run, "loss-rescaled")
    assert (found[0].first, found[0].last) == (1201, last)
    assert len(found) == (1 if then == 8 else 2)
    (incident,) = [i for i in diagnose(run).incidents if i.rule == "loss-rescaled"][:1]
    assert ending(incident) == "it goes on like that"


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("times", [2.15, 1 / 2.12, 3.2])
def test_a_leap_of_a_noisy_loss_by_any_factor_is_no_whole_ratio(seed, times):
    """With a standard error of a tenth, any ratio may be one."""
    columns = flat(0.35, seed)
    columns["loss"][1200:] *= times
    assert findings(make_run(**columns), "loss-rescaled") == []


def test_a_loss_that_halves_where_an_epoch_begins_has_seen_its_data():
    """Without a logged edge there, and upwards, the same leap is told."""
    columns = flat(0.01)
    columns["loss"][1200:] /= 2
    edge = {"epoch": np.arange(N) / 1200}
    elsewhere = {"epoch": np.arange(N) / 1000}
    assert findings(make_run(**columns, **edge), "loss-rescaled") == []
    assert [f.first for f in findings(make_run(**columns, **elsewhere), "loss-rescaled")] == [1201]
    columns["loss"][1200:] *= 4
    assert [f.first for f in findings(make_run(**columns, **edge), "loss-rescaled")] == [1201]
