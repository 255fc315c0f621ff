"""Planned changes: found, told, and compared anew from there."""

import numpy as np
import pytest

from stabcli.diagnosis import diagnose
from stabcli.report import Outcome, Screen, reports
from stabcli.segments import Change, changes
from tests.report.diagnoses import diagnosis
from tests.rules.runs import healthy, make_run

N = 1000


@pytest.mark.parametrize(
    "metric", ["batch_tokens", "batch_sequences", "sequence_length", "data_stage", "gpus"]
)
def test_a_change_is_told_with_what_it_was(metric):
    columns = healthy(N) | {metric: np.where(np.arange(N) < 600, 512.0, 1024.0)}
    run = make_run(**columns)
    assert changes(run) == (Change(metric=metric, attempt=0, step=601, before=512.0, after=1024.0),)
    shown = next(r for r in reports if r.name == "console").write(
        Outcome(diagnoses=(diagnosis(run=run),), exit_status=0), Screen()
    )
    assert f"changed     {metric} 512 → 1,024 at step 601: compared anew from there" in shown


def test_a_leap_of_the_learning_rate_is_a_change_and_a_schedule_is_none():
    columns = healthy(N)
    assert changes(make_run(**columns)) == ()
    columns["learning_rate"][600:] *= 4
    (found,) = changes(make_run(**columns))
    assert (found.metric, found.step) == ("learning_rate", 601)


def test_batches_that_never_hold_equal_tokens_are_no_plan():
    columns = healthy(N) | {"batch_tokens": np.random.default_rng(0).integers(900, 1100, N) * 1.0}
    assert changes(make_run(**columns)) == ()


@pytest.mark.parametrize("rows", [1, 2])
def test_short_runs_have_none(rows):
    assert changes(make_run(loss=np.ones(rows), gpus=np.arange(rows) + 1.0)) is not None


@pytest.mark.parametrize("metric", ["batch_sequences", "sequence_length", "data_stage", "gpus"])
@pytest.mark.parametrize("factor", [0.75, 1.1, 1.2])
def test_what_a_planned_change_does_to_level_and_speed_is_no_alarm(metric, factor):
    """Another level of loss and speed from the row of the change on: nothing above a notice."""
    columns = healthy(3000) | {metric: np.where(np.arange(3000) < 1300, 512.0, 1024.0)}
    columns["loss"][1300:] *= factor
    columns["tokens_per_second"][1300:] *= 0.8
    found = [i for i in diagnose(make_run(**columns)).incidents if i.severity != "notice"]
    assert [(i.rule, i.first) for i in found] == []
