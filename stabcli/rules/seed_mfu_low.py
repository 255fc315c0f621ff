"""Rule ``seed-mfu-low``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.rules import CannotLook, Finding, finding, rule
from stabcli.run import Run
from stabcli.series import signals, stretches


@rule(needs=("mfu",), presets=("seed",), since="0.1.0")
def seed_mfu_low(run: Run, *, threshold: float = 0.25, join: int = 10) -> Iterator[Finding]:
    """Model FLOP/s utilisation is below 25 %.

    ## What it finds
    Rows whose MFU is below ``threshold``.

    ## Why it matters
    The GPUs wait: for data, or for one another.

    ## What to do
    Profile a few steps: time spent in the data loader means I/O, time in collectives means
    communication. Check the peak FLOP/s that the MFU was computed with.

    ## When it errs
    The limit suits dense models in bf16: of 209 tuned configurations none lay below it. With
    fp8, whose peak is twice as high, 4 of 7 did, and mixtures of experts, small models, LoRA,
    very long sequences and reinforcement learning usually do. The first rows of a run, which
    compile and fill caches, are always low. ``mfu-low`` of the default preset takes a median
    over time, and compares with the run's own best.

    ## Settings
    threshold: MFU, as a fraction, below which a row fires.
    join: Rows between two that fire which still belong to one finding.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_mfu.jsonl --rule seed-mfu-low --format brief
    warning   seed-mfu-low         attempt 0  step 600..1000  mfu 0.2297, expected 0.25

    ## Sources
    - Below 25 % is an I/O or communication bottleneck: the field's rule of thumb.
    - How often it errs: the benchmark tables of llm-foundry.
    """
    looked = False
    for raw in signals(run, "mfu"):
        signal = raw.finite()
        if not signal.values.any():
            continue  # 0 throughout is what a trainer writes that does not know the peak
        looked = True
        for first, last in stretches(signal.values < threshold, gap=join):
            peak = first + int(np.argmin(signal.values[first : last + 1]))
            value = float(signal.values[peak])
            yield finding(
                run,
                metric="mfu",
                rows=(int(signal.rows[first]), int(signal.rows[last])),
                peak=int(signal.rows[peak]),
                severity="warning",
                value=value,
                expected=threshold,
                score=threshold / value if value > 0 else float("inf"),
            )
    if not looked:
        raise CannotLook("mfu is 0 or not finite in every row: it was not measured")
