"""Rule ``discarded-steps``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.rules import CannotLook, Finding, finding, rule
from stabcli.run import Run


@rule(presets=("default",), since="0.1.0", judges=False)
def discarded_steps(run: Run, *, least: int = 1) -> Iterator[Finding]:
    """Steps were done, thrown away by going back, and done again.

    ## What it finds
    For each attempt that a later one went back into, the steps from where that one began to the
    last that was logged: one notice, whose value is the number of steps thrown away.

    ## Why it matters
    They were paid for and are not in the model. How many there are per restart says how far apart
    checkpoints may lie.

    ## What to do
    Nothing, where it was a rollback on purpose. After crashes, save checkpoints more often.

    ## When it errs
    Several runs written one after the other into one file look like restarts from the beginning:
    those are tagged ``started-over``. Trackers that refuse steps which go back hide restarts.

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
    edges = np.flatnonzero(np.diff(attempts[gone])) + 1
    for rows in np.split(gone, edges):
        if not len(rows):
            continue
        first, last = int(rows[0]), int(rows[-1])
        count = int(steps[last] - steps[first]) + interval
        if count < least:
            continue
        over = int(steps[first]) <= starts[int(attempts[first])]
        yield finding(
            run,
            metric="step",
            rows=(first, last),
            peak=last,
            severity="notice",
            value=float(count),
            tags=("started-over",) if over else (),
        )
