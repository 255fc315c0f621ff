"""Rule ``dead-groups``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.levels import centred, lasting
from stabcli.rewards import never_differed, throughout
from stabcli.rules import ALIKE, CannotLook, Finding, finding, rule
from stabcli.run import Run
from stabcli.series import signals

METRICS = ("dead_group_fraction", "reward_std", "reward")
"""What tells that rewards are alike, the best first."""


@rule(presets=("default",), since="0.1.0")
def dead_groups(run: Run, *, most: float = 0.8, rows: int = 20) -> Iterator[Finding]:
    """Rollouts of a prompt are rewarded alike: there is nothing to learn from.

    ## What it finds
    Share of prompt groups whose rewards are all equal, as a median of five rows, above ``most``
    for ``rows`` rows; where that is not logged, a spread of the rewards of exactly 0 for as long.
    Where neither is logged, a mean reward that is one and the same number in every row of the
    run, of ``rows`` at least.

    ## Why it matters
    Advantages relative to the group are 0 for such prompts. The GPU time of their rollouts buys
    no gradient, and what remains of the batch is small and noisy.

    ## What to do
    Sample harder or easier prompts, filter groups before they enter the batch, or fix the reward
    if it is the same for every answer.

    ## When it errs
    Near the end of a task that is solved this is as it should be. Rewards that are normalised
    before they are logged have a mean of 0 by themselves.

    ## Settings
    most: Highest share of such groups that is healthy.
    rows: Rows it must last.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_policy.jsonl --rule dead-groups --format brief
    warning   dead-groups          attempt 0  step 639..800  dead_group_fraction 0.9415, expected 0.8

    ## Sources
    - frac_reward_zero_std: logged by TRL for this purpose; groups without spread are filtered in
      DAPO's dynamic sampling.
    """
    metric = next((m for m in METRICS if run.has(m)), None)
    if metric is None:
        raise CannotLook("the log has no dead_group_fraction, reward_std or reward")
    looked = False
    for raw in signals(run, metric):
        signal = raw.finite()
        if len(signal) < rows:
            continue
        looked = True
        smooth = centred(signal.values, 5)
        shares = metric == "dead_group_fraction"
        if metric == "reward":
            dead = np.full(len(signal), throughout(signal, float(signal.values[0])))
        else:
            dead = smooth > most if shares else np.abs(smooth) < 1e-9
        for first, last in lasting(dead, rows, gap=5):
            peak = first + int(np.argmax(smooth[first : last + 1]))
            yield finding(
                run,
                metric=metric,
                rows=(int(signal.rows[first]), int(signal.rows[last])),
                peak=int(signal.rows[peak]),
                severity="warning",
                value=float(signal.values[peak]),
                expected=most if shares else None,
                score=float(smooth[peak] / most) if shares else None,
                tags=(ALIKE,) if never_differed(run, raw.attempt) else (),
            )
    if not looked:
        raise CannotLook(f"fewer than {rows} rows with {metric} in every attempt")
