"""Published guards: the lines of theirs that look at more than the loss."""

import numpy as np

from tests.rules.runs import findings, healthy, make_run
from tests.rules.test_default_validation import sparse


def test_the_watcher_calls_where_many_rows_are_clipped():
    """More than one in twenty of the last 300 above the clip; unknown clips are not guessed."""
    columns = healthy(2000)
    columns["grad_norm"] = 0.3 + np.zeros(2000)
    columns["grad_norm"][1000:1100:4] = 3.0
    found = findings(make_run(**columns, facts={"grad_clip": 1.0}), "wandb-watcher")
    clipped = [f for f in found if f.metric == "grad_norm"]
    assert [(f.first, f.expected) for f in clipped] == [(1061, 1.0)]
    assert not [f for f in findings(make_run(**columns), "wandb-watcher") if f.metric != "loss"]


def test_the_watcher_calls_where_steps_are_slow():
    """Thirty steps whose median is a quarter above that of the run."""
    seconds = 2.0 + np.random.default_rng(0).normal(0, 0.02, 2000)
    quiet = findings(make_run(**healthy(2000), step_seconds=seconds), "wandb-watcher")
    seconds[1000:1100] *= 1.4
    found = findings(make_run(**healthy(2000), step_seconds=seconds), "wandb-watcher")
    assert not [f for f in quiet if f.metric == "step_seconds"]
    assert [f.first for f in found if f.metric == "step_seconds"] == [1016]


def test_lightning_stops_at_a_threshold_where_one_was_chosen():
    columns = healthy(1000)
    evals = np.linspace(3.0, 2.0, 20)
    evals[10] = 9.0
    run = make_run(**columns, val_loss=sparse(evals, 50, 1000))
    assert findings(run, "lightning-earlystop") == []
    assert [f.first for f in findings(run, "lightning-earlystop", divergence=5.0)] == [550]
