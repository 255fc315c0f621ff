"""Rule ``loss-rescaled``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from stabcli.epochs import at_edge
from stabcli.levels import leading, median_error, noise, trailing
from stabcli.rules import BACK, RESCALED, CannotLook, Finding, finding, rule
from stabcli.run import Run
from stabcli.series import Signal, signals

WIDE = 128
"""Rows on either side by whose noise and course the two are compared."""
LEAST_RATIO = 1.9
"""Least ratio that is looked at: two, less what the trend may take."""
EXACT = 0.02
"""Relative distance from a whole number within which a ratio is one, where that is sure."""
SURE = 4.0
"""Standard errors within which two figures are the same."""
LEAST_BACK = 256
"""Rows after which a level that goes back to what it was may have been another way to report it."""
KNOWN = 0.05
"""Relative error, of as many standard errors, up to which a ratio can be called whole."""
NOISE_ALIKE = 1.6
"""Ratio up to which the relative noise of both sides is the same."""
COURSE = 0.1
"""Relative distance up to which the course of both sides is the same."""
NORM = 0.15
"""Relative distance up to which the gradient norm has not moved."""


@rule(needs=("loss",), presets=("default",), since="0.1.0", judges=False)
def loss_rescaled(run: Run, *, rows: int = 32) -> Iterator[Finding]:
    """Loss is a whole multiple, or part, of what it was from one row on: it is counted otherwise.

    ## What it finds
    A row from which the loss is a whole number of times higher, or lower, than before (within 2 %,
    or four standard errors), all at once, with the relative noise and the course it had, and goes
    on like that, for 256 rows at least if it ever goes back: a loss that is summed over accumulation steps or processes where it was averaged,
    or the other way round. Left out are losses so noisy that four standard errors are more than
    5 %, of which any ratio may be whole, and falls where a logged epoch begins. A warning where the gradient norm has not moved, and then what other
    rules say of the loss at that row is a notice; a notice where no gradient norm was logged.

    ## Why it matters
    It looks like a divergence, and rolling back would throw away good steps. But it is not proven:
    who does not know what changed must find out.

    ## What to do
    Compare the code and configuration of logging before and behind that row: accumulation steps,
    number of processes, sum or mean. Roll back only if none of that changed.

    ## When it errs
    Data whose loss happens to be twice as high, with twice the noise, looks the same.

    ## Settings
    rows: Rows on either side whose levels are compared.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_rescaled.jsonl --rule loss-rescaled --format brief
    warning   loss-rescaled        attempt 0  step 301..600  loss 21.45, expected 2.663

    ## Sources
    - A mean has the relative noise and slope of its sum: they differ by a factor only.
    """
    looked = False
    rows = max(8, rows)
    for raw in signals(run, "loss"):
        signal = raw.finite()
        signal = signal.at(signal.values > 0)
        joined = np.concatenate([signal.inherited, signal.values])
        if len(joined) < 2 * rows or len(signal) < rows or not (joined > 0).all():
            continue
        looked = True
        x, own = np.log(joined), len(signal.inherited)
        edges = [at for at in _leaps(x, rows) if at >= max(own, rows)]
        spans = [(at, end) for at, end in pairwise([*edges, len(x)]) if end - at >= rows]
        sizes = {at: _size(x, at, end, rows) for at, end in spans}
        over: int | None = None
        for at, behind in spans:
            size, again = sizes[at], sizes.get(behind)
            if size is None or (size < 0 and at_edge(run, signal, at - own)):
                continue
            norm = _norm_moved(run, signal, at - own, rows)
            if norm or at == over:
                continue
            # The leap back to what it was is the end of the first, and no other one.
            back = again is not None and abs(again + size) <= 2 * KNOWN
            over = behind if back else None
            if behind - at < LEAST_BACK and _goes_back(x, at, behind, size, rows):
                over = behind
                continue
            first, last = signal.rows[at - own], signal.rows[behind - own - 1]
            level = float(np.exp(np.median(x[at - rows : at])))
            tags = [RESCALED, *([] if norm is None else ["norm-unmoved"]), *([BACK] * back)]
            yield finding(
                run,
                metric="loss",
                rows=(int(first), int(last)),
                peak=int(first),
                severity="notice" if norm is None else "warning",
                value=level * float(np.exp(size)),
                expected=level,
                tags=tuple(tags),
            )
    if not looked:
        raise CannotLook(f"fewer than {2 * rows} positive losses in every attempt")


def _goes_back(x: np.ndarray, at: int, behind: int, size: float, rows: int) -> bool:
    """Say whether a level ends by going back to about what it was before."""
    if behind == len(x):
        return False
    before, after = np.median(x[at - rows : at]), np.median(x[behind : behind + rows])
    return bool(abs(after - before) <= abs(size) / 2)


def _leaps(x: np.ndarray, rows: int) -> list[int]:
    """Return where the level of a log loss leaps to another within a row."""
    step = np.zeros(len(x))
    step[1:] = leading(x, rows)[1:] - trailing(x, rows)[:-1]
    leapt = np.zeros(len(x))
    leapt[1:] = np.diff(x)
    with np.errstate(invalid="ignore"):
        high = np.abs(step) >= np.log(LEAST_RATIO)
        # From one row to the next, too, and not much further than the level.
        high &= (leapt * np.sign(step) >= np.abs(step) / 2) & (np.abs(leapt) <= 2 * np.abs(step))
    found: list[int] = []
    for at in np.flatnonzero(high).tolist():
        if not found or at - found[-1] >= rows:
            found.append(at)
        elif abs(step[at]) > abs(step[found[-1]]):
            found[-1] = at
    return found


def _size(x: np.ndarray, at: int, behind: int, rows: int) -> float | None:
    """Return the log of the factor by which a log loss leaps; None where it is not only a factor."""
    before, after = x[max(0, at - WIDE) : at], x[at : min(behind, at + WIDE)]
    quiet, loud = sorted([float(noise(before)), float(noise(after))])
    if quiet < 1e-6 or loud > NOISE_ALIKE * quiet:
        return None
    error = max(median_error(quiet, rows, rows), 1e-9)
    if error * SURE > KNOWN:
        return None
    falls = [float(np.median(part[-rows:]) - np.median(part[:rows])) for part in (before, after)]
    spans = [max(1, len(part) - rows) for part in (before, after)]
    course = [fall / span for fall, span in zip(falls, spans, strict=True)]
    reach = min(spans)
    if abs(course[1] - course[0]) * reach > max(COURSE, SURE * error):
        return None
    size = float(np.median(after[:rows]) - np.median(before[-rows:])) - rows * sum(course) / 2
    at_once = float(after[0] - np.median(before[-4:]))
    if abs(at_once - size) > SURE * 2 * loud + COURSE / 2:
        return None
    whole = float(np.log(max(1.0, round(float(np.exp(abs(size)))))))
    if whole < np.log(LEAST_RATIO) or abs(abs(size) - whole) > max(EXACT, SURE * error):
        return None
    levels = trailing(x[at:behind], rows)[rows - 1 :]
    return None if float(np.max(levels) - levels[0]) > max(COURSE, SURE * error) else size


def _norm_moved(run: Run, loss: Signal, at: int, rows: int) -> bool | None:
    """Say whether the gradient norm moved where the loss leapt; None where too few were logged."""
    parts = signals(run, "grad_norm") if run.has("grad_norm") else []
    norm = next((s for s in parts if s.attempt == loss.attempt), None)
    if norm is None:
        return None
    i = int(np.searchsorted(norm.steps, loss.steps[at]))
    before = np.concatenate([norm.inherited, norm.values[:i]])[-rows:]
    after = norm.values[i : i + rows]
    if not np.isfinite(after).all():
        return True
    before = before[np.isfinite(before)]
    if min(len(before), len(after)) < 8 or min(before.min(), after.min()) <= 0:
        return None
    a, b = np.log(before), np.log(after)
    error = median_error(max(noise(a), noise(b)), len(a), len(b))
    moved = abs(float(np.median(b) - np.median(a))) > max(NORM, SURE * error)
    highest = float(np.max(b[:4]) - np.median(a))
    return moved or highest > max(np.log(3.0), 8 * noise(a))
