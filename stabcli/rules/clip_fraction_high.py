"""Rule ``clip-fraction-high``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.levels import centred, lasting
from stabcli.rules import CannotLook, Finding, finding, rule
from stabcli.run import Run
from stabcli.series import signals


@rule(needs=("clip_fraction",), presets=("default",), since="0.1.0")
def clip_fraction_high(run: Run, *, most: float = 0.3, rows: int = 10) -> Iterator[Finding]:
    """A large part of the policy update is clipped away.

    ## What it finds
    Share of clipped tokens, as a median of five rows, above ``most`` for ``rows`` rows.

    ## Why it matters
    The updates are larger than the method allows: clipped tokens teach nothing, and the policy
    that made the rollouts is no longer the one that is trained.

    ## What to do
    Fewer updates per batch of rollouts, or a lower learning rate. Check that rollouts and
    training compute the same probabilities.

    ## When it errs
    Methods that clip whole sequences have other shares.

    ## Settings
    most: Highest share that is healthy.
    rows: Rows it must last.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_policy.jsonl --rule clip-fraction-high --format brief
    warning   clip-fraction-high   attempt 0  step 586..800  clip_fraction 0.4363, expected 0.3

    ## Sources
    - Ratios far from 1 as a sign of trouble: ppo_trainer.md of TRL; 0.3 is a judgement.
    """
    looked = False
    for raw in signals(run, "clip_fraction"):
        signal = raw.finite()
        if len(signal) < rows:
            continue
        looked = True
        smooth = centred(signal.values, 5)
        for first, last in lasting(smooth > most, rows, gap=5):
            peak = first + int(np.argmax(smooth[first : last + 1]))
            yield finding(
                run,
                metric="clip_fraction",
                rows=(int(signal.rows[first]), int(signal.rows[last])),
                peak=int(signal.rows[peak]),
                severity="warning",
                value=float(signal.values[peak]),
                expected=most,
                score=float(smooth[peak] / most),
            )
    if not looked:
        raise CannotLook(f"fewer than {rows} logged clip fractions in every attempt")
