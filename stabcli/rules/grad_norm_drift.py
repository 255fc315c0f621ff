"""Rule ``grad-norm-drift``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.levels import centred, leading, trailing, turn
from stabcli.rules import STATISTIC, CannotLook, Finding, Severity, finding, rule
from stabcli.run import Run
from stabcli.series import signals, warmup_end

LOWEST = 1.1
"""Multiple of the lowest level of a run, up to which a norm has not begun to climb."""
SUDDEN = 0.7
"""Share of a climb (in logarithms) that is a leap where a few rows bring it."""


@rule(needs=("grad_norm",), presets=("default",), since="0.1.0", judges=False)
def grad_norm_drift(
    run: Run, *, ratio: float = 3.0, rows: int = 500, rising: float = 1.2
) -> Iterator[Finding]:
    """Gradient norm grows slowly to a multiple of what it was.

    ## What it finds
    The median gradient norm of the last tenth of a run of ``rows`` rows and more is ``ratio``
    times that of its third tenth, and has grown by ``rising`` over its second half as well: a
    warning; a notice where the loss has fallen below half of what it was meanwhile, as it does
    when a model learns its training set by heart. It begins where the norm last lay at its lowest,
    and where most of it came at once, with that leap.

    ## Why it matters
    Weights or logits that grow make gradients grow long before anything leaps. Such runs end in
    spikes that come ever more often.

    ## What to do
    Look at weight norms and attention logits; add weight decay where there is none (embeddings),
    QK-norm or z-loss.

    ## When it errs
    Fine-tunes over several epochs and runs whose batch size falls have growing norms by nature.

    ## Settings
    ratio: Multiple of the early norm.
    rows: Rows without which no drift is looked for.
    rising: Growth over the second half of the run.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_clipping.jsonl --rule grad-norm-drift --format brief
    warning   grad-norm-drift      attempt 0  step 885..2000  grad_norm 2.889, expected 0.3553

    ## Sources
    - Gradient norms that grew over weeks before the run had to be given up: chronicles of
      tr8-104B (bigscience-workshop).
    """
    looked = False
    for raw in signals(run, "grad_norm"):
        signal = raw.finite()
        kept = signal.at((signal.values > 0) & (signal.steps > warmup_end(run, signal.attempt)))
        n = len(kept)
        if n < rows:
            continue
        looked = True
        tenth = n // 10
        x = kept.values
        early = float(np.median(x[2 * tenth : 3 * tenth]))
        middle = float(np.median(x[n // 2 - tenth // 2 : n // 2 + tenth // 2]))
        late = float(np.median(x[-tenth:]))
        if late < ratio * early or late < rising * middle:
            continue
        # The climb begins where the norm last lay at its lowest; it may have begun higher still.
        level = centred(x, tenth)
        low = LOWEST * float(level.min())
        begun = int(np.flatnonzero(level <= low)[-1])
        # The wide level rises before the norm does, by the rows ahead that it holds.
        ahead = centred(x[begun : begun + tenth], tenth // 8)
        begun += int(np.flatnonzero(ahead <= low)[-1]) if (ahead <= low).any() else 0
        leapt = _leap(np.log(x), max(16, tenth // 16), SUDDEN * float(np.log(late / level.min())))
        begun = begun if leapt is None else leapt
        severity: Severity = "notice" if _learnt_by_heart(run) else "warning"
        yield finding(
            run,
            metric="grad_norm",
            rows=(int(kept.rows[begun]), int(kept.rows[-1])),
            severity=severity,
            value=late,
            expected=early,
            score=late / early / ratio,
            tags=(STATISTIC, "gradual-onset") if leapt is None else (STATISTIC, "instant"),
        )
    if not looked:
        raise CannotLook(f"fewer than {rows} gradient norms after warm-up in every attempt")


def _leap(x: np.ndarray, rows: int, least: float) -> int | None:
    """Return where the level of ``rows`` values leaps by at least ``least`` to that of the next."""
    before, after = trailing(x, rows)[:-1], leading(x, rows)[1:]
    rise = np.nan_to_num(after - before, nan=-np.inf)
    at = int(np.argmax(rise)) + 1
    if rise[at - 1] < least:
        return None
    half = float(rise[at - 1]) / 2
    start = max(0, at - rows)
    return start + turn(x[start : at + rows], float(before[at - 1]) + half, half)


def _learnt_by_heart(run: Run) -> bool:
    """Say whether the loss fell to half between the third tenth and the end."""
    if not run.has("loss"):
        return False
    x = run.array("loss")
    x = x[np.isfinite(x)]
    tenth = max(1, len(x) // 10)
    return float(np.median(x[-tenth:])) < 0.5 * float(np.median(x[2 * tenth : 3 * tenth]))
