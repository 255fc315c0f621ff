"""Rule ``expert-imbalance``."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from stabcli.levels import centred, lasting
from stabcli.metrics import normalise
from stabcli.rules import SEVERITIES, CannotLook, Finding, Severity, finding, rule
from stabcli.run import Run
from stabcli.series import Signal, signals, warmup_end

LAYER = re.compile(r"[/._].*(?:load_imbalance|max_over_mean(?:_load)?|expert_load_ratio)$")
"""What the load ratio of a layer of its own is called: ``moe/layer_3/load_imbalance``."""
DEAD = re.compile(r"(?:dead|unused|inactive)_experts?(?:_(?:share|fraction|ratio|count))?$")
"""What the share, or number, of experts that get no token is called."""


@rule(presets=("default",), since="0.1.0")
def expert_imbalance(
    run: Run,
    *,
    ratio: float = 4.0,
    share: float = 0.85,
    rows: int = 10,
    smooth: int = 5,
    dead: float = 0.1,
) -> Iterator[Finding]:
    """One expert gets several times its share of the tokens.

    ## What it finds
    Load of the busiest expert over the mean load, as a median of ``smooth`` rows, of at least
    ``ratio`` for ``rows`` rows: a warning. An error where the number of experts is known and one
    of them gets ``share`` of all tokens. Layers that are logged on their own are looked at one by
    one. A share of experts without tokens that lies ``dead`` above its lowest level so far, for as
    long: a warning. During warm-up, when routers have yet to find their balance, everything counts
    one degree less.

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
    dead: Rise of the share of experts without tokens.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_router.jsonl --rule expert-imbalance --format brief
    warning   expert-imbalance     attempt 0  step 954..1200  expert_load_ratio 6.384, expected 1

    ## Sources
    - Busiest expert over mean, 1 being fair: load logging of NeMo Automodel, issue 1232.
    - 85 % of the tokens on one expert, three times: the MoE detector of trainscope 1.8.1.
    """
    experts = run.fact("experts")
    looked = False
    for metric in run.measurements:
        name = normalise(metric)
        gone = bool(DEAD.search(name))
        if metric != "expert_load_ratio" and not gone and not LAYER.search(name):
            continue
        for raw in signals(run, metric) if run.has(metric) else []:
            signal = raw.finite()
            most = float(signal.values.max()) if len(signal) else 0.0
            unit = 1.0 if not gone or most <= 1 else experts
            if len(signal) < rows or not unit:
                continue
            looked = True
            level = centred(signal.values, smooth) / unit
            lowest = np.minimum.accumulate(level) if gone else np.zeros(len(level))
            limit = dead if gone else ratio
            for first, last in lasting(level - lowest >= limit, rows, gap=smooth):
                severity: Severity = "warning"
                part = level[first : last + 1]
                if not gone and experts and lasting(part >= share * experts, 3):
                    severity = "error"
                yield _found(
                    run,
                    signal,
                    (first, last),
                    severity,
                    unit * float(lowest[first]) if gone else 1.0,
                    float((part - lowest[first : last + 1]).max() / limit),
                )
    if not looked:
        few = f"fewer than {rows} logged load ratios in every attempt"
        raise CannotLook(
            few if run.has("expert_load_ratio") else "the log has no expert_load_ratio"
        )


def _found(
    run: Run,
    signal: Signal,
    span: tuple[int, int],
    severity: Severity,
    expected: float,
    score: float,
) -> Finding:
    first, last = span
    peak = first + int(np.argmax(signal.values[first : last + 1]))
    early = signal.steps[last] <= warmup_end(run, signal.attempt)
    return finding(
        run,
        metric=signal.metric,
        rows=(int(signal.rows[first]), int(signal.rows[last])),
        peak=int(signal.rows[peak]),
        severity=SEVERITIES[SEVERITIES.index(severity) - 1] if early else severity,
        value=float(signal.values[peak]),
        expected=expected,
        score=score,
        tags=("warm-up",) if early else (),
    )
