"""Rule ``mfu-low``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from stabcli.levels import falls, trailing
from stabcli.metrics import is_rl
from stabcli.rules import STATISTIC, CannotLook, Finding, finding, rule
from stabcli.run import Run
from stabcli.series import planned_changes, signals

BILLION = 1e9
"""Parameters from which a dense model can be expected to fill the GPUs."""
LONG = 32768
"""Tokens of a sequence from which attention, which most FLOP counts leave out, dominates."""
EARLY = 100
"""Steps of an attempt in which its speed is no habit yet."""
WINDOW = 50
"""Rows whose median is low for good."""


@rule(needs=("mfu",), presets=("default",), since="0.1.0")
def mfu_low(
    run: Run, *, low: float = 0.25, drop: float = 0.15, rows: int = 20, startup: int = 10
) -> Iterator[Finding]:
    """MFU is low as a whole, or falls well below the run's own best.

    ## What it finds
    A fall of the median MFU by ``drop`` or more from the run's own best level, for at least
    ``rows`` rows and six times further than such medians wander in this run: a warning. And one
    notice for the run when the median of its rows is below ``low``, which belongs to no event. That
    one is a warning where the run is known to be the pretraining of a dense model of a billion
    parameters or more, in 16 bits, on sequences of less than 32,768 tokens, and the median of 50
    rows lies below ``low`` later than in the first 100 steps of an attempt.

    ## Why it matters
    Below a quarter of the peak, most of the GPU time that is paid for waits: for data, for the
    network, for memory. What the run once reached it could reach again.

    ## What to do
    Profile a few steps. Check the data loader first, then the parallelism, then the peak that the
    logger divides by: fp8 peaks and sparsity double it.

    ## When it errs
    Small models, mixtures of experts, adapters, long sequences and reinforcement learning lie
    below 25 % when all is well: the whole-run statement is a notice for that reason, and also
    where the size of the model is unknown. Of 14 public runs that log an MFU 8 lie below 25 %:
    debug runs, small models and a consumer card, and none says how many parameters it has.

    ## Settings
    low: MFU below which the run as a whole is told.
    drop: Least relative fall from the run's best level.
    rows: Rows a fall must last.
    startup: Rows at the start of each attempt that are left out, where there are many.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_mfu.jsonl --rule mfu-low --format brief
    warning   mfu-low              attempt 0  step 600..1000  mfu 0.2398, expected 0.4114

    ## Sources
    - 25 %: the field's rule of thumb. Of 209 tuned bf16 rows of llm-foundry's benchmarks none lies
      below, of 7 fp8 rows 4 do.
    """
    finite = 0
    usable: list[np.ndarray] = []
    for raw in signals(run, "mfu", history=200):
        signal = raw.finite()
        skip = min(startup, len(signal) // 4)
        keep = np.flatnonzero((signal.values > 0) & (np.arange(len(signal)) >= skip))
        usable.append(signal.rows[keep])
        finite += len(keep)
        cuts = [0, *planned_changes(run, signal), len(signal)]
        for start, stop in pairwise(cuts):
            part = keep[slice(*np.searchsorted(keep, (start, stop)))]
            before = signal.inherited[signal.inherited > 0] if start == 0 else np.empty(0)
            for f in falls(
                np.log(signal.values[part]),
                history=np.log(before),
                depth=-float(np.log1p(-drop)),
                rows=rows,
                before=50,
                best=True,
            ):
                inside = part[f.first : f.last + 1]
                yield finding(
                    run,
                    metric="mfu",
                    rows=(int(signal.rows[inside[0]]), int(signal.rows[inside[-1]])),
                    severity="warning",
                    value=float(np.exp(f.level - f.depth)),
                    expected=float(np.exp(f.level)),
                    score=f.depth / -float(np.log1p(-drop)),
                )
    if finite < 3:
        raise CannotLook("fewer than 3 rows with an MFU after the start of each attempt")
    rows_kept = np.concatenate(usable)
    values = run.array("mfu")[rows_kept]
    middle = float(np.median(values))
    if middle < low:
        late = _late(run, low) if _dense(run) else False
        yield finding(
            run,
            metric="mfu",
            rows=(int(rows_kept[0]), int(rows_kept[-1])),
            peak=int(rows_kept[np.argmin(np.abs(values - middle))]),
            severity="warning" if late else "notice",
            value=middle,
            expected=low,
            score=low / middle,
            tags=(STATISTIC,),
        )


def _dense(run: Run) -> bool:
    """Say whether a run is known to be a dense pretraining that a quarter of the peak is low for."""
    parameters = run.fact("parameters")
    length = run.fact("sequence_length")
    precision = run.facts.get("precision")
    algorithm = run.facts.get("algorithm")
    moe = run.fact("active_parameters") or (run.fact("experts") or 1) > 1 or run.has("aux_loss")
    return (
        parameters is not None
        and parameters >= BILLION
        and not moe
        and (length is None or length < LONG)
        and (precision is None or "16" in str(precision.value))
        and (algorithm is None or "pretrain" in str(algorithm.value).lower())
        and not {"lora_rank", "base_model"} & set(run.facts)
        and not is_rl(run.measurements)
    )


def _late(run: Run, low: float) -> bool:
    """Say whether the median of some rows is low later than at the start of an attempt."""
    for raw in signals(run, "mfu"):
        signal = raw.finite()
        if not len(signal):
            continue
        kept = (signal.values > 0) & (signal.steps >= signal.steps[0] + EARLY)
        if (trailing(signal.values[kept], WINDOW) < low).any():
            return True
    return False
