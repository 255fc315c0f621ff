"""Rule ``mfu-impossible``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.rules import STATISTIC, CannotLook, Finding, finding, rule
from stabcli.run import Run


@rule(needs=("mfu",), presets=("default",), since="0.1.0", judges=False)
def mfu_impossible(run: Run, *, most: float = 0.8, share: float = 0.01) -> Iterator[Finding]:
    """MFU that no hardware reaches: the figure is wrong, not the run.

    ## What it finds
    One notice for the run when at least ``share`` of its rows have an MFU above ``most``.
    Negative values are placeholders for "not known yet" and are left out.

    ## Why it matters
    Every figure derived from it is wrong as well: cost, goodput, the comparison with other runs.

    ## What to do
    Check the unit (a percentage read as a fraction), the peak FLOP/s of the GPU that the logger
    assumes, and whether it counts FLOPs of frozen or recomputed layers.

    ## When it errs
    Hardware FLOPs utilisation counts recomputation and may come near it.

    ## Settings
    most: Highest MFU that is believed, as a fraction.
    share: Least share of rows for a notice.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_impossible_mfu.jsonl --rule mfu-impossible --format brief
    notice    mfu-impossible       attempt 0  step 1..400  mfu 1.133, expected 0.8

    ## Sources
    - 80 %: dense matrix products alone reach about that share of the data sheet's peak on current
      GPUs; the best published training runs stay below 70 %.
    """
    values = run.array("mfu")
    known = np.isfinite(values) & (values >= 0)
    if not known.any():
        raise CannotLook("mfu holds placeholders only")
    over = np.flatnonzero(known & (values > most))
    if len(over) < max(1.0, share * known.sum()):
        return
    peak = int(over[np.argmax(values[over])])
    yield finding(
        run,
        metric="mfu",
        rows=(int(over[0]), int(over[-1])),
        peak=peak,
        severity="notice",
        value=float(values[peak]),
        expected=most,
        score=float(values[peak] / most),
        tags=(STATISTIC,),
    )
