"""Rule ``clip-fraction-high``."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from stabcli.levels import centred, lasting
from stabcli.metrics import normalise
from stabcli.rules import CannotLook, Finding, finding, rule
from stabcli.run import Run
from stabcli.series import signals

RATIO = re.compile(r"(?:^|/)(?:val/ratio|(?:importance_)?ratio[_/]mean)$")
"""What the mean of the policy's ratios is called: ``val/ratio`` in TRL."""


@rule(presets=("default",), since="0.1.0")
def clip_fraction_high(
    run: Run, *, most: float = 0.3, rows: int = 10, low: float = 0.1, high: float = 2.0
) -> Iterator[Finding]:
    """A large part of the policy update is clipped away.

    ## What it finds
    Share of clipped tokens, as a median of five rows, above ``most`` for ``rows`` rows: a warning. And
    the mean ratio of the new policy's probabilities to the old one's, where it is logged, below
    ``low`` or above ``high`` for as long: an error.

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
    low: Lowest mean ratio that is healthy.
    high: Highest mean ratio that is healthy.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_policy.jsonl --rule clip-fraction-high --format brief
    warning   clip-fraction-high   attempt 0  step 586..800  clip_fraction 0.4363, expected 0.3

    ## Sources
    - The mean ratio should float around 1; 2 or 0.1 is too large or too small an update:
      ppo_trainer.md of TRL. 0.3 of the tokens is a judgement.
    """
    looked = False
    for metric in (m for m in run.measurements if RATIO.search(normalise(m))):
        for raw in signals(run, metric):
            signal = raw.finite()
            if len(signal) < rows:
                continue
            looked = True
            smooth = centred(signal.values, 5)
            for first, last in lasting((smooth < low) | (smooth > high), rows, gap=5):
                away = np.abs(np.log(np.maximum(signal.values[first : last + 1], 1e-9)))
                peak = first + int(np.argmax(away))
                limit = high if smooth[first] > 1 else low
                yield finding(
                    run,
                    metric=metric,
                    rows=(int(signal.rows[first]), int(signal.rows[last])),
                    peak=int(signal.rows[peak]),
                    severity="error",
                    value=float(signal.values[peak]),
                    expected=1.0,
                    score=float(away.max() / abs(np.log(limit))),
                )
    for raw in signals(run, "clip_fraction") if run.has("clip_fraction") else []:
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
        has = run.has("clip_fraction")
        few = f"fewer than {rows} logged clip fractions in every attempt"
        raise CannotLook(few if has else "the log has no clip_fraction")
