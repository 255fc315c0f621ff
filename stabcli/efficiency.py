"""Efficiency: FLOPs of a run's model, the peak of its GPUs, and the MFU that follows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stabcli.hardware import CONVENTIONS, Convention, Flops, flops_per_token, peak
from stabcli.run import Run
from stabcli.units import GpuHours, count, number, percent, plural

IMPOSSIBLE = 0.85
"""MFU above which the peak, the unit or the FLOPs must be wrong."""
DISAGREE = 0.15
"""Relative distance of a logged MFU from the computed one that is worth a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """How well the GPUs were used. What cannot be known is None."""

    mfu: float | None = None
    """MFU of the whole run as computed here, a fraction; None where that cannot be right."""
    logged: float | None = None
    """Median of the MFU that the log states, a fraction."""
    target: float | None = None
    """The MFU to compare with (``--target-mfu``)."""
    shortfall_gpu_hours: GpuHours | None = None
    """GPU-hours that the target would have saved; beside the waste classes, not in them."""
    source: str = ""
    """How ``mfu`` was computed."""
    doubt: str = ""
    """Which computed MFU cannot be right, and what of it may be wrong; empty where none is."""
    notes: tuple[str, ...] = ()
    """What was assumed, and what contradicts."""


def flops_of_token(run: Run) -> Flops | None:
    """Return the FLOPs of one of the run's tokens; None where its parameters are unknown."""
    parameters = run.fact("active_parameters") or run.fact("parameters")
    if not parameters:
        return None
    layers, width = run.fact("layers"), run.fact("width")
    vocabulary = run.fact("vocab_size")
    embeddings = vocabulary * width if vocabulary and width else None
    if embeddings is not None and embeddings >= parameters / 2:
        embeddings = None  # tied, or not the vocabulary of this model: nothing is only looked up
    return flops_per_token(
        convention(run),
        parameters=parameters,
        embeddings=embeddings,
        layers=layers,
        width=width,
        sequence_length=run.fact("sequence_length"),
    )


def convention(run: Run) -> Convention:
    """Return the convention asked for, titan by default."""
    asked = run.facts.get("flops_convention")
    return next((c for c in CONVENTIONS if asked and c == asked.value), "titan")


def peak_tflops(run: Run) -> tuple[float | None, str]:
    """Return the peak of one of the run's GPUs and its source; None and what to add if unknown."""
    if asked := run.fact("peak_tflops"):
        return asked, run.facts["peak_tflops"].source
    gpu = run.facts.get("gpu")
    if gpu is None:
        return None, "add --gpu NAME or --peak-tflops X"
    known = peak(str(gpu.value))
    if known is None:
        return None, f"no peak is known for {str(gpu.value)!r}: add --peak-tflops X"
    precision = run.facts.get("precision")
    if precision and "fp8" in str(precision.value).lower():
        return None, "peaks are those of bf16, the run says fp8: add --peak-tflops X"
    return known.tflops, f"{known.name.upper()}, {known.source}"


def efficiency(
    run: Run, tokens: np.ndarray | None, gpu_seconds: np.ndarray | None, timed_by: str
) -> Efficiency:
    """Work out the MFU of a run and what its distance to the target costs.

    Args:
        run: The run.
        tokens: Tokens of every row.
        gpu_seconds: GPU-seconds of every row.
        timed_by: Where ``gpu_seconds`` come from; those made from FLOPs say nothing of MFU.
    """
    notes: list[str] = []
    logged = _logged(run, notes)
    computed, source = None, ""
    flops, (top, where) = flops_of_token(run), peak_tflops(run)
    circular = "TFLOP/s" in timed_by or "tflops" in timed_by
    if tokens is not None and gpu_seconds is not None and flops and top and not circular:
        spent = float(gpu_seconds.sum())
        if spent > 0:
            computed = float(tokens.sum()) * flops.value / (spent * top * 1e12)
            source = f"{convention(run)} convention: {flops.formula}; peak {number(top)} TFLOP/s, {where}"
            if not flops.complete:
                notes.append(
                    f"MFU: {convention(run)} convention without the terms that need layers, width or vocabulary"
                )
    doubt = ""
    if computed is not None and computed > IMPOSSIBLE:
        doubt = f"{percent(computed)} cannot be right: check {_inputs(run, where)}"
        notes.append(f"MFU: {doubt}")
        computed, source = None, ""
    if computed is not None and logged is not None and abs(logged / computed - 1) > DISAGREE:
        notes.append(
            f"MFU: the log says {percent(logged)}, computed here are {percent(computed)}:"
            " another peak, another convention, or waiting that the log leaves out"
        )
    target = run.fact("target_mfu")
    best = computed if doubt or computed is not None else logged
    short = None
    if target and best and gpu_seconds is not None:
        short = max(0.0, float(gpu_seconds.sum()) / 3600 * (1 - best / target))
    elif target:
        unknown = "the MFU cannot be right" if doubt else where if flops else "add --params N"
        notes.append(
            f"MFU shortfall: unknown: {unknown}"
            if best is None
            else "MFU shortfall: unknown for want of GPU-hours"
        )
    return Efficiency(
        mfu=computed,
        logged=logged,
        target=target,
        shortfall_gpu_hours=short,
        source=source,
        doubt=doubt,
        notes=tuple(notes),
    )


def _inputs(run: Run, peak_source: str) -> str:
    """Name what a computed MFU was made of, and where each came from."""
    gpus = run.fact("gpus")
    named = [
        "GPUs" if gpus is None else f"{plural(round(gpus), 'GPU')} ({run.facts['gpus'].source})"
    ]
    size = "active_parameters" if run.fact("active_parameters") else "parameters"
    known = run.fact(size) or 0.0
    named.append(f"{count(known)} parameters ({run.facts[size].source})")
    return f"{', '.join(named)}, the peak ({peak_source}) and the tokens of a step"


def _logged(run: Run, notes: list[str]) -> float | None:
    """Return the median of the logged MFU; say where it cannot be right."""
    if not run.has("mfu"):
        return None
    values = run.array("mfu")
    known = values[np.isfinite(values) & (values > 0)]
    if not len(known):
        return None
    middle = float(np.median(known))
    if middle > IMPOSSIBLE:
        notes.append(f"MFU: the log says {percent(middle)}, which cannot be right: it is not used")
        return None
    return middle
