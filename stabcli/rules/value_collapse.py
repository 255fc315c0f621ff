"""Rule ``value-collapse``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.levels import centred, lasting
from stabcli.metrics import normalise
from stabcli.rules import CannotLook, Finding, finding, rule
from stabcli.run import Run
from stabcli.series import signals

NAMES = ("vf_explained_var", "explained_variance", "value_explained_variance")
"""Last word of the column that says how much of the returns the critic explains."""
START = 10
"""Rows at the start in which no critic explains anything."""


@rule(presets=("default",), since="0.1.0")
def value_collapse(run: Run, *, limit: float = 0.0, rows: int = 20) -> Iterator[Finding]:
    """The critic explains less of the returns than their mean would.

    ## What it finds
    In a column named like ``vf_explained_var``, ``rows`` or more rows in a row whose median of
    five is below ``limit``, after the first ten rows of the run: a warning.

    ## Why it matters
    Advantages are returns less what the critic expects. A critic that is worse than a constant
    adds noise to every update, and the policy follows it.

    ## What to do
    Train the critic first, lower its learning rate or raise its share of the loss, and look at
    how rewards are scaled.

    ## When it errs
    At the start of a run no critic explains anything yet; rewards that hardly vary leave nothing
    to explain.

    ## Settings
    limit: Explained variance below which the critic is worse than a constant.
    rows: Rows in a row.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_rollout.jsonl --rule value-collapse --format brief
    warning   value-collapse       attempt 0  step 136..200  critic/vf_explained_var -0.5627, expected 0

    ## Sources
    - Explained variance below 0 is worse than predicting nothing: the usual reading of
      ``critic/vf_explained_var`` (verl) and ``explained_variance`` (Stable Baselines); 20 rows
      are a judgement.
    """
    names = [m for m in run.measurements if run.has(m) and normalise(m).rpartition("/")[2] in NAMES]
    if not names:
        raise CannotLook(f"the log has no {NAMES[0]}")
    looked = False
    for name in names:
        for raw in signals(run, name):
            signal = raw.finite()
            if len(signal) < START + rows:
                continue
            looked = True
            low = centred(signal.values, 5) < limit
            low[: 0 if signal.resumed else START] = False
            for first, last in lasting(low, rows, gap=5):
                inside = signal.values[first : last + 1]
                peak = first + int(np.argmin(inside))
                yield finding(
                    run,
                    metric=name,
                    rows=(int(signal.rows[first]), int(signal.rows[last])),
                    peak=int(signal.rows[peak]),
                    severity="warning",
                    value=float(signal.values[peak]),
                    expected=limit,
                    score=(last - first + 1) / rows,
                )
    if not looked:
        raise CannotLook(f"fewer than {START + rows} rows with {names[0]} in every attempt")
