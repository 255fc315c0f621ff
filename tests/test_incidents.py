"""Findings into incidents: what belongs together, what led, how it ended."""

import numpy as np
import pytest

from stabcli.incidents import group
from stabcli.rules import STATISTIC, Finding, run_rules, select
from tests.rules.runs import healthy, make_run


def found(metric="loss", first=1001, last=None, severity="error", attempt=0, **more):
    """Make a finding by hand."""
    given = {"rule": f"{metric}-rule", "value": 5.0, "expected": 2.0, "score": 2.0} | more
    return Finding(
        metric=metric,
        severity=severity,
        attempt=attempt,
        first=first,
        last=last or first,
        peak=first,
        **given,
    )


def incidents(columns, *findings):
    """Group findings over a run."""
    return group(make_run(**columns), findings)


def ending(**changes):
    """Return how the one grave incident of a healthy run changed so ended."""
    columns = healthy(4000)
    for key, (where, values) in changes.items():
        columns[key][where] = values(columns[key][where])
    run = make_run(**columns)
    grave = [f for f in run_rules(run, select(("default",), ()))[0] if f.severity != "notice"]
    (incident,) = [i for i in group(run, grave) if i.family == "numerics"]
    return incident


def test_loss_and_gradient_near_one_another_are_one_incident():
    """What moved first leads; the gravest names it."""
    (one,) = incidents(healthy(), found(first=1005), found("grad_norm", 1001, severity="warning"))
    assert (one.lead.metric, one.rule, one.first, one.severity) == (
        "grad_norm",
        "loss-rule",
        1001,
        "error",
    )
    assert "grad-norm-first" in one.tags


def test_what_is_far_apart_or_of_another_kind_stays_apart():
    """Fifty steps apart, another attempt or another family: another incident."""
    kinds = incidents(
        healthy(),
        found(first=1000),
        found(first=1100),
        found("tokens_per_second", 1000),
        found("val_loss", 1000),
    )
    assert len(kinds) == 4


def test_a_notice_never_joins_two_events():
    """Two spikes with a long notice between them are two incidents."""
    two = incidents(
        healthy(),
        found(first=900),
        found(first=1100),
        found("grad_norm", 910, 1090, severity="notice"),
    )
    assert [i.severity for i in two].count("error") == 2


@pytest.mark.parametrize("metric", ["loss", "grad_norm"])
def test_a_notice_never_leads_what_is_graver(metric):
    """A notice just before a spike neither begins the incident nor moves its ending or tags."""
    spiked = healthy(4000)
    spiked["loss"][2000:2010] *= 2
    grave = found(first=2001, last=2010)
    noticed = found(metric, 1700, 1990, severity="notice", rule="noticed")
    (alone,), (both,) = incidents(spiked, grave), incidents(spiked, noticed, grave)

    assert (both.lead, both.first, both.last) == (grave, 2001, 2010)
    assert (both.ending, both.recovered, both.tags) == (alone.ending, alone.recovered, alone.tags)
    assert set(both.findings) == {grave, noticed}
    (only,) = incidents(spiked, noticed)
    assert only.lead == noticed


def test_a_statistic_stands_alone():
    """What describes the whole run belongs to no event."""
    two = incidents(
        healthy(), found(first=900), found(first=1, last=2000, severity="notice", tags=(STATISTIC,))
    )
    assert [i.first for i in two] == [1, 900]


def test_order_is_by_attempt_and_step():
    """Whatever order the rules ran in."""
    ordered = incidents(healthy(), found(first=1500), found(first=300), found(first=900))
    assert [i.first for i in ordered] == [300, 900, 1500]


def test_a_spike_that_heals_at_once():
    """One row up and back again is a fast recovery at the next row."""
    spike = ending(loss=(slice(2000, 2001), lambda x: x * 2))
    assert (spike.ending, spike.recovered) == ("fast-recovery", 2002)
    assert "instant" in spike.tags


def test_a_spike_that_takes_long():
    """More than 200 steps back to the level is a slow recovery."""
    decay = 1.0 * np.exp(-np.arange(900) / 150)
    slow = ending(loss=(slice(2000, 2900), lambda x: x + decay))
    assert slow.ending == "slow-recovery"
    assert 2300 <= slow.recovered <= 2800


