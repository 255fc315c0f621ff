"""Whether the weights were bad before the batch came, and which of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stabcli.replay.controls import Calibration
from stabcli.replay.probes import Grid, Probe

LEVEL_TOLERANCE = 0.5
"""Nats by which clean batches may lie above the log's level. Between evaluation and training mode,
and over the steps between checkpoint and log, sound runs differ by some tenths."""
NORM_RATIO = 3.0
"""Times the log's gradient norm from which that of clean batches speaks of a bad state: within a run
it halves or doubles over hundreds of steps, not more."""
MAX_TESTS = 64
"""Forward passes the search for a bad tensor may take: one tensor of 50 takes 8 to 11; a run that
diverged is bad everywhere and would take hundreds."""


def bad_state(
    calibration: Calibration, usual_loss: float | None, usual_norm: float | None, rows_V: int
) -> str | None:
    """Why the checkpoint is bad for clean batches too; None where nothing says so."""
    loss, norm = calibration.loss.middle, calibration.grad_norm.middle
    if not (math.isfinite(loss) and math.isfinite(norm)):
        return f"clean batches give loss {loss:.4g} and gradient norm {norm:.4g}"
    uniform = math.log(rows_V)
    if usual_loss is not None and loss > usual_loss + LEVEL_TOLERANCE:
        return f"clean batches have loss {loss:.3f} where the run had {usual_loss:.3f}"
    if usual_norm is not None and norm > NORM_RATIO * usual_norm:
        return f"clean batches have gradient norm {norm:.3g} where the run had {usual_norm:.3g}"
    if loss > uniform + 0.1:
        return f"clean batches have loss {loss:.3f}, worse than guessing evenly ({uniform:.3f})"
    if norm == 0.0:
        return "clean batches have gradient norm 0: nothing can be learnt from this state"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bisection:
    """Which tensors make the state bad."""

    tensors: tuple[str, ...]
    """With these taken from the older checkpoint, clean batches are normal; empty = not even with
    all of them, or without any."""
    tests: int
    """Forward passes over the control it took."""
    complete: bool
    """False where the search was stopped: the set may be larger than it need be."""


@torch.no_grad()
def bisect(
    probe: Probe, older: nn.Module, control: Grid, most_loss: float, most_norm: float | None = None
) -> Bisection:
    """Find a smallest set of tensors to take from an older checkpoint (delta debugging).

    Zeller and Hildebrandt (2002), https://doi.org/10.1109/32.988498, over tensors. The model is
    left as it was.

    Args:
        probe: The bad checkpoint.
        older: The same model from an earlier one.
        control: A clean batch.
        most_loss: Loss up to which the control is normal.
        most_norm: Gradient norm up to which it is; None = not asked for, which spares the backward.
    """
    now, then = probe.model.state_dict(), older.state_dict()
    names = [
        name
        for name, value in now.items()
        if value.is_floating_point() and name in then and then[name].shape == value.shape
    ]
    kept: dict[str, Tensor] = {}
    tests = 0

    def normal(taken: set[str]) -> bool:
        nonlocal tests
        tests += 1
        for name in names:
            if name in taken and name not in kept:
                kept[name] = now[name].clone()
                now[name].copy_(then[name])
            elif name not in taken and name in kept:
                now[name].copy_(kept.pop(name))
        with torch.enable_grad():
            m = probe.measure(control, backward=most_norm is not None)
        norm_fine = most_norm is None or (m.grad_norm or 0.0) <= most_norm
        return math.isfinite(m.loss) and m.loss <= most_loss and norm_fine

    try:
        units, parts = names, 2
        if normal(set()) or not normal(set(names)):
            return Bisection(tensors=(), tests=tests, complete=True)
        while len(units) > 1 and tests < MAX_TESTS:
            size = math.ceil(len(units) / parts)
            chunks = [units[i : i + size] for i in range(0, len(units), size)]
            rests = [[u for u in units if u not in chunk] for chunk in chunks] if parts > 2 else []
            smaller = next((c for c in chunks if tests < MAX_TESTS and normal(set(c))), None)
            if smaller is not None:
                units, parts = smaller, 2
                continue
            rest = next((r for r in rests if tests < MAX_TESTS and normal(set(r))), None)
            if rest is not None:
                units, parts = rest, max(parts - 1, 2)
            elif parts >= len(units):
                break
            else:
                parts = min(len(units), 2 * parts)
        return Bisection(tensors=tuple(units), tests=tests, complete=tests < MAX_TESTS)
    finally:
        for name, value in kept.items():
            now[name].copy_(value)
