"""Alone: the one process of many whose values are not finite while those of the others are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stabcli.attempts import PROCESS
from stabcli.joining.ranks import process_in
from stabcli.run import Run
from stabcli.units import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """One process whose loss was not finite at a step at which the others' was."""

    process: int
    """Its number."""
    of: int
    """Processes that logged a loss at the first such step."""
    first: Step
    """First step at which it was not finite."""
    metric: str
    """What was not finite."""
    spread: Step | None
    """First later step at which another was not finite either; None where none was."""
    later: int
    """Later steps of the attempt at which all others that logged were finite."""

    @property
    def contained(self) -> bool:
        """Whether the others are known to have stayed finite."""
        return self.spread is None and self.later > 0


def alone(run: Run, attempt: int, first: Step) -> Alone | None:
    """Return which process alone was not finite at a step; None where several were, or none.

    Gradients are summed over all processes: where one was not finite, the weights of every process
    are not after that step, and so are the losses of all from the next one on. Where the others
    stay finite, no such gradient reached them.

    Args:
        run: The run.
        attempt: The attempt.
        first: Step at which the loss, or the gradient norm where that is finite, is not finite.
    """
    for metric in ("loss", "grad_norm"):
        rows = run.once(f"processes-{metric}", lambda m=metric: _by_process(run, m))  # type: ignore[misc]
        if rows is None:
            continue
        mine = rows.filter((pl.col("attempt") == attempt) & (pl.col("step") >= first))
        here = mine.filter(pl.col("step") == first)
        bad = here.filter(~pl.col("finite"))["process"].unique()
        of = here["process"].n_unique()
        if len(bad) != 1 or of < 2:
            continue
        process = int(bad[0])
        others = (
            mine.filter((pl.col("process") != process) & (pl.col("step") > first))
            .group_by("step")
            .agg(pl.col("finite").all())
            .sort("step")
        )
        finite = others["finite"].to_numpy()
        spread = np.flatnonzero(~finite)
        return Alone(
            process=process,
            of=of,
            first=first,
            metric=metric,
            spread=int(others["step"][int(spread[0])]) if len(spread) else None,
            later=int(finite.sum()),
        )
    return None


def _by_process(run: Run, metric: str) -> pl.DataFrame | None:
    """Return what each process logged: attempt, step, process, finite; None where nothing says."""
    named = next((c for frame in run.told for c in frame.columns if c.lower() in PROCESS), None)
    parts = []
    for frame in run.told:
        if metric not in frame.columns:
            continue
        if named is not None:
            if named not in frame.columns:
                continue
            process = pl.col(named).cast(pl.Int64, strict=False)
        elif "file" in frame.columns:
            numbers = {file: process_in(file) for file in frame["file"].drop_nulls().unique()}
            process = pl.col("file").replace_strict(numbers, default=None, return_dtype=pl.Int64)
        else:
            continue
        parts.append(
            frame.select(
                "attempt",
                "step",
                process.alias("process"),
                pl.col(metric).is_finite().alias("finite"),
            ).drop_nulls()
        )
    rows = pl.concat(parts) if parts else None
    return rows if rows is not None and rows["process"].n_unique() > 1 else None
