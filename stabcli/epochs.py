"""Epochs: where one ends, by the log's own count or by the share of the run that is done."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from stabcli.run import Run
from stabcli.series import Signal
from stabcli.units import Step

NEAR_ROWS = 8
"""Rows within which a change stands at a logged edge."""
SHARES = sorted({Fraction(k, e) for e in range(2, 6) for k in range(1, e)})
"""Shares of a run at which epochs end, where there are two to five of them."""
NEAR = 0.015
"""Share of the run within which a change stands at such an edge."""


def at_edge(run: Run, signal: Signal, at: int) -> bool:
    """Say whether a logged epoch ends within a few rows of index ``at`` of a signal."""
    if not run.has("epoch"):
        return False
    near = slice(max(0, at - NEAR_ROWS), at + NEAR_ROWS)
    epochs = run.array("epoch")[signal.rows[near]]
    epochs = epochs[np.isfinite(epochs)]
    return len(epochs) > 0 and bool(np.floor(epochs[0]) != np.floor(epochs[-1]))


def at_a_share(run: Run, step: Step) -> bool:
    """Say whether a step is a half, a third, a quarter or a fifth of the run, or a multiple."""
    done = step / max(1, int(run.frame["step"].max()))  # type: ignore[arg-type]
    return any(abs(done - float(edge)) < NEAR for edge in SHARES)
