"""Rule ``reward-drop``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.levels import lasting, leading, median_error, noise, trailing
from stabcli.rules import CannotLook, Finding, finding, rule
from stabcli.run import Run
from stabcli.series import Signal, signals, stretches


@rule(needs=("reward",), presets=("default",), since="0.1.0")
def reward_drop(
    run: Run,
    *,
    share: float = 0.5,
    rows: int = 10,
    sigmas: float = 6.0,
    error_share: float = 0.9,
    error_rows: int = 50,
    dip_share: float = 0.9,
    dip_sigmas: float = 8.0,
) -> Iterator[Finding]:
    """Reward loses most of what it had gained.

    ## What it finds
    The reward, as a median of ``rows`` rows, falls from its best level so far by more than
    ``share`` of its rise since the start, for ``rows`` rows, and by ``sigmas`` standard errors of
    such medians: a warning. An error where ``error_share`` of the rise is gone, in the median of
    at least ``error_rows`` rows, or of all rows up to the end of the log: the policy is back
    where it began. A shorter dip is a warning where a row loses ``dip_share`` of the rise, by
    ``dip_sigmas`` standard deviations of single rows, and the row before or after it still lacks
    half of those and a quarter of the rise: one low row alone is one bad batch. A run whose
    reward never rose beyond its noise has nothing to lose and is left alone.

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
    dip_share: Share of the achieved rise that the deepest row of a short dip must lose.
    dip_sigmas: Standard deviations of single rows that it must lose.

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
        fallen = lasting(low, rows, gap=rows)
        yield from _dips(run, signal, best, (dip_share, dip_sigmas), fallen)
        for first, last in fallen:
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


def _dips(
    run: Run,
    signal: Signal,
    best: np.ndarray,
    least: tuple[float, float],
    fallen: list[tuple[int, int]],
) -> Iterator[Finding]:
    """Yield where nearly all of the reward is gone for fewer rows than make a fall.

    Args:
        run: The run.
        signal: Its finite rewards, n of them.
        best: Best level up to each, float of shape (n,), NaN where none is known yet.
        least: Share of the rise, and standard deviations of single rows, that must be gone.
        fallen: First and last index of what is told already.
    """
    share, sigmas = least
    x, sigma = signal.values, noise(signal.values)
    before = np.concatenate([[np.nan], best[:-1]])
    start = best[np.isfinite(best)][0]
    gone = before - x
    with np.errstate(invalid="ignore"):
        deep = (gone >= share * (before - start)) & (gone > sigmas * sigma)
        deep &= before - start > sigmas * sigma
        low = (gone > sigmas * sigma / 2) & (gone > (before - start) / 4)
    for first, last in stretches(low):
        inside = np.arange(first, last + 1)
        told = any(a <= last and first <= b for a, b in fallen)
        if told or first == last or not deep[inside].any():
            continue
        peak = first + int(np.argmin(x[inside]))
        yield finding(
            run,
            metric="reward",
            rows=(int(signal.rows[first]), int(signal.rows[last])),
            peak=int(signal.rows[peak]),
            severity="warning",
            value=float(x[peak]),
            expected=float(before[first]),
            score=float(gone[peak] / (share * (before[first] - start))),
        )
