"""Rule ``loss-broken``."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from stabcli.levels import median_error, noise
from stabcli.perplexity import language_model
from stabcli.rules import CannotLook, Finding, finding, rule
from stabcli.run import Run
from stabcli.series import MINIMUM, signals

UNSCALED = 1000.0
"""Median gradient norm above which gradients are scaled by a loss scale, or the run is broken."""
LEARNT = 1.5
"""Times its last level at which a loss must begin to have fallen by a third."""
SURE = 4.0
"""Standard errors by which it must have fallen."""
NO_SCALE = ("bf16", "bfloat16", "fp32", "float32", "tf32")
"""Number formats whose losses nobody scales."""


@rule(needs=("loss",), presets=("default",), since="0.1.0")
def loss_broken(
    run: Run,
    *,
    highest: float = 14.0,
    over_uniform: float = 1.2,
    stuck_level: float = 7.0,
    stuck_rows: int = 100,
    descent: float = 0.02,
) -> Iterator[Finding]:
    """Loss was broken from the start, or never left the level of a random guess.

    ## What it finds
    The median loss of the first tenth of the run (at least 8 rows) is above ``over_uniform``
    times the loss of a uniform guess, ln(vocabulary), or above ``highest`` where the vocabulary
    is unknown. Or the loss stays above ``stuck_level`` nats for ``stuck_rows`` rows and more,
    and no eighth of the run lies ``descent`` below its start. Or the median gradient norm is above
    1000 though the run is known to train in bf16 or fp32, where no loss scale can be the reason.

    A loss that falls by a third of its first level or more is not judged by these levels where
    nothing tells that it is in nats per token: no count of tokens, no vocabulary or length of
    sequences, no word of the log, no trainer of language models. Losses of autoencoders,
    detectors and transducers are as high as that, and well.

    ## Why it matters
    Without a healthy stretch there is no baseline, so that no spike rule can speak. All of the
    run is wasted.

    ## What to do
    Look at the initialisation, the checkpoint's format, the labels and the tokenizer; overfit one
    batch before starting again.

    ## When it errs
    Losses that are sums instead of means per token are high by nature: map the mean one. Where a
    language model's log tells nothing of tokens, ``--fact sequence_length=N`` says what it is.

    ## Settings
    highest: Loss in nats above which a start is broken when the vocabulary is unknown.
    over_uniform: Ratio to ln(vocabulary) above which a start is broken.
    stuck_level: Loss in nats above which a flat run is one that learns nothing.
    stuck_rows: Rows that a flat run must have.
    descent: Relative fall below the first quarter of the run that any eighth of it must show.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_broken.jsonl --rule loss-broken --format brief
    error     loss-broken          attempt 0  step 1..400  loss 10.84, expected 10.62

    ## Sources
    - A uniform guess over V tokens costs ln(V) nats: 10.8 for 50,257 tokens.
    """
    signal = signals(run, "loss")[0].finite()
    if len(signal) < MINIMUM:
        raise CannotLook(f"fewer than {MINIMUM} finite losses in the first attempt")
    vocabulary = run.fact("vocab_size")
    limit = over_uniform * math.log(vocabulary) if vocabulary else highest
    start = signal.values[: max(8, len(signal) // 10)]
    middle = float(np.median(start))
    x = signal.values
    quarter = max(8, len(x) // 4)
    early, late = float(np.median(x[:quarter])), float(np.median(x[-quarter:]))
    lowest = min(float(np.median(part)) for part in np.array_split(x, 8))
    expected: float | None = None
    if middle > limit and late > limit / 2:
        expected = limit
    elif len(x) >= stuck_rows and lowest > max(stuck_level, early * (1 - descent)):
        expected = early * (1 - descent)
    unknown = expected is not None and _learnt(x) and not language_model(run)
    if expected is not None and not unknown:
        yield _whole(run, signal.rows, x, expected)
    elif _unscaled(run):
        norms = signals(run, "grad_norm")[0].finite()
        if len(norms) >= MINIMUM and float(np.median(norms.values)) > UNSCALED:
            yield _whole(run, norms.rows, norms.values, UNSCALED, metric="grad_norm")
            return
    if unknown:
        raise CannotLook(
            "the loss is high and falls well, and nothing counts tokens;"
            " if it is a language model's, add --fact sequence_length=N"
        )


def _learnt(x: np.ndarray) -> bool:
    """Say whether a loss has surely fallen by a third of its first level or more."""
    first, last = x[:8], x[-max(8, len(x) // 4) :]
    if float(min(first.min(), last.min())) <= 0:
        return float(np.median(last)) <= float(np.median(first)) / LEARNT
    a, b = np.log(first), np.log(last)
    error = median_error(max(noise(a), noise(b)), len(a), len(b))
    return float(np.median(a) - np.median(b)) >= max(float(np.log(LEARNT)), SURE * error)


def _unscaled(run: Run) -> bool:
    """Say whether gradient norms are logged, and are known to be those of an unscaled loss."""
    known = run.facts.get("precision")
    words = str(known.value).lower().replace("-", "").replace("torch.", "") if known else ""
    plain = any(word in words for word in NO_SCALE)
    return plain and run.has("grad_norm") and not run.has("loss_scale")


def _whole(
    run: Run, rows: np.ndarray, x: np.ndarray, expected: float, *, metric: str = "loss"
) -> Finding:
    return finding(
        run,
        metric=metric,
        rows=(int(rows[0]), int(rows[-1])),
        severity="error",
        value=float(np.median(x)),
        expected=expected,
        score=float(np.median(x)) / expected,
    )
