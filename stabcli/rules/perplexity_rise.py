"""Rule ``perplexity-rise``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.levels import lasting, noise
from stabcli.perplexity import nats, no_perplexity
from stabcli.rules import CannotLook, Finding, finding, rule
from stabcli.run import Run


@rule(presets=("default",), since="0.1.0")
def perplexity_rise(
    run: Run, *, rise: float = 0.2, sigmas: float = 4.0, evals: int = 2
) -> Iterator[Finding]:
    """Validation perplexity rises well above its best and stays there.

    ## What it finds
    At least ``evals`` evaluations in a row whose perplexity is ``rise`` or more above the mean of
    the three best so far, and ``sigmas`` standard deviations of the run's own evaluation noise.
    Where the log has a validation loss, and something shows that it is that of a language model,
    its exponential is the perplexity. Evaluations that are NaN or infinite are left to the rule
    ``nonfinite``.

    ## Why it matters
    Held-out data does not care how well the training loss looks: the model has got worse at what
    it is for. It overfits, or it has left the basin it was in, or the held-out set has changed.

    ## What to do
    Take the checkpoint of the best evaluation. If the training loss rose as well, treat it as a
    divergence; if it fell, stop there, or add data.

    ## When it errs
    A change of the evaluation set, or of its size, looks like this. With fewer than five
    evaluations the rule does not look.

    ## Settings
    rise: Relative rise of the perplexity; 0.2 is 0.182 nats per token.
    sigmas: Least rise in standard deviations of the evaluation noise.
    evals: Evaluations in a row that must show it.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_overfit.jsonl --rule perplexity-rise --format brief
    error     perplexity-rise      attempt 0  step 1000..1200  val_loss 2.896, expected 2.55

    ## Sources
    - 20 % over the best: the field's rule of thumb. Over 39 runs with 612 evaluations it was
      silent on 37 and wrong 32 times on the two with noisy evaluations: hence the noise gate.
    - Two in a row: patience in the early stopping of Lightning and of the SageMaker debugger.
    """
    if why := no_perplexity(run):
        raise CannotLook(why)
    looked = False
    for part in nats(run):
        signal, values, start = part.signal, part.values, part.start
        if len(values) < 5:
            continue
        looked = True
        best = best_of_three(values)
        limit = max(float(np.log1p(rise)), sigmas * noise(values))
        above = np.zeros(len(values), bool)
        above[3:] = values[3:] - best[3:] >= limit
        above[:start] = False
        for first, last in lasting(above, evals):
            peak = first + int(np.argmax(values[first : last + 1]))
            level = float(best[first])
            yield finding(
                run,
                metric=part.metric,
                rows=(int(signal.rows[first - start]), int(signal.rows[last - start])),
                peak=int(signal.rows[peak - start]),
                severity="error",
                value=float(signal.values[peak - start]),
                expected=level if part.metric == "val_loss" else float(np.exp(level)),
                score=float((values[peak] - level) / limit),
            )
    if not looked:
        raise CannotLook("fewer than 5 evaluations in every attempt")


def best_of_three(nats: np.ndarray) -> np.ndarray:
    """Return for each evaluation the mean of the three lowest before it; NaN for the first three."""
    best = np.full(len(nats), np.nan)
    lows, rest = [], nats
    for _ in range(3):
        lows.append(np.minimum.accumulate(rest))
        rest = np.maximum(rest[1:], lows[-1][:-1])  # what each value left to the next lowest
    best[3:] = (lows[0][2:-1] + lows[1][1:-1] + lows[2][:-1]) / 3
    return best
