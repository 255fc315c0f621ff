"""Rule ``discarded-steps``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.rules import CannotLook, Finding, finding, rule
from stabcli.run import Run
from stabcli.units import Step

LOOP = 3
"""Attempts that end at the same step which are no coincidence."""


@rule(presets=("default",), since="0.1.0", judges=False)
def discarded_steps(run: Run, *, least: int = 1) -> Iterator[Finding]:
    """Steps were done, thrown away by going back, and done again.

    ## What it finds
    For each attempt that a later one went back into, the steps from where that one began to the
    last that was logged: one notice, whose value is the number of steps thrown away. Where three
    attempts or more ended at the same step, which is not the last that was planned, the newest of
    them is a warning: what stops the run waits there for the next as well.

    ## Why it matters
    They were paid for and are not in the model. How many there are per restart says how far apart
    checkpoints may lie.

    ## What to do
    Nothing, where it was a rollback on purpose. After crashes, save checkpoints more often. Where
    attempts end at the same step, look at what the trainer does there (its batch, an evaluation,
    a checkpoint) and at the last lines it printed, before you start it once more.

    ## When it errs
    Several runs written one after the other into one file look like restarts from the beginning:
    those are tagged ``started-over``, and may all end at the same step unless more was planned.
    Trackers that refuse steps which go back hide restarts. A limit on the time of a job, or on
    the steps of one, ends attempts at the same step too.

    ## Settings
    least: Least number of steps for a notice.

    ## Example
    $ stabcli scan sample_logs/jsonl/restart.jsonl --rule discarded-steps --format brief
    notice    discarded-steps      attempt 0  step 501..620  step 120

    ## Sources
    - Steps beyond one that is seen again are wasted progress: ml-goodput-measurement (Google).
    """
    if not run.frame.height:
        raise CannotLook("the log has no rows")
    gone = np.flatnonzero(run.frame["discarded"].to_numpy())
    steps = run.frame["step"].to_numpy()
    attempts = run.frame["attempt"].to_numpy()
    starts = {a.attempt: a.first_step for a in run.attempts}
    interval = run.log_interval or 1
    loops = _loops(run)
    edges = np.flatnonzero(np.diff(attempts[gone])) + 1
    for rows in np.split(gone, edges):
        if not len(rows):
            continue
        first, last = int(rows[0]), int(rows[-1])
        count = int(steps[last] - steps[first]) + interval
        if count < least:
            continue
        attempt = int(attempts[first])
        over = int(steps[first]) <= starts[attempt]
        again = int(steps[first]) <= run.attempts[0].first_step
        loop = attempt in loops and (not again or run.fact("total_steps") is not None)
        tags = ("started-over",) if over else ()
        yield finding(
            run,
            metric="step",
            rows=(first, last),
            peak=last,
            severity="warning" if loop else "notice",
            value=float(count),
            tags=(*tags, "ends-at-same-step") if loop else tags,
        )


def _loops(run: Run) -> set[int]:
    """Return of attempts that ended at the same step, too early, the newest that was discarded."""
    ends: dict[Step, list[int]] = {}
    planned = run.fact("total_steps")
    for a in run.attempts:
        if planned is None or a.last_step + (run.log_interval or 1) < planned:
            ends.setdefault(a.last_step, []).append(a.attempt)
    newest = run.attempts[-1].attempt
    return {max(a for a in alike if a != newest) for alike in ends.values() if len(alike) >= LOOP}
