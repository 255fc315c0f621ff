"""Rule ``reward-drop``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.levels import lasting, leading, median_error, noise, trailing
from stabcli.rules import CannotLook, Finding, finding, rule
from stabcli.run import Run
from stabcli.series import signals


@rule(needs=("reward",), presets=("default",), since="0.1.0")
def reward_drop(
    run: Run,
    *,
    share: float = 0.5,
    rows: int = 10,
    sigmas: float = 6.0,
    error_share: float = 0.9,
    error_rows: int = 50,
) -> Iterator[Finding]:
    """Reward loses most of what it had gained.

    ## What it finds
    The reward, as a median of ``rows`` rows, falls from its best level so far by more than
    ``share`` of its rise since the start, for ``rows`` rows, and by ``sigmas`` standard errors of
    such medians: a warning. An error where ``error_share`` of the rise is gone, in the median of
    at least ``error_rows`` rows, or of all rows up to the end of the log: the policy is back
    where it began. A run whose reward never rose beyond its noise has nothing to lose and is left
    alone.

    ## Why it matters
    What was learnt is being unlearnt; most policies do not come back by themselves.

    ## What to do
    Go back to a checkpoint before the fall, with a lower learning rate or a stronger KL penalty.

    ## When it errs
    A planned change of prompts or of the reward looks like this.

    ## Settings
    share: Share of the achieved rise that must be lost.
    rows: Rows whose median is taken, and that the loss must last.
    sigmas: Least fall in standard errors of the median.
    error_share: Share of the achieved rise whose loss is an error.
    error_rows: Rows that such a loss must last, where the log does not end with it.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_policy.jsonl --rule reward-drop --format brief
    error     reward-drop          attempt 0  step 686..791  reward 0.1699, expected 0.6995

    ## Sources
    - A judgement; checked on public policy-gradient runs that lost their reward and found it again.
    """
    looked = False
    for raw in signals(run, "reward"):
        signal = raw.finite()
        n = len(signal)
        if n < 4 * rows:
            continue
        looked = True
        behind, ahead = trailing(signal.values, rows), leading(signal.values, rows)
        best = np.fmax.accumulate(behind)
        rise = best - behind[rows - 1]
        error = median_error(noise(signal.values), rows, rows)
        with np.errstate(invalid="ignore"):
            low = (best - ahead > share * rise) & (best - ahead > sigmas * error)
            low &= rise > sigmas * error
        for first, last in lasting(low, rows, gap=rows):
            inside = signal.values[first : last + 1]
            peak = first + int(np.argmin(inside))
            level = float(np.median(inside[rows // 2 :]))
            gone = float(best[first]) - level >= error_share * float(rise[first])
            lasts = last - first + 1 >= error_rows or last >= n - rows
            yield finding(
                run,
                metric="reward",
                rows=(int(signal.rows[first]), int(signal.rows[last])),
                peak=int(signal.rows[peak]),
                severity="error" if gone and lasts else "warning",
                value=float(signal.values[peak]),
                expected=float(best[first]),
                score=float((best[first] - np.median(inside)) / (share * rise[first])),
            )
    if not looked:
        raise CannotLook(f"fewer than {4 * rows} logged rewards in every attempt")