def test_a_level_that_stays_higher():
    """It settles within one and a half times the level and does not rise: a new basin."""
    basin = ending(loss=(slice(2000, None), lambda x: x + 0.4))
    assert (basin.ending, basin.recovered) == ("new-basin", None)


@pytest.mark.parametrize("at", [200, 400, 1000, 2000])
@pytest.mark.parametrize("rise", [0.2, 0.4])
def test_a_level_that_stays_higher_while_the_loss_falls(at, rise):
    """The old level is seen again in time, but only because a falling loss falls."""
    basin = ending(loss=(slice(at, None), lambda x: x + rise))
    assert (basin.ending, basin.recovered) == ("new-basin", None)


@pytest.mark.parametrize("at", [400, 1000, 2000])
@pytest.mark.parametrize("tau", [60, 150])
def test_a_level_that_comes_back_while_the_loss_falls(at, tau):
    """The same leap, that heals: it has recovered, however much the loss fell meanwhile."""
    decay = 0.8 * np.exp(-np.arange(4000 - at) / tau)
    healed = ending(loss=(slice(at, None), lambda x: x + decay))
    assert healed.ending in ("fast-recovery", "slow-recovery")


def test_a_loss_that_keeps_rising():
    """It never comes back and goes on rising: diverged."""
    rise = np.arange(2000) * 0.01
    assert ending(loss=(slice(2000, None), lambda x: x + rise)).ending == "diverged"


def test_a_nan_to_the_end():
    """Not finite to the end of the log: diverged, even where the log ends at once."""
    assert ending(loss=(slice(2000, None), lambda x: x * np.nan)).ending == "diverged"
    assert ending(loss=(slice(3999, None), lambda x: x * np.nan)).ending == "diverged"


def test_a_nan_that_passes():
    """One NaN among finite losses is over at the next row."""
    passed = ending(loss=(slice(2000, 2001), lambda x: x * np.nan))
    assert (passed.ending, passed.recovered) == ("fast-recovery", 2002)


@pytest.mark.parametrize("every", [1, 100])
@pytest.mark.parametrize("better", [-1, 1])
def test_a_nan_of_a_metric_that_may_rise_or_fall_passes(better, every):
    """Finite values are all that is asked where nobody knows which way is worse."""
    n = 2000
    values = np.where(np.arange(n) % every == every - 1, 0.5 + better * np.arange(n) / n, None)
    values = np.array([np.nan if i == 599 else v for i, v in enumerate(values)], dtype=object)
    loss = [2.0 - i / n for i in range(n)]
    (incident,) = incidents(
        {"loss": loss, "accuracy": values.tolist()},
        found("accuracy", 600, severity="warning", value=float("nan"), expected=None),
    )

    assert incident.ending in ("fast-recovery", "slow-recovery")
    assert incident.recovered == 600 + every


def test_a_log_that_ends_too_soon():
    """A spike in the last rows: nobody knows how it went on."""
    assert ending(loss=(slice(3996, None), lambda x: x * 1.6)).ending == "unresolved"


RARE = {
    "rises": lambda n: 0.05 * np.arange(1, n + 1),
    "stays": lambda n: np.full(n, 0.8),
    "comes down at the end": lambda n: np.where(np.arange(n) < n - 2, 0.8, 0.0),
    "comes back": lambda n: np.where(np.arange(n) < n - 6, 0.8, 0.0),
}
"""How far above its level a series that is logged rarely lies, over its last n rows."""


def rare(course, rows, metric, every):
    """How a leap of a metric ended whose last rows are as told, each so many steps apart."""
    values = 2.0 + np.random.default_rng(5).normal(0, 0.004, 40 + rows)
    values[40:] += RARE[course](rows)
    steps = np.arange(1, 41 + rows) * every
    up = steps[40:][RARE[course](rows) > 0]
    finding = found(metric, int(up[0]), int(up[-1]), rule="perplexity-rise")
    columns = {"step": steps, metric: values}
    if metric != "loss":  # between evaluations the run logs its gradient norm
        columns = {"step": np.arange(1, steps[-1] + 1), "grad_norm": np.ones(steps[-1])}
        full: list[float | None] = [None] * int(steps[-1])
        for step, value in zip(steps, values, strict=True):
            full[step - 1] = float(value)
        columns[metric] = full
    (incident,) = group(make_run(**columns), [finding])
    return incident


