"""Runs for the tests of cost: made row by row, with everything that a real log may lack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stabcli.assembly import WALL, Options, Reading, assemble
from stabcli.facts import given_fact
from stabcli.incidents import Incident
from stabcli.rules import Finding
from stabcli.run import Fact, Run
from stabcli.sources import Source

START = 1.7e9
"""Seconds since 1970 at which the runs of the tests begin."""


def make_run(
    rows: Sequence[Mapping[str, Any]] | Mapping[str, Any],
    *,
    flags: Mapping[str, Any] | None = None,
    facts: Mapping[str, Any] | None = None,
    reader: str = "jsonl",
    part: Sequence[int] | None = None,
) -> Run:
    """Assemble a run; ``wall`` is its clock, ``flags`` come from the command line."""
    table = pl.DataFrame(rows, infer_schema_length=None, strict=False)
    if "wall" in table.columns:
        table = table.rename({"wall": WALL})
    if part is not None:
        table = table.with_columns(pl.Series("@part", part))
    given = dict(given_fact(k, v, "--" + k.replace("_", "-")) for k, v in (flags or {}).items())
    known = {k: Fact(value=v, source=f"config, {k}") for k, v in (facts or {}).items()}
    source = Source(shown="log.jsonl", path=Path(), head=b"{")
    reading = Reading(name="log.jsonl", table=table, facts=known)
    return assemble(reading, source, reader, Options(facts=given))


def steady(
    first: int, last: int, *, every: int = 1, step_seconds: float = 1.0, start: float = START
) -> dict[str, np.ndarray]:
    """Return the columns of a healthy stretch: a falling loss and a clock."""
    step = np.arange(first, last + 1, every)
    noise = np.random.default_rng(first).normal(0, 0.01, len(step))
    return {
        "step": step,
        "loss": 2 + 6 / np.sqrt(step + 10) + noise,
        "wall": start + (step - first) * step_seconds,
    }


def incident(
    first: int,
    last: int,
    *,
    metric: str = "loss",
    value: float = 9.0,
    severity: str = "error",
    ending: str = "new-basin",
    recovered: int | None = None,
    attempt: int = 0,
    rule: str = "loss-spike",
    tags: tuple[str, ...] = (),
) -> Incident:
    """Return an incident of one finding."""
    found = Finding(
        rule=rule,
        metric=metric,
        severity=severity,
        attempt=attempt,
        first=first,
        last=last,
        peak=first,
        value=value,
        expected=2.0,
        score=2.0,
    )
    return Incident(findings=(found,), ending=ending, recovered=recovered, tags=tags)
