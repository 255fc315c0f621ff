"""Criteria: what a run must meet to pass, each met, missed, or impossible to tell."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from stabcli.diagnosis import Diagnosis
from stabcli.efficiency import flops_of_token, peak_tflops
from stabcli.errors import SettingError
from stabcli.ledger import steps_of_rows
from stabcli.metrics import METRICS
from stabcli.rules import rules
from stabcli.settings import suggestion
from stabcli.tails import gone, kept, tail
from stabcli.units import gpu_hours, number, percent, quantity, steps

Status = Literal["pass", "fail", "unknown", "skipped"]
"""``unknown``: it cannot be told, so nobody may call it passed. ``skipped``: nothing to compare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """One thing that was asked of a run."""

    name: str
    """As on the command line: ``max-final-loss``, ``require loss``, ``baseline throughput``."""
    status: Status
    text: str
    """One sentence: what was seen, and what is missing where it cannot be told."""
    value: float | None = None
    """What was measured; None where nothing was, or nothing is a number."""
    limit: float | None = None
    """What it was held against, in the same unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Figures that a run must keep to; None where nothing is asked."""

    max_wasted_gpu_hours: float | None = None
    max_wasted_share: float | None = None
    """A fraction."""
    min_mfu: float | None = None
    """A fraction."""
    max_final_loss: float | None = None
    """In the loss's unit."""
    max_discarded_steps: float | None = None


LIMITS: Final[Mapping[str, Literal["number", "share", "count"]]] = {
    "max_wasted_gpu_hours": "number",
    "max_wasted_share": "share",
    "min_mfu": "share",
    "max_final_loss": "number",
    "max_discarded_steps": "count",
}
"""Every limit and how it is written."""


def limit(name: str, value: Any, source: str) -> float:
    """Read a limit as people write it: ``50``, ``5%``, ``0.05``, ``10k``.

    Args:
        name: Name of the limit.
        value: Text or a number.
        source: Where it was given, for the message.

    Raises:
        SettingError: It is not such a value.
    """
    kind = LIMITS[name]
    if kind == "share":
        return share(value, source)
    found = _number(value, counts=kind == "count")
    least = -math.inf if name == "max_final_loss" else 0.0
    if found is None or found < least:
        raise SettingError(f"{source}: takes {_TAKES[kind]}, not {value!r}")
    return found


_TAKES = {"number": "a number", "count": "a count such as 0, 500 or 10k"}


def share(value: Any, source: str) -> float:
    """Read a share from 0 to 1 as people write it: ``0.05`` or ``5%``.

    Raises:
        SettingError: It is not a share.
    """
    percents = isinstance(value, str) and value.strip().endswith("%")
    found = _number(value.strip().removesuffix("%") if percents else value, counts=False)
    if found is not None and percents:
        found /= 100
    if found is None or not 0 <= found <= 1:
        raise SettingError(f"{source}: takes a share such as 5% or 0.05, not {value!r}")
    return found


def _number(value: Any, *, counts: bool) -> float | None:
    """Return a finite number, or None."""
    if isinstance(value, bool):
        return None
    try:
        found = float(value)
    except (TypeError, ValueError):
        if not counts or not isinstance(value, str):
            return None
        try:
            found = quantity(value)
        except ValueError:
            return None
    return found if math.isfinite(found) else None


def looked(d: Diagnosis) -> Criterion | None:
    """Say that a run could not be judged where too few rules could look."""
    if not d.cannot_judge:
        return None
    why = "; ".join(dict.fromkeys(s.why for s in d.skipped)) or "no rule was chosen"
    return Criterion(name="rules", status="unknown", text=f"{d.cannot_judge}: {why}")


def required(d: Diagnosis, name: str) -> Criterion:
    """Say whether something that has to be there is there.

    Args:
        d: The run, diagnosed.
        name: A metric, by its canonical or the log's own name, or a rule that must have looked.
    """
    run, title = d.run, f"require {name}"
    if name in {r.name for r in rules}:
        if name in d.checked:
            return Criterion(name=title, status="pass", text="the rule looked")
        why = next((s.why for s in d.skipped if s.rule == name), "it was not among those chosen")
        return Criterion(name=title, status="unknown", text=f"the rule did not look: {why}")
    own = {o: c for c, o in run.columns.items()}
    metric = name if name in run.frame.columns else own.get(name, name)
    rows = run.frame[metric].count() if metric in run.frame.columns else 0
    if rows:
        said = f"{rows:,} of {run.frame.height:,} rows have it"
        return Criterion(name=title, status="pass", text=said)
    known = [*run.measurements, *own]
    if name in {left.name for left in run.left_out}:
        hint = f"it was left out of a very wide log: add --metric {name}"
    elif name in METRICS:
        hint = f"say which column it is with --map {name}=NAME"
    else:
        hint = suggestion(name, known)
    return Criterion(name=title, status="unknown", text=f"the log has no {name}: {hint}")