@pytest.mark.parametrize(("metric", "every"), [("val_loss", 25), ("val_loss", 1), ("loss", 25)])
@pytest.mark.parametrize(
    ("course", "rows", "endings"),
    [
        ("rises", 20, ("new-basin", "diverged")),
        ("rises", 12, ("new-basin", "diverged")),
        ("stays", 12, ("new-basin", "diverged")),
        ("stays", 5, ("unresolved",)),
        ("comes down at the end", 12, ("unresolved",)),
        ("comes back", 12, ("fast-recovery", "slow-recovery")),
    ],
)
def test_what_is_logged_rarely_is_judged_by_its_rows(metric, every, course, rows, endings):
    """Ten evaluations to the end, none of them back: it never recovered. Of fewer nobody knows."""
    if metric == "loss" and course == "comes down at the end":
        endings = ("fast-recovery", "slow-recovery")  # two rows are 50 steps, which is enough
    assert rare(course, rows, metric, every).ending in endings


@pytest.mark.parametrize("rows", [12, 100])
def test_rows_of_every_step_are_asked_in_their_number(rows):
    """A hundred steps are not ten evaluations: so soon a loss may yet come back."""
    assert rare("stays", rows, "loss", 1).ending == "unresolved"


def test_a_rollback_ends_it():
    """The run went back to before the onset: rolled back, not recovered."""
    columns = healthy(1300)
    loss = columns["loss"].copy()
    loss[1200:] += 2.0
    step = np.concatenate([np.arange(1, 1301), np.arange(1001, 1301)])
    joined = np.concatenate([loss, columns["loss"][1000:]])
    run = make_run(step=step, loss=joined)
    grave = [f for f in run_rules(run, select((), ("loss-spike",)))[0] if f.severity != "notice"]
    (one,) = group(run, grave)
    assert (one.attempt, one.first, one.ending) == (0, 1201, "rolled-back")


def test_the_same_step_in_two_attempts_is_said():
    """The same data at the same step spiked again after the rollback."""
    columns = healthy(1300)
    loss = columns["loss"].copy()
    loss[1200:1210] += 2.0
    step = np.concatenate([np.arange(1, 1301), np.arange(1001, 1301)])
    run = make_run(step=step, loss=np.concatenate([loss, loss[1000:]]))
    grave = [f for f in run_rules(run, select((), ("loss-spike",)))[0] if f.severity != "notice"]
    assert ["recurs-at-same-step" in i.tags for i in group(run, grave)] == [True, True]


@pytest.mark.parametrize("shift", [1, 1000, 123_456])
def test_shifting_steps_shifts_incidents(shift):
    """Where a run begins to count makes no difference."""
    columns = healthy(2000)
    columns["loss"][1400:1430] *= 1.5
    spans = []
    for offset in (0, shift):
        run = make_run(**(columns | {"step": columns["step"] + offset}))
        fs, _ = run_rules(run, select((), ("loss-spike",)))
        spans.append([(i.first - offset, i.last - offset, i.ending) for i in group(run, fs)])
    assert spans[0] == spans[1]


def test_quiet_rows_after_it_change_nothing():
    """Appending a healthy stretch changes no earlier incident that had ended."""
    columns = healthy(4000)
    columns["loss"][1400:1430] *= 1.5
    told = []
    for n in (3000, 4000):
        run = make_run(**{k: v[:n] for k, v in columns.items()})
        fs, _ = run_rules(run, select((), ("loss-spike", "grad-norm-spike")))
        told.append(
            [
                (i.first, i.last, i.ending, i.recovered)
                for i in group(run, fs)
                if i.severity != "notice"
            ]
        )
    assert told[0] == told[1]
