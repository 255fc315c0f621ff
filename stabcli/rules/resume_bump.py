"""Rule ``resume-bump``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.levels import median_error, noise
from stabcli.rules import CannotLook, Finding, finding, rule
from stabcli.run import Run
from stabcli.series import MINIMUM, Signal, signals


@rule(needs=("loss",), presets=("default",), since="0.1.0")
def resume_bump(
    run: Run, *, rise: float = 0.02, sigmas: float = 5.0, rows: int = 50, decay: int = 200
) -> Iterator[Finding]:
    """Loss is higher after a restart than before it: something was not restored.

    ## What it finds
    The median loss of the first ``rows`` rows after a restart lies ``rise`` above the level that
    the run had just before the step it went back to, further than ``sigmas`` standard errors: a
    warning; an error when it is still so after ``decay`` steps.

    ## Why it matters
    A checkpoint holds more than weights. Without the optimiser's moments, the learning-rate
    schedule, the position in the data or the random state the run goes on as another run.

    ## What to do
    Compare the learning rate and the gradient norm on both sides, load the optimiser's state, and
    check that the data loader continues where it stopped.

    ## When it errs
    A change of data or of batch size made along with the restart. Where the loss before was on
    its way up, the level before is already high and the bump looks smaller than it is.

    ## Settings
    rise: Least relative rise of the median loss.
    sigmas: Least rise in standard errors of the two medians.
    rows: Rows after the restart.
    decay: Steps after which it should be over.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_bad_resume.jsonl --rule resume-bump --format brief
    warning   resume-bump          attempt 1  step 501..550  loss 2.652, expected 2.534

    ## Sources
    - Bumps after each resume: chronicles of IDEFICS-80B (m4-logs); resume-related spikes in
      training-loss-patterns.md of ml-engineering (stas00).
    """
    resumed = [s.finite() for s in signals(run, "loss") if s.resumed and len(s.inherited)]
    if not resumed:
        raise CannotLook("no attempt goes on from an earlier one")
    looked = False
    for signal in resumed:
        if len(signal) < 10 or len(signal.inherited) < MINIMUM:
            continue
        looked = True
        first = signal.values[:rows]
        level, limit = _limit(signal, len(first), rise, sigmas)
        if float(np.median(first)) < limit:
            continue
        late = int(np.searchsorted(signal.steps, signal.steps[0] + decay))
        after = signal.values[late : late + rows]
        stays = len(after) >= 10 and float(np.median(after)) >= limit
        last = min(len(signal) - 1, late + len(after) - 1 if stays else len(first) - 1)
        yield finding(
            run,
            metric="loss",
            rows=(int(signal.rows[0]), int(signal.rows[last])),
            severity="error" if stays else "warning",
            value=float(np.median(first)),
            expected=level,
            score=float((np.median(first) - level) / (limit - level)),
            tags=("resume",),
        )
    if not looked:
        raise CannotLook(
            f"no restart with {MINIMUM} logged losses before and 10 after the step it went back to"
        )


def _limit(signal: Signal, count: int, rise: float, sigmas: float) -> tuple[float, float]:
    """Return the level before a restart, and that above which the one after is a bump."""
    before = signal.inherited
    level = float(np.median(before))
    sigma = max(noise(before), noise(signal.values[:count]))
    margin = sigmas * median_error(sigma, len(before), count)
    return level, level + max(rise * abs(level), margin)
