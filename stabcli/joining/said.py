"""Said: facts that a log states before its first step, and those that its rows show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from stabcli.banners import settings_said
from stabcli.joining.homes import label
from stabcli.run import Fact, Run

_NOT_TEXT = frozenset({"tensorboard", "wandb", "hf-trainer", "jsonl", "csv", "parquet"})
"""Readers of logs whose begin is no text that a program printed."""


def bannered(runs: Sequence[Run]) -> list[Run]:
    """Give runs the facts that their text logs state before the first step, and rows show.

    What a reader found goes before, for it knows the words of its framework.
    """
    return [_shown(_stated(run)) for run in runs]


def _stated(run: Run) -> Run:
    if set(run.reader.split(" + ")) <= _NOT_TEXT:
        return run
    facts = dict(run.facts)
    for path in run.files:
        first = _first_line(run, path)
        if first is None:
            continue
        try:
            with open(path, "rb") as file:
                if b"\0" in file.read(1 << 12):
                    continue
            said = settings_said(Path(path), first)
        except OSError:
            continue
        for name, fact in said.items():
            where = f"{Path(path).name}, {fact.source}" if len(run.files) > 1 else fact.source
            facts.setdefault(name, replace(fact, source=where))
    return replace(run, facts=facts)


def _first_line(run: Run, path: str) -> int | None:
    """Return the line of the first row that stands in a file; None where none does."""
    rows = run.frame
    if "file" in rows.columns:
        here = [n for n in rows["file"].unique().to_list() if n and path.endswith(n)]
        rows = rows.filter(pl.col("file").is_in(here))
    first = rows["line"].min() if rows.height and "line" in rows.columns else None
    return int(first) if isinstance(first, int) else None


def _shown(run: Run) -> Run:
    """Add what the rows themselves show of settings that nobody stated."""
    facts = dict(run.facts)
    if "peak_lr" not in facts and run.has("learning_rate"):
        rates = run.frame["learning_rate"]
        peak = rates.filter(rates.is_finite()).max()
        if isinstance(peak, float) and peak > 0:
            word = run.word("learning_rate")
            facts["peak_lr"] = Fact(value=peak, source=f"the largest {word!r} in {label(run)}")
    if "precision" not in facts and run.has("loss_scale"):
        scales = run.frame["loss_scale"]
        top = scales.filter(scales.is_finite()).max()
        if isinstance(top, float) and top > 1:
            word = run.word("loss_scale")
            source = f"{word!r} of {top:g} in {label(run)}: only fp16 is scaled"
            facts["precision"] = Fact(value="fp16", source=source)
    return replace(run, facts=facts)
