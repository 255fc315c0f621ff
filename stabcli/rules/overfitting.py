"""Rule ``overfitting``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.levels import noise
from stabcli.rules import CannotLook, Finding, finding, rule
from stabcli.run import Run
from stabcli.series import signals, slope


@rule(needs=("loss",), presets=("default",), since="0.1.0")
def overfitting(
    run: Run, *, evals: int = 5, rise: float = 0.01, sigmas: float = 4.0
) -> Iterator[Finding]:
    """Training loss falls while validation loss rises.

    ## What it finds
    From the best evaluation on, over at least ``evals`` of them: the validation loss has a rising
    Theil-Sen slope and ends ``rise`` above its best, further than ``sigmas`` standard errors of
    its noise, while the training loss over the same steps falls.

    ## Why it matters
    What is still being learnt is the training set by heart. Every step after the best evaluation
    is spent on making the model worse.

    ## What to do
    Take the checkpoint of the best evaluation. Fewer epochs, more data, or more regularisation.

    ## When it errs
    In supervised fine-tuning the loss on held-out text often rises while answers still get
    better: judge by the task. A validation set that is not of the training distribution may rise
    although nothing is memorised.

    ## Settings
    evals: Least evaluations from the best on.
    rise: Least relative rise of the validation loss over its best.
    sigmas: Least rise in standard errors of the evaluation noise.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_overfit.jsonl --rule overfitting --format brief
    warning   overfitting          attempt 0  step 750..1200  val_loss 2.896, expected 2.548

    ## Sources
    - Validation up while training goes down: the field's rule of thumb.
    - Slopes by Theil and Sen: Sen (1968), Estimates of the regression coefficient based on
      Kendall's tau; five evaluations because fewer show a trend by chance.
    """
    metric = "val_loss" if run.has("val_loss") else "val_perplexity"
    if not run.has(metric):
        raise CannotLook("the log has no val_loss or val_perplexity")
    training = {s.attempt: s.finite() for s in signals(run, "loss")}
    looked = False
    for raw in signals(run, metric):
        signal = raw.finite()
        nats = signal.values
        if metric == "val_perplexity":
            nats = np.log(np.maximum(nats, 1e-300))
        train = training.get(signal.attempt)
        if len(nats) < evals or train is None:
            continue
        looked = True
        best = int(np.argmin(nats))
        after = nats[best:]
        if len(after) < evals or slope(signal.steps[best:], after) <= 0:
            continue
        end = float(np.median(after[-3:]))
        # The lowest of many noisy values lies below the level; its neighbours say by how much.
        level = float(np.median(nats[max(0, best - 1) : best + 2]))
        limit = max(rise * abs(level), sigmas * noise(nats))
        inside = (train.steps >= signal.steps[best]) & (train.steps <= signal.steps[-1])
        if end - level < limit or inside.sum() < 3:
            continue
        if not slope(train.steps[inside], train.values[inside]) < 0:
            continue
        peak = best + int(np.argmax(after))
        yield finding(
            run,
            metric=metric,
            rows=(int(signal.rows[min(best + 1, len(nats) - 1)]), int(signal.rows[-1])),
            peak=int(signal.rows[peak]),
            severity="warning",
            value=float(signal.values[peak]),
            expected=float(signal.values[best]),
            score=(end - level) / limit,
        )
    if not looked:
        raise CannotLook(f"fewer than {evals} evaluations in every attempt")