def limits(d: Diagnosis, asked: Limits) -> Iterator[Criterion]:
    """Hold a run against every limit that was given."""
    for name, measure in _MEASURES.items():
        most = getattr(asked, name)
        if most is not None:
            yield measure(d, name.replace("_", "-"), most)


def _wasted_gpu_hours(d: Diagnosis, name: str, most: float) -> Criterion:
    wasted = d.cost.total.gpu_hours
    if wasted is None:
        why = _assumed(d, "GPU-hours: ") or "GPU-hours: unknown"
        return Criterion(name=name, status="unknown", text=why, limit=most)
    said = f"{gpu_hours(wasted)} wasted, at most {number(most)} allowed"
    return _judged(name, wasted, most, said)


def _wasted_share(d: Diagnosis, name: str, most: float) -> Criterion:
    good = d.cost.goodput
    if good is None:
        return Criterion(name=name, status="unknown", text="the log has no steps", limit=most)
    of = "GPU time"
    if d.cost.all.gpu_hours is None:
        unit = "steps" if d.cost.all.tokens is None else "tokens"
        of = f"{unit} (GPU time is unknown: downtime, stalls and slowness stay unseen)"
    wasted = max(0.0, 1 - good)
    said = f"{percent(wasted)} wasted of the {of}, at most {percent(most)} allowed"
    return _judged(name, wasted, most, said)


def _mfu(d: Diagnosis, name: str, least: float) -> Criterion:
    fit = d.cost.efficiency
    value, where = (fit.mfu, "computed") if fit.mfu is not None else (fit.logged, "as logged")
    if fit.doubt:
        return Criterion(name=name, status="unknown", text=f"an MFU of {fit.doubt}", limit=least)
    if value is None:
        why = "; ".join(_missing_for_mfu(d))
        return Criterion(name=name, status="unknown", text=f"MFU is unknown: {why}", limit=least)
    said = f"MFU {percent(value)} ({where}), at least {percent(least)} wanted"
    status: Status = "pass" if value >= least else "fail"
    return Criterion(name=name, status=status, text=said, value=value, limit=least)


def _missing_for_mfu(d: Diagnosis) -> list[str]:
    """Say what would make the MFU known."""
    missing = []
    if flops_of_token(d.run) is None:
        missing.append("add --params N")
    top, why = peak_tflops(d.run)
    if top is None:
        missing.append(why)
    for figure in ("tokens: ", "GPU-hours: "):
        missing += [a for a in d.cost.assumptions if a.startswith(f"{figure}unknown")]
    return missing or ["the GPU time was itself worked out from an MFU or TFLOP/s"]


def _final_loss(d: Diagnosis, name: str, most: float) -> Criterion:
    series = kept(d.run, "loss")
    if series is None:
        why = "the log has no loss: say which column it is with --map loss=NAME"
        return Criterion(name=name, status="unknown", text=why, limit=most)
    if late := gone(d.run, series):
        why = f"the loss at the end is unknown: it was {late}"
        return Criterion(name=name, status="unknown", text=why, limit=most)
    end = tail(series)
    if not math.isfinite(end.value):
        why = f"the loss ended non-finite at step {end.last:,}"
        return Criterion(name=name, status="fail", text=why, value=end.value, limit=most)
    said = (
        f"loss {number(end.value)}, the median of the last {end.rows:,} logged,"
        f" at most {number(most)} allowed"
    )
    return _judged(name, end.value, most, said)


def _discarded(d: Diagnosis, name: str, most: float) -> Criterion:
    gone = int(steps_of_rows(d.run)[d.run.frame["discarded"].to_numpy()].sum())
    said = f"{steps(gone)} done and thrown away by going back, at most {number(most)} allowed"
    return _judged(name, float(gone), most, said)


def _judged(name: str, value: float, most: float, said: str) -> Criterion:
    status: Status = "pass" if value <= most else "fail"
    return Criterion(name=name, status=status, text=said, value=value, limit=most)


def _assumed(d: Diagnosis, about: str) -> str | None:
    return next((a for a in d.cost.assumptions if a.startswith(about)), None)


_MEASURES: Final = {
    "max_wasted_gpu_hours": _wasted_gpu_hours,
    "max_wasted_share": _wasted_share,
    "min_mfu": _mfu,
    "max_final_loss": _final_loss,
    "max_discarded_steps": _discarded,
}
