"""Rule ``masked-data``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from stabcli.levels import SIGMA_PER_MAD, centred, leading, median_error, trailing
from stabcli.rules import CannotLook, Finding, finding, rule
from stabcli.run import Run
from stabcli.series import MINIMUM, WINDOW, Signal, planned_changes, signals

NAMES = re.compile(r"(?i)mask(?:ed)?[ _-](?:instances?|labels?|tokens?|fraction|ratio|rate|share)")
"""What columns on masked data are called: ``train/masked instances (%)`` in OLMo-core."""
PERCENT = re.compile(r"(?i)%|pct|percent")
LEVEL_ROWS = 16
"""Rows whose median tells of a level that the noise of single rows hides."""
LASTS = 3
"""Rows from which it is more than one odd batch."""


@rule(presets=("default",), since="0.1.0")
def masked_data(
    run: Run, *, jump: float = 0.1, sigmas: float = 8.0, most: float = 0.5
) -> Iterator[Finding]:
    """A larger part of the data is masked out of the loss than was before.

    ## What it finds
    The share of instances, labels or tokens left out of the loss lies ``jump`` above the median of
    the 64 rows before, and ``sigmas`` robust standard deviations; or the median of 16 rows does, by
    as many of its standard errors. A notice for one or two rows, a warning from three on or where
    more than ``most`` is masked. A change of batch size or number of GPUs, or a leap of the
    learning rate, begins anew.

    ## Why it matters
    OLMo-core masks what repeats itself: a jump means that documents full of one pattern are being
    read. What is masked still counts as tokens, so that the loss looks lower than it is, and the
    batch teaches less than it costs.

    ## What to do
    Look at the documents of the batches from ``first`` on, by their shard, and at the template
    that makes the labels. `stabcli replay-batch` shows the tokens.

    ## When it errs
    A new stage of the data, such as long prompts with short answers, masks more on purpose.

    ## Settings
    jump: Least rise of the share.
    sigmas: Least rise in robust standard deviations of the rows before.
    most: Share from which one row is a warning.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_masked.jsonl --rule masked-data --format brief
    warning   masked-data          attempt 0  step 500..539  train/masked instances (%) 0.3735, expected 0

    ## Sources
    - Instances in which a sequence of at most 13 tokens repeats 32 times are masked, and logged as
      a share: data/utils.py and the train module of OLMo-core (allenai).
    """
    named = [m for m in run.measurements if NAMES.search(run.word(m))]
    looked = False
    for metric in named:
        scale = _scale(run.word(metric), run.array(metric))
        if scale is None:
            continue
        for raw in signals(run, metric):
            signal = raw.finite()
            edges = [0, *planned_changes(run, signal), len(signal)]
            for start, stop in pairwise(edges):
                x = signal.values[start:stop] / scale
                if len(x) <= MINIMUM:
                    continue
                looked = True
                yield from (
                    _found(run, signal, start, x, span, most, scale)
                    for span in _jumps(x, jump, sigmas)
                )
    if not looked:
        raise CannotLook("the log has no share of masked data")


def _scale(name: str, values: np.ndarray) -> float | None:
    """Return what the values count as one whole: 1, or 100 of percents; None where neither."""
    finite = values[np.isfinite(values)]
    if not len(finite) or finite.min() < 0:
        return None
    if finite.max() <= 1:
        return 1.0
    return 100.0 if finite.max() <= 100 and PERCENT.search(name) else None


Span = tuple[int, int, float, float]
"""First and last index of a stretch, the level before it, and the least rise that counted."""


def _jumps(x: np.ndarray, jump: float, sigmas: float) -> list[Span]:
    """Return where a share lies far above the median of the rows before it, in order.

    By the median of some rows first, of which noise leaves less; then by single rows.
    """
    base = np.full(len(x), np.nan)
    base[1:] = trailing(x, WINDOW, MINIMUM)[:-1]
    away = np.full(len(x), np.nan)
    away[1:] = trailing(np.abs(x - np.nan_to_num(base, nan=x[0])), WINDOW, MINIMUM)[:-1]
    spread = SIGMA_PER_MAD * away
    found: list[Span] = []
    for rows in (LEVEL_ROWS, 1):
        limit = np.maximum(jump, sigmas * spread * (1.0 if rows == 1 else median_error(1.0, rows)))
        ahead, around = (leading(x, rows), centred(x, rows)) if rows > 1 else (x, x)
        behind = 0
        with np.errstate(invalid="ignore"):
            hits = np.flatnonzero(ahead - base >= limit)
        for i in hits.tolist():
            if i < behind:
                continue
            level, least = float(base[i]), float(limit[i])
            first = i + int(np.argmax(x[i : i + rows] >= level + least / 2))
            low = np.flatnonzero(around[first + rows // 2 :] < level + least / 2)
            behind = first + rows // 2 + int(low[0]) if len(low) else len(x)
            behind = max(behind, first + 1)
            if not any(a < behind and first <= b for a, b, _, _ in found):
                found.append((first, behind - 1, level, least))
    return sorted(found)


def _found(
    run: Run, signal: Signal, start: int, x: np.ndarray, span: Span, most: float, scale: float
) -> Finding:
    first, last, level, least = span
    peak = first + int(np.argmax(x[first : last + 1]))
    grave = last - first + 1 >= LASTS or x[peak] >= most
    return finding(
        run,
        metric=signal.metric,
        rows=(int(signal.rows[start + first]), int(signal.rows[start + last])),
        peak=int(signal.rows[start + peak]),
        severity="warning" if grave else "notice",
        value=float(x[peak] * scale),
        expected=level * scale,
        score=(float(x[peak]) - level) / least,
    )
