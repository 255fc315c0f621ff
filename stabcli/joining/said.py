"""Said: facts that a log states before its first step, and those that its rows show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import polars as pl

from stabcli.errors import LogError
from stabcli.joining.homes import prints
from stabcli.run import Fact, Run
from stabcli.sources import text_of

_Spans = Mapping[str, tuple[int, int]]
"""Text log of a run -> the lines of its first and last row there."""


def bannered(runs: Sequence[Run]) -> list[Run]:
    """Give runs the facts that their text logs state before the first step, and rows show.

    What a reader found goes before, for it knows the words of its framework.
    """
    spans = [_spans(run) for run in runs]
    search = cache(_settings)  # what stands before the first of many runs is looked at once
    return [_shown(_stated(r, own, spans, search)) for r, own in zip(runs, spans, strict=True)]


def _settings(path: Path, before: int, after: int = 0) -> Mapping[str, Fact]:
    from stabcli.banners import settings_said  # which most logs need not

    return settings_said(path, before, after)


def _stated(
    run: Run,
    own: _Spans,
    spans: Sequence[_Spans],
    search: Callable[..., Mapping[str, Fact]],
) -> Run:
    """Add what the text logs of a run say between the run before it in the same log and its own.

    What a log says before its first run holds for all in it that do not say otherwise.
    """
    facts = dict(run.facts)
    for path, (before, _) in own.items():
        all_of_it = [each[path] for each in spans if path in each]
        start = min(first for first, _ in all_of_it)
        after = max((last for _, last in all_of_it if last < before), default=0)
        try:
            plain = text_of(path)
            said = dict(search(plain, start)) if plain is not None else {}
            if plain is not None and after:
                said |= search(plain, before, after)
        except (OSError, LogError):
            continue
        for name, fact in said.items():
            where = f"{Path(path).name}, {fact.source}" if len(run.files) > 1 else fact.source
            facts.setdefault(name, replace(fact, source=where))
    return replace(run, facts=facts)


def _spans(run: Run) -> _Spans:
    found = {path: _lines(run, path) for path in run.files} if prints(run) else {}
    return {path: lines for path, lines in found.items() if lines is not None}


def _lines(run: Run, path: str) -> tuple[int, int] | None:
    """Return the lines of the first and the last row that stand in a file; None where none does."""
    rows = run.frame
    if "file" in rows.columns:
        here = [n for n in rows["file"].unique().to_list() if n and path.endswith(n)]
        rows = rows.filter(pl.col("file").is_in(here))
    if not rows.height or "line" not in rows.columns:
        return None
    first, last = rows["line"].min(), rows["line"].max()
    return (first, last) if isinstance(first, int) and isinstance(last, int) else None


def _shown(run: Run) -> Run:
    """Add what the rows themselves show of settings that nobody stated."""
    facts = dict(run.facts)
    if "peak_lr" not in facts and run.has("learning_rate"):
        rates = run.frame["learning_rate"]
        peak = rates.filter(rates.is_finite()).max()
        if isinstance(peak, float) and peak > 0:
            source = f"seen in column {run.word('learning_rate')}"
            facts["peak_lr"] = Fact(value=peak, source=source)
    if "precision" not in facts and run.has("loss_scale"):
        scales = run.frame["loss_scale"]
        top = scales.filter(scales.is_finite()).max()
        if isinstance(top, float) and top > 1:
            word = run.word("loss_scale")
            source = f"seen in column {word}, {top:g}: only fp16 is scaled"
            facts["precision"] = Fact(value="fp16", source=source)
    if not {"gpu", "peak_tflops"} & facts.keys():
        ratio = _ratio(run, "tflops_per_gpu", "mfu")
        if ratio is not None and _PEAKS[0] <= ratio <= _PEAKS[1]:
            source = f"{run.word('tflops_per_gpu')} over {run.word('mfu')} in each row"
            facts["peak_tflops"] = Fact(value=float(f"{ratio:.3g}"), source=source)
    if "gpus" not in facts:
        ratio = _ratio(run, "tokens_per_second", "tokens_per_second_per_gpu")
        if ratio is not None and round(ratio) >= 1 and abs(ratio / round(ratio) - 1) <= _STEADY:
            names = [run.word(n) for n in ("tokens_per_second", "tokens_per_second_per_gpu")]
            facts["gpus"] = Fact(value=round(ratio), source=f"{names[0]} over {names[1]}")
    return replace(run, facts=facts)


_PEAKS = (20.0, 20_000.0)
"""TFLOP/s that a GPU may reach at most."""
_STEADY = 0.02
"""Relative width within which a ratio must stay in all rows but a few to be a constant."""
_FEWEST = 8


def _ratio(run: Run, above: str, below: str) -> float | None:
    """Return the ratio of two metrics where it is the same in all rows but a few."""
    if not run.has(above, below):
        return None
    rows = run.frame.filter(pl.col(above).is_finite() & pl.col(below).is_finite())
    ratios = rows.filter(pl.col(below) > 0).select(r=pl.col(above) / pl.col(below))["r"].sort()
    if len(ratios) < _FEWEST:
        return None
    low, middle, high = (ratios[int(q * (len(ratios) - 1))] for q in (0.1, 0.5, 0.9))
    return float(middle) if middle > 0 and high - low <= _STEADY * middle else None
