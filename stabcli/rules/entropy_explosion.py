"""Rule ``entropy-explosion``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.levels import centred, lasting, noise
from stabcli.rules import CannotLook, Finding, Severity, finding, rule
from stabcli.run import Run
from stabcli.series import signals, slope

START = 25
"""Rows from which the starting level is taken."""


@rule(needs=("entropy",), presets=("default",), since="0.1.0")
def entropy_explosion(
    run: Run, *, ratio: float = 3.0, nats: float = 1.0, rows: int = 10, error: float = 2.0
) -> Iterator[Finding]:
    """Entropy of the policy grows out of hand: it turns to noise.

    ## What it finds
    Entropy at ``ratio`` times the median of its first 25 rows (and 0.3 nats above), or ``nats``
    above it, for ``rows`` rows. A warning where the reward, or the reward on held-out tasks,
    falls meanwhile, and an error where it has besides come ``error`` times ``nats`` above that
    median (of sums over tokens, to ``error`` times ``ratio`` of it); a notice where the reward does
    not fall, or is not logged.

    ## Why it matters
    The policy drifts from language it knows; responses get longer and emptier, and the reward
    follows with a delay.

    ## What to do
    Lower the learning rate or the entropy bonus, mask responses that were cut at the length
    limit, and go back to before the rise.

    ## When it errs
    Entropy may rise for good reasons when a policy learns to try more; hence the look at the
    reward.

    ## Settings
    ratio: Multiple of the starting level.
    nats: Rise over the starting level, in nats per token.
    rows: Rows it must last.
    error: Multiple of ``nats`` from which it is an error where the reward falls.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_policy.jsonl --rule entropy-explosion --format brief
    error     entropy-explosion    attempt 0  step 558..800  entropy 2.671, expected 0.4529

    ## Sources
    - Rising entropy with a falling score, fine as long as it is below 1: rllm, issue 116; verl,
      issue 2738. The former's user saw 2 nats with a falling score, whence ``error``.
    """
    looked = False
    for raw in signals(run, "entropy"):
        signal = raw.finite()
        if len(signal) < rows + 5 or (signal.values <= 0).any():
            continue
        looked = True
        start = np.concatenate([signal.inherited, signal.values])[:START]
        level = float(np.median(start))
        smooth = centred(signal.values, 5)
        summed = level > 10
        high = (smooth >= ratio * level) & (smooth >= level + 0.3)
        if not summed:
            high |= smooth >= level + nats
        for first, last in lasting(high, rows, gap=5):
            peak = first + int(np.argmax(smooth[first : last + 1]))
            top = float(smooth[peak])
            far = top >= (error * ratio * level if summed else level + error * nats)
            severity: Severity = "error" if far else "warning"
            if not _falls(run, signal.rows[: last + 1]):
                severity = "notice"
            yield finding(
                run,
                metric="entropy",
                rows=(int(signal.rows[first]), int(signal.rows[last])),
                peak=int(signal.rows[peak]),
                severity=severity,
                value=float(signal.values[peak]),
                expected=level,
                score=float(smooth[peak] / (level * ratio)),
            )
    if not looked:
        raise CannotLook(f"fewer than {rows + 5} entropies above 0 in every attempt")


def _falls(run: Run, rows: np.ndarray) -> bool:
    """Say whether a reward falls over the later half of ``rows``, beyond its noise."""
    later = rows[len(rows) // 2 :]
    for metric in ("reward", "val_reward"):
        if not run.has(metric):
            continue
        values = run.array(metric)[later]
        kept = np.flatnonzero(np.isfinite(values))
        if len(kept) < 5:
            continue
        change = slope(kept, values[kept]) * (kept[-1] - kept[0])
        if change < -4.0 * noise(values[kept]) / np.sqrt(len(kept) / 4) and change < 0:
            return True
    return False
