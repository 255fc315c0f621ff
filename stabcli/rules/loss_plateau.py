"""Rule ``loss-plateau``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from stabcli.beginnings import warmup_rows
from stabcli.rules import STATISTIC, CannotLook, Finding, finding, rule
from stabcli.run import Run
from stabcli.series import planned_changes, signals, stretches
from stabcli.twofold import evened

PARTS = 20
"""Parts of the run whose levels are compared: 5 % each."""
RISES = 0.01
"""Relative rise from which a level has left its plateau; other rules speak of that."""
LEAST = 8
"""Rows of a part without which its level says nothing."""


@rule(needs=("loss",), presets=("default",), since="0.1.0", judges=False)
def loss_plateau(
    run: Run, *, fall: float = 0.001, half: float = 0.5, sigmas: float = 1.0, parts: int = 3
) -> Iterator[Finding]:
    """Loss no longer falls though most of the run is still to come.

    ## What it finds
    A twentieth of the run, after warm-up and within its first ``half``, whose median loss is not
    ``fall`` times ``parts`` below that of ``parts`` twentieths before, even allowing for ``sigmas``
    standard errors of both, nor 1 % above it: one notice, which joins no incident. Where the rows
    are too noisy to tell, nothing. Where the planned steps are known the run is taken to be that
    long. A change of batch size, number of GPUs or learning rate begins anew.

    ## Why it matters
    What has stopped learning early seldom begins again by itself, and the rest is paid for.

    ## What to do
    Raise the learning rate, look at the data, or end the run; compare with the curve of a run of
    the same recipe.

    ## When it errs
    Fine-tunes reach their level early and are meant to. Losses that fall by less than a
    thousandth in a twentieth of a very long run are no plateau; the notice says only that.

    ## Settings
    fall: Least relative fall from one twentieth of the run to the next.
    half: Share of the run in which a plateau is told.
    sigmas: Standard errors that a fall may hide behind.
    parts: Twentieths between two that are compared.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_broken.jsonl --rule loss-plateau --format brief
    notice    loss-plateau         attempt 0  step 5..200  loss 10.84, expected 10.81

    ## Sources
    - LossNotDecreasing of the SageMaker Debugger has 0.1 % in 10 steps, which no noisy loss keeps
      to; a twentieth of the run in its place is a judgement.
    """
    looked = False
    total = run.fact("total_steps")
    steps = run.frame["step"]
    start = int(steps.min())  # type: ignore[arg-type]
    end = max(int(total or 0), int(steps.max()))  # type: ignore[arg-type]
    for raw in signals(run, "loss"):
        signal = evened(raw.finite())
        warm = warmup_rows(run, signal)
        stop = int(np.searchsorted(signal.steps, start + half * (end - start), side="right"))
        edges = [warm, *[c for c in planned_changes(run, signal) if warm < c < stop], stop]
        for first, last in pairwise(edges):
            part = (signal.steps[first:last] - start) * PARTS // max(1, end - start)
            cuts = np.flatnonzero(np.diff(part)) + 1 + first
            bounds = list(pairwise([first, *cuts.tolist(), last]))
            bounds = [b for b in bounds if b[1] - b[0] >= LEAST]
            if len(bounds) <= parts:
                continue
            looked = True
            levels = [signal.values[a:b] for a, b in bounds]
            least = fall * parts
            flat = [
                _flat(u, v, least, sigmas) for u, v in zip(levels, levels[parts:], strict=False)
            ]
            for a, b in stretches(np.array(flat))[:1]:
                rows = bounds[a][0], bounds[b + parts][1] - 1
                yield finding(
                    run,
                    metric="loss",
                    rows=(int(signal.rows[rows[0]]), int(signal.rows[rows[1]])),
                    severity="notice",
                    value=float(np.median(levels[b + parts])),
                    expected=float(np.median(levels[a])) * (1 - least),
                    score=float(b - a + 1),
                    tags=(STATISTIC,),
                )
    if not looked:
        raise CannotLook(
            f"fewer than {(parts + 1) * LEAST} losses after warm-up in the first half of the run"
        )


def _flat(before: np.ndarray, after: np.ndarray, fall: float, sigmas: float) -> bool:
    """Say whether the level fell by less than it should, beyond what noise could have hidden."""
    gain = float(np.median(before) - np.median(after))
    error = 1.25 * float(np.hypot(_error(before), _error(after)))
    level = abs(float(np.median(before)))
    return -RISES * level < gain and gain + sigmas * error < fall * level


def _error(x: np.ndarray) -> float:
    return float(1.4826 * np.median(np.abs(x - np.median(x))) / np.sqrt(len(x)))
