"""Rule ``chosen-reward-drop``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.metrics import CHOSEN_REWARDS, is_chosen_reward
from stabcli.rules import CannotLook, Finding, finding, rule
from stabcli.run import Run
from stabcli.series import signals
from stabcli.shifts import rises


@rule(presets=("default",), since="0.1.0")
def chosen_reward_drop(
    run: Run, *, fall: float = 1.0, share: float = 0.5, rows: int = 32, sigmas: float = 5.0
) -> Iterator[Finding]:
    """The answers that a preference run is to prefer suddenly become unlikely.

    ## What it finds
    In a column named like ``rewards/chosen``, a level (trimean of ``rows`` rows) that steps down
    and stays there for as many rows: by at least ``fall``, by ``share`` of how far the level
    before lay from 0, and by ``sigmas`` standard errors of such levels, their own wander among
    them: a warning.

    ## Why it matters
    The implicit reward of an answer is how much likelier it is to the policy than to the
    reference, times beta. Preference losses look at margins alone, and are as content where both
    answers become unlikely: the accuracy stays, and the policy writes neither of the two.

    ## What to do
    Go back to before ``first``; raise beta, lower the learning rate, or add a term that holds the
    preferred answers up (the supervised loss on them, or that of DPO-Positive).

    ## When it errs
    A slow fall is usual in such runs and left alone. A change of data shows as a step as well.

    ## Settings
    fall: Least fall, in the unit of the log: beta times nats.
    share: Least fall as a share of the distance of the level before from 0.
    rows: Rows on either side whose levels are compared.
    sigmas: Least fall in standard errors.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_preferences.jsonl --rule chosen-reward-drop --format brief
    warning   chosen-reward-drop   attempt 0  step 356..600  rewards/chosen -4.138, expected -0.7612

    ## Sources
    - Razin et al. (2024), Unintentional Unalignment: Likelihood Displacement in Direct Preference
      Optimization.
    - Pal et al. (2024), Smaug: Fixing Failure Modes of Preference Optimisation with DPO-Positive.
    - The limits are a judgement; a public run of a thousand steps falls twice by more than them.
    """
    names = [m for m in run.measurements if run.has(m) and is_chosen_reward(m)]
    if not names:
        raise CannotLook(f"the log has no {CHOSEN_REWARDS[0]}")
    looked = False
    for name in names:
        for raw in signals(run, name):
            signal = raw.finite()
            if len(signal) < 2 * rows:
                continue
            looked = True
            for s in rises(-signal.values, rows=rows, least=fall, sigmas=sigmas):
                size = s.after - s.before
                if size < share * abs(s.before):
                    continue
                lowest = s.first + int(np.argmin(signal.values[s.first : s.last + 1]))
                yield finding(
                    run,
                    metric=name,
                    rows=(int(signal.rows[s.first]), int(signal.rows[s.last])),
                    peak=int(signal.rows[lowest]),
                    severity="warning",
                    value=float(signal.values[lowest]),
                    expected=-s.before,
                    score=s.score,
                )
    if not looked:
        raise CannotLook(f"fewer than {2 * rows} implicit rewards in every attempt")
