"""Loading data: what is said of it from start to end, and of a run that it made slower."""

import numpy as np
import pytest

from stabcli.diagnosis import diagnose
from stabcli.waiting import waiting
from tests.rules.runs import findings, healthy, make_run

PERCENT = "time_metrics/data_loading(%)"
SECONDS = "time_metrics/data_loading(s)"


def run_of(share, slower=1.0, seed=0, name=PERCENT, n=2000, **columns):
    """A run that waits ``share`` of its time for data, steps being ``slower`` times as long."""
    made = healthy(n, seed)
    made["tokens_per_second"] = made["tokens_per_second"] / slower
    noise = np.random.default_rng(seed + 1).normal(1, 0.05, n)
    scale = 100.0 if "%" in name or name.endswith("pct") else 2.0 * slower
    made[name] = np.broadcast_to(share, n) * noise * scale
    if scale is not None and name == SECONDS:
        made["time_metrics/end_to_end(s)"] = np.broadcast_to(2.0 * slower, n) + np.zeros(n)
    return make_run(**made, **columns)


def causes(run):
    """Name -> cause of the worst incident of speed."""
    d = diagnose(run)
    pairs = zip(d.incidents, d.causes, strict=True)
    (told,) = [c for i, c in pairs if i.family == "speed" and i.severity != "notice"]
    return {c.name: c for c in told}


def after(first, before, then, n=2000):
    return np.where(np.arange(n) < first, before, then)


# --- from the start -------------------------------------------------------------------------


@pytest.mark.parametrize("name", [PERCENT, SECONDS, "throughput/device/data loading (%)"])
@pytest.mark.parametrize(("share", "fires"), [(0.3, True), (0.12, True), (0.08, False), (0, False)])
def test_a_run_that_always_waits_is_one_notice(name, share, fires):
    found = findings(run_of(share, name=name), "throughput-drop")
    assert [(f.severity, f.metric) for f in found] == ([("notice", name)] if fires else [])
    if fires:
        assert found[0].value / found[0].expected == pytest.approx(share / 0.1, rel=0.1)
        assert {"statistic", "waits-for-data"} <= set(found[0].tags)


@pytest.mark.parametrize("first", [100, 1500])
def test_a_stretch_of_waiting_is_not_the_whole_run(first):
    """In one half only."""
    share = after(first, 0.02, 0.3) if first > 1000 else after(first, 0.3, 0.02)
    assert findings(run_of(share), "throughput-drop") == []


@pytest.mark.parametrize(
    "name",
    ["data_loading", "moe/load(%)", "timing_s/load_param", "load_time(ms)", "data(ms)", "data"],
)
def test_other_columns_are_no_time_for_data(name):
    assert waiting(make_run(**{name: np.full(50, 30.0)}, step_seconds=np.full(50, 100.0))) is None


@pytest.mark.parametrize("value", [-1.0, 120.0, float("nan"), float("inf")])
def test_what_is_no_share_is_not_read_as_one(value):
    """Sentinels, and sums over many steps."""
    assert waiting(make_run(**{PERCENT: np.full(50, value)})) is None


def test_seconds_need_those_of_a_step():
    assert waiting(make_run(**{SECONDS: np.full(50, 0.1)}, loss=np.ones(50))) is None
    told = waiting(make_run(data_time=np.full(50, 0.1), step_time=np.full(50, 0.4)))
    assert told.share == pytest.approx(0.25)


# --- as the cause of a drop -----------------------------------------------------------------


@pytest.mark.parametrize("name", [PERCENT, SECONDS])
@pytest.mark.parametrize("seed", range(3))
def test_a_drop_that_loading_explains_names_it(name, seed):
    """Steps take 1.4 times as long, and all of that is loading."""
    slower, share = after(1000, 1.0, 1.4), after(1000, 0.02, (0.02 + 0.4) / 1.4)
    told = causes(run_of(share, slower, seed, name))
    assert told["data-loading"].standing == "observed"
    assert "before" in told["data-loading"].why
    assert [r.metric for r in told["data-loading"].rows] == [name, name]
    early, late = told["data-loading"].rows
    assert early.step < 1010 <= late.step + 10
    assert late.value > 5 * early.value


def test_a_drop_that_loading_explains_in_part_is_supported():
    slower, share = after(1000, 1.0, 2.0), after(1000, 0.02, (0.02 + 0.3) / 2.0)
    assert causes(run_of(share, slower))["data-loading"].standing == "supported"


@pytest.mark.parametrize("share", [0.02, 0.3])
def test_a_drop_with_the_usual_loading_does_not(share):
    """Nor where its share was high before: a slow node does not make it rise."""
    told = causes(run_of(share, after(1000, 1.0, 1.4)))
    assert "data-loading" not in told
    assert "before" in told["slow-hardware"].why


def test_a_drop_of_a_log_without_the_column_leaves_it_open():
    columns = healthy()
    columns["tokens_per_second"][1000:] /= 1.4
    told = causes(make_run(**columns))
    assert list(told) == ["slow-hardware"]
    assert "the log does not tell which" in told["slow-hardware"].why
