"""Rule ``seed-entropy-collapse``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from stabcli.errors import SettingError
from stabcli.rules import CannotLook, Finding, finding, rule
from stabcli.run import Run
from stabcli.series import signals, slopes, stretches


@rule(needs=("entropy", "reward"), presets=("seed",), since="0.1.0")
def seed_entropy_collapse(
    run: Run, *, threshold: float = 1.0, window: int = 20, join: int = 10
) -> Iterator[Finding]:
    """Entropy of the policy is below 1 while the reward still rises.

    ## What it finds
    Rows whose entropy is below ``threshold`` while the Theil-Sen slope of the last ``window``
    rewards, that of the row included, is above 0.

    ## Why it matters
    A policy that has stopped exploring and still earns more has found one way of speaking that
    the reward likes: the language collapses, and the generated tokens are wasted.

    ## What to do
    Stop early, and change the KL coefficient.

    ## When it errs
    Entropy below 1 is normal: most reasoning models start there and aim at 0.2 nats, and one
    maintainer calls 1 an upper bound rather than a floor. So the rule fires on the first rows of
    many healthy runs. TRL's PPO logs the entropy summed over the tokens of an answer, which is
    never below 1 even when it has collapsed. ``entropy-collapse`` of the default preset compares
    with the entropy that the run began with.

    ## Settings
    threshold: Entropy, in nats per token, below which a row fires.
    window: Rewards over which the slope is taken.
    join: Rows between two that fire which still belong to one finding.

    ## Example
    $ stabcli scan sample_logs/jsonl/entropy_collapse.jsonl --rule seed-entropy-collapse --format brief
    error     seed-entropy-collapse attempt 0  step 113..237  entropy 0.0749, expected 1
    error     seed-entropy-collapse attempt 0  step 252..299  entropy 0.037, expected 1
    error     seed-entropy-collapse attempt 0  step 326..346  entropy 0.02416, expected 1
    error     seed-entropy-collapse attempt 0  step 362..372  entropy 0.02014, expected 1
    error     seed-entropy-collapse attempt 0  step 390..396  entropy 0.01735, expected 1

    ## Sources
    - Below 1.0 while the reward rises, stop early and change the KL coefficient: the field's
      rule of thumb.
    - A floor of 0.2 nats: the adaptive entropy of Skywork-OR1, an option of TRL's GRPO.
    - The slope: Sen (1968), Estimates of the regression coefficient based on Kendall's tau.
    """
    if window < 2:
        raise SettingError(f"seed-entropy-collapse.window: {window} rewards have no slope: give 2+")
    rewards = {s.attempt: s.finite() for s in signals(run, "reward", history=window - 1)}
    looked = False
    for raw in signals(run, "entropy"):
        signal, reward = raw.finite(), rewards.get(raw.attempt)
        if reward is None:
            continue
        earned = np.concatenate([reward.inherited, reward.values])
        known = len(reward.inherited) + np.searchsorted(reward.rows, signal.rows, side="right")
        judged = known >= window
        looked = looked or bool(judged.any())
        low = np.flatnonzero(judged & (signal.values < threshold))
        if not len(low):
            continue
        fired = np.zeros(len(signal), bool)
        fired[low] = slopes(sliding_window_view(earned, window)[known[low] - window]) > 0
        for first, last in stretches(fired, gap=join):
            inside = np.flatnonzero(fired[first : last + 1]) + first
            peak = int(inside[np.argmin(signal.values[inside])])
            value = float(signal.values[peak])
            yield finding(
                run,
                metric="entropy",
                rows=(int(signal.rows[first]), int(signal.rows[last])),
                peak=int(signal.rows[peak]),
                severity="error",
                value=value,
                expected=threshold,
                score=threshold / value if value > 0 else float("inf"),
            )
    if not looked:
        raise CannotLook(f"no finite entropy with {window} rewards logged up to it")
