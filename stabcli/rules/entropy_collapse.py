"""Rule ``entropy-collapse``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.levels import centred, lasting, trailing
from stabcli.rules import CannotLook, Finding, Severity, finding, rule
from stabcli.run import Run
from stabcli.series import Signal, signals

START = 25
"""Rows from which the starting level is taken."""


@rule(needs=("entropy",), presets=("default",), since="0.1.0")
def entropy_collapse(
    run: Run,
    *,
    share: float = 0.3,
    floor: float = 0.05,
    error: float = 0.1,
    saturated: float = 0.9,
    rows: int = 10,
) -> Iterator[Finding]:
    """Entropy of the policy collapses: it stops exploring.

    ## What it finds
    Entropy at or below ``share`` of its starting level, or ``floor`` nats per token, for ``rows``
    rows. The starting level is the highest median of five rows among the first 25, so that a
    collapse within these is seen. A warning; an error where it also falls below ``error`` nats,
    unless the reward has reached ``saturated`` by then, for a policy that solves its task may be
    sure of itself. Losses that log the entropy with a minus are turned round, and sums over the
    tokens of a response, more than 10 nats, are compared with their own start only.

    ## Why it matters
    All rollouts of a prompt become the same, their rewards as well, and nothing is left to learn
    from. While the reward still rises it looks like success.

    ## What to do
    Go back to before the fall. Raise the upper clipping bound, add an entropy or KL term, raise
    the sampling temperature, or lower the learning rate.

    ## When it errs
    A run that starts from a collapsed policy looks steady. A slow decay beside a reward that is
    nearly perfect is often wanted. Entropies of continuous actions, which take both signs, are
    not looked at.

    ## Settings
    share: Share of the starting level.
    floor: Entropy in nats per token that is low for any policy that did not start there.
    error: Entropy in nats per token below which it is an error.
    saturated: Reward from which a low entropy is no error.
    rows: Rows it must last.

    ## Example
    $ stabcli scan sample_logs/jsonl/entropy_collapse.jsonl --rule entropy-collapse --format brief
    warning   entropy-collapse     attempt 0  step 111..400  entropy 0.0169, expected 3.458

    ## Sources
    - "Entropy below 1.0 while the reward rises": the field's rule of thumb, true of most reasoning
      models from their first step; kept as ``seed-entropy-collapse``.
    - Entropies of 0.2 as a target: Skywork-OR1, adopted by TRL. Entropy as the price of reward:
      docs/algo/entropy.md of verl.
    """
    looked = False
    for raw in signals(run, "entropy"):
        signal, summed = _nats(raw.finite())
        if signal is None:
            raise CannotLook("entropy takes both signs: it is that of continuous actions")
        if len(signal) < rows + 5:
            continue
        start = np.concatenate([signal.inherited, signal.values])[:START]
        level = float(np.nanmax(trailing(start, 5)))
        if level <= 0:
            continue
        looked = True
        limit = share * level
        if level >= 2 * floor and not summed:
            limit = max(limit, floor)
        smooth = centred(signal.values, 5)
        for first, last in lasting(smooth <= limit, rows, gap=5):
            peak = first + int(np.argmin(smooth[first : last + 1]))
            low = float(smooth[peak])
            severity: Severity = "warning"
            if not summed and low < error:
                severity = "error"
            tags: tuple[str, ...] = ()
            if _reward(run, signal.rows[first : last + 1]) >= saturated:
                severity, tags = "warning", ("reward-saturated",)
            yield finding(
                run,
                metric="entropy",
                rows=(int(signal.rows[first]), int(signal.rows[last])),
                peak=int(signal.rows[peak]),
                severity=severity,
                value=float(run.array("entropy")[signal.rows[peak]]),
                expected=float(np.copysign(level, raw.values[0])),
                score=limit / max(low, limit / 1e3),
                tags=tags,
            )
    if not looked:
        raise CannotLook(
            f"fewer than {rows + 5} logged entropies, or none above 0, in every attempt"
        )


def _nats(signal: Signal) -> tuple[Signal | None, bool]:
    """Return a signal of entropies above 0, and whether they are sums over tokens."""
    values = signal.values
    if not len(values):
        return signal, False
    sign = 1.0 if np.median(values) >= 0 else -1.0
    if (sign * values < -0.01 * np.abs(values).max()).any():
        return None, False
    turned = Signal(
        metric=signal.metric,
        attempt=signal.attempt,
        rows=signal.rows,
        steps=signal.steps,
        values=sign * values,
        inherited=sign * signal.inherited,
        resumed=signal.resumed,
    )
    return turned, bool(np.median(turned.values[:START]) > 10)


def _reward(run: Run, rows: np.ndarray) -> float:
    """Return the median reward over rows, minus infinity where none was logged."""
    if not run.has("reward"):
        return -np.inf
    values = run.array("reward")[rows]
    values = values[np.isfinite(values)]
    return float(np.median(values)) if len(values) else -np.inf
