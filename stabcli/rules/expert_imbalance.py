"""Rule ``expert-imbalance``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.levels import centred, lasting
from stabcli.rules import SEVERITIES, CannotLook, Finding, Severity, finding, rule
from stabcli.run import Run
from stabcli.series import signals, warmup_end


@rule(needs=("expert_load_ratio",), presets=("default",), since="0.1.0")
def expert_imbalance(
    run: Run, *, ratio: float = 4.0, share: float = 0.85, rows: int = 10, smooth: int = 5
) -> Iterator[Finding]:
    """One expert gets several times its share of the tokens.

    ## What it finds
    Load of the busiest expert over the mean load, as a median of ``smooth`` rows, of at least
    ``ratio`` for ``rows`` rows: a warning. An error where the number of experts is known and one
    of them gets ``share`` of all tokens. During warm-up, when routers have yet to find their
    balance, everything counts one degree less.

    ## Why it matters
    The layer is as slow as its busiest expert; tokens beyond its capacity are dropped or cost
    memory, and experts without tokens are parameters that were paid for and learn nothing.

    ## What to do
    See ``moe-aux-loss``. Check whether it is one layer or all, and one source of data or all.

    ## When it errs
    With very many small experts, or few tokens a batch, a ratio of 4 is normal: raise ``ratio``.

    ## Settings
    ratio: Load of the busiest expert over the mean.
    share: Share of all tokens that one expert gets, for an error.
    rows: Rows it must last.
    smooth: Rows whose median is taken.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_router.jsonl --rule expert-imbalance --format brief
    warning   expert-imbalance     attempt 0  step 954..1200  expert_load_ratio 6.384, expected 1

    ## Sources
    - Busiest expert over mean, 1 being fair: load logging of NeMo Automodel, issue 1232.
    - 85 % of the tokens on one expert, three times: the MoE detector of trainscope 1.8.1.
    """
    experts = run.fact("experts")
    looked = False
    for raw in signals(run, "expert_load_ratio"):
        signal = raw.finite()
        if len(signal) < rows:
            continue
        looked = True
        level = centred(signal.values, smooth)
        warm = warmup_end(run, signal.attempt)
        for first, last in lasting(level >= ratio, rows, gap=smooth):
            peak = first + int(np.argmax(signal.values[first : last + 1]))
            severity: Severity = "warning"
            if experts and lasting(level[first : last + 1] >= share * experts, 3):
                severity = "error"
            early = signal.steps[last] <= warm
            yield finding(
                run,
                metric="expert_load_ratio",
                rows=(int(signal.rows[first]), int(signal.rows[last])),
                peak=int(signal.rows[peak]),
                severity=SEVERITIES[SEVERITIES.index(severity) - 1] if early else severity,
                value=float(signal.values[peak]),
                expected=1.0,
                score=float(np.max(level[first : last + 1]) / ratio),
                tags=("warm-up",) if early else (),
            )
    if not looked:
        raise CannotLook(f"fewer than {rows} logged load ratios in every attempt")
