"""Progress: how many tokens a run had trained by each of its rows, restarts left out."""

from __future__ import annotations

import numpy as np

from stabcli.ledger import Ledger
from stabcli.run import Run
from stabcli.tails import Kept


def tokens_reached(run: Run, book: Ledger, series: Kept) -> np.ndarray | None:
    """Return the tokens trained up to each row of a series, those before the log began included.

    Returns:
        Float64 of shape (n,), never falling; None where tokens are unknown.
    """
    if run.has("tokens_seen"):
        seen = run.array("tokens_seen")[series.rows]
        if np.isfinite(seen).all() and (np.diff(seen) >= 0).all():
            return np.asarray(seen)
    if book.tokens is None:
        return None
    stays = ~run.frame["discarded"].to_numpy()
    reached = np.cumsum(np.where(stays, book.tokens, 0.0))[series.rows]
    first = int(np.argmax(stays))
    step, stands_for = int(run.frame["step"][first]), int(book.steps[first])
    before = max(0, step - stands_for) * float(book.tokens[first]) / max(1, stands_for)
    return np.asarray(reached + before)
