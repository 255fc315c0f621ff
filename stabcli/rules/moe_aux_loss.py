"""Rule ``moe-aux-loss``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.levels import balanced_aux_loss, centred, lasting
from stabcli.rules import SEVERITIES, CannotLook, Finding, Severity, finding, rule
from stabcli.run import Run
from stabcli.series import signals, warmup_end


@rule(needs=("aux_loss",), presets=("default",), since="0.1.0")
def moe_aux_loss(
    run: Run, *, warning: float = 1.3, error: float = 2.0, rows: int = 20, smooth: int = 9
) -> Iterator[Finding]:
    """Load-balancing loss leaves the value of balanced routing: experts are being starved.

    ## What it finds
    The auxiliary loss divided by its value under balanced routing, as a median of ``smooth``
    rows: at least ``warning`` or ``error`` times that value for ``rows`` rows. The balanced value
    is the coefficient times 1 (Megatron, OLMo) or times the experts per token (transformers);
    of those that of the run's facts that is nearest to its first 200 rows, or the median of those
    rows where nothing is known. During warm-up everything counts one degree less.

    ## Why it matters
    The router sends most tokens to a few experts. The others learn nothing, tokens beyond the
    capacity are dropped, and the GPUs that hold the busy experts set the pace.

    ## What to do
    Go back to before the rise. A router z-loss, a larger coefficient, router weights in fp32, or
    a lower learning rate keep it from coming again. Log the load of each expert per layer.

    ## When it errs
    An average over layers hides one layer that collapsed. Without the coefficient the balanced
    value is guessed from the run's start, and a run that was unbalanced from its first row looks
    balanced: give ``aux_loss_coefficient`` and ``top_k``. Zero throughout means switched off, and
    the rule says that it could not look.

    ## Settings
    warning: Multiple of the balanced value for a warning.
    error: Multiple of the balanced value for an error.
    rows: Rows it must last.
    smooth: Rows whose median is taken.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_router.jsonl --rule moe-aux-loss --format brief
    error     moe-aux-loss         attempt 0  step 915..1200  aux_loss 3.031, expected 1

    ## Sources
    - Balanced values: aux loss of E sum(f P) in Megatron-LM, OLMo-core and the Switch Transformer
      is 1, that of transformers is the experts per token. Collapsed onto k of E experts it is E/k.
    - "aux above 0.1": the field's rule of thumb holds on every healthy Megatron run (1.0) and can
      never hold on most coefficient-scaled ones; kept as ``seed-moe-aux-loss``.
    """
    parts = [s.finite() for s in signals(run, "aux_loss")]
    values = np.concatenate([s.values[s.values > 0] for s in parts])
    if not len(values):
        raise CannotLook("aux_loss is 0 throughout: load balancing by this loss is switched off")
    if len(values) < rows:
        raise CannotLook(f"fewer than {rows} logged values of aux_loss")
    early = float(np.median(values[:200]))
    balanced, _ = balanced_aux_loss(early, run.fact("aux_loss_coefficient"), run.fact("top_k"))
    for part in parts:
        keep = part.values > 0
        at, share = part.rows[keep], part.values[keep] / balanced
        if len(share) < rows:
            continue
        level = centred(share, smooth)
        warm = part.steps[keep] <= warmup_end(run, part.attempt)
        for first, last in lasting(level >= warning, rows, gap=smooth):
            peak = first + int(np.argmax(share[first : last + 1]))
            grave = lasting(level[first : last + 1] >= error, rows)
            severity: Severity = "error" if grave else "warning"
            if warm[last]:
                severity = SEVERITIES[SEVERITIES.index(severity) - 1]
            yield finding(
                run,
                metric="aux_loss",
                rows=(int(at[first]), int(at[last])),
                peak=int(at[peak]),
                severity=severity,
                value=float(share[peak] * balanced),
                expected=balanced,
                score=float(np.max(level[first : last + 1]) / warning),
                tags=("warm-up",) if warm[last] else (),
            )
