"""Rule ``reward-hacking``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.levels import median_error, noise
from stabcli.rules import CannotLook, Finding, Severity, finding, rule
from stabcli.run import Run
from stabcli.series import Signal, signals, slope


@rule(needs=("reward",), presets=("default",), since="0.1.0")
def reward_hacking(
    run: Run, *, evals: int = 5, fall: float = 0.05, clipped: float = 0.3, sigmas: float = 4.0
) -> Iterator[Finding]:
    """Reward rises while what it stands for does not.

    ## What it finds
    While the training reward rises beyond its noise: the reward on held-out tasks falls by
    ``fall`` from its best, over at least ``evals`` evaluations (a warning); or the share of
    responses cut at the length limit rises above ``clipped`` (a warning); or, where there are no
    evaluations, the divergence from the reference grows to three times its first level (a notice).

    ## Why it matters
    The policy has found something that the reward likes and the task does not.

    ## What to do
    Read samples from before and after. Cap or penalise length, raise the KL coefficient, or mend
    the reward; go back to the best evaluation.

    ## When it errs
    Reasoning models rightly write longer as they get better, which is why length alone is not
    looked at. Held-out tasks of another kind may get worse although nothing is hacked.

    ## Settings
    evals: Least evaluations.
    fall: Least relative fall of the held-out reward from its best.
    clipped: Share of responses cut at the limit.
    sigmas: Least rise and fall in standard errors of the noise.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_hacking.jsonl --rule reward-hacking --format brief
    warning   reward-hacking       attempt 0  step 400..800  val_reward 0.3557, expected 0.5777

    ## Sources
    - Proxy and true reward part as the divergence grows: Gao, Schulman and Hilton (2022), Scaling
      laws for reward model overoptimization.
    """
    compared = [m for m in ("val_reward", "response_clip_fraction", "kl") if run.has(m)]
    if not compared:
        raise CannotLook("the log has no val_reward, response_clip_fraction or kl to compare with")
    others = {m: {s.attempt: s.finite() for s in signals(run, m)} for m in compared}
    looked = False
    for raw in signals(run, "reward"):
        reward = raw.finite()
        if len(reward) < 20:
            continue
        looked = True
        other = {m: parts[reward.attempt] for m, parts in others.items() if reward.attempt in parts}
        if held := other.get("val_reward"):
            yield from _held_out(run, reward, held, evals, fall, sigmas)
        if (cut := other.get("response_clip_fraction")) and _rises(reward, 0, sigmas):
            yield from _grows(run, cut, clipped, "warning")
        if "val_reward" not in other and (kl := other.get("kl")) and _rises(reward, 0, sigmas):
            early = float(np.median(kl.values[:25])) if len(kl) >= 50 else np.inf
            yield from _grows(run, kl, max(3 * early, 0.1), "notice")
    if not looked:
        raise CannotLook("fewer than 20 logged rewards in every attempt")


def _rises(reward: Signal, step: int, sigmas: float) -> bool:
    """Say whether the reward rises from ``step`` on, beyond its noise."""
    values = reward.values[reward.steps >= step]
    quarter = len(values) // 4
    if quarter < 3:
        return False
    gain = float(np.median(values[-quarter:]) - np.median(values[:quarter]))
    return gain > sigmas * median_error(noise(values), quarter, quarter) and gain > 0


def _held_out(
    run: Run, reward: Signal, held: Signal, evals: int, fall: float, sigmas: float
) -> Iterator[Finding]:
    if len(held) < evals + 1:
        return
    best = int(np.argmax(held.values))
    after = held.values[best:]
    if len(after) < evals or not slope(held.steps[best:], after) < 0:
        return
    level = float(np.median(held.values[max(0, best - 1) : best + 2]))
    lost = level - float(np.median(after[-3:]))
    limit = max(fall * abs(level), sigmas * noise(held.values))
    if lost < limit or not _rises(reward, int(held.steps[best]), sigmas):
        return
    peak = best + int(np.argmin(after))
    yield finding(
        run,
        metric="val_reward",
        rows=(int(held.rows[best + 1]), int(held.rows[-1])),
        peak=int(held.rows[peak]),
        severity="warning",
        value=float(held.values[peak]),
        expected=level,
        score=lost / max(limit, 1e-12),
    )


def _grows(run: Run, other: Signal, limit: float, severity: Severity) -> Iterator[Finding]:
    """Yield a finding where the last quarter of ``other`` lies above ``limit``, unlike the first."""
    quarter = len(other) // 4
    if quarter < 3 or float(np.median(other.values[-quarter:])) <= limit:
        return
    if float(np.median(other.values[:quarter])) > limit * 2 / 3:
        return
    first = int(np.argmax(other.values > limit))
    peak = first + int(np.argmax(other.values[first:]))
    yield finding(
        run,
        metric=other.metric,
        rows=(int(other.rows[first]), int(other.rows[-1])),
        peak=int(other.rows[peak]),
        severity=severity,
        value=float(other.values[peak]),
        expected=limit,
        score=float(other.values[peak] / limit),
    )
