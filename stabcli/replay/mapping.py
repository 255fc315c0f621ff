"""Which samples a step saw, by stated seed and order; and the proof, by the logged losses.

A wrong seed gives other batches that look as good as the right ones: what is found in them would
be found of the wrong data. So losses of neighbouring steps are replayed and compared with those
that were logged: losses of batches differ, and only the right batches differ alike.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from stabcli.errors import ReplayError
from stabcli.replay.data import DataSet, Spec, load_npy

CORRELATION = 0.9
"""Least correlation that proves a mapping. Measured: 0.98 to 0.996 where it is right, also with a
checkpoint 100 steps older; below 0.5 on 8 steps where it is not."""
STEPS = 8
"""Least steps it is measured on: of unrelated losses, one in a thousand sets of 8 correlates so."""
SHIFTS = (-2, -1, 1, 2)
"""Offsets tried where the stated one does not fit, to name what is wrong."""

Order = Callable[[int], Sequence[int]]
"""Sample numbers of a step."""

ORDERS = ("sequential", "numpy", "pcg64", "torch")
"""``numpy``: ``RandomState(seed + epoch).permutation``; ``pcg64``: ``default_rng(…)``; ``torch``:
``randperm`` with a generator of that seed, as transformers' Trainer and accelerate draw it."""


def order_of(spec: Spec, data: DataSet) -> Order:
    """Return the order that a spec states.

    Raises:
        ReplayError: The order is unknown, or what it needs was not given.
    """
    batch, first = spec.whole("batch"), spec.whole("first", 1)
    rows = spec.values.get("rows")
    if rows is not None:
        return _own(rows)
    if "indices" in spec.values and data.targets is False:
        return _indexed(Path(spec.values["indices"]), batch, first)
    name = spec.values.get("order", "sequential")
    if name not in ORDERS:
        raise ReplayError(
            f"--data: order={name}: one of {', '.join(ORDERS)}, or rows=module:function; an order"
            " that depends on every random draw before it (nanoGPT's) can only be recorded"
        )
    seed = spec.whole("seed", None if name != "sequential" else 0)
    epoch = data.samples // batch  # steps of an epoch; the incomplete batch is dropped
    if not epoch:
        raise ReplayError(f"{data.shown}: {data.samples:,} samples are less than one batch")
    drawn: dict[int, np.ndarray] = {}

    def samples(step: int) -> Sequence[int]:
        number = step - first
        if number < 0:
            raise ReplayError(f"--steps: step {step} is before the first, {first}")
        if name == "sequential":
            taken = range(number * batch, (number + 1) * batch)
            return [i % data.samples for i in taken] if data.wraps else taken
        turn, place = divmod(number, epoch)
        if turn not in drawn:
            drawn.clear()
            drawn[turn] = _permutation(name, seed + turn, data.samples)
        return [int(i) for i in drawn[turn][place * batch : (place + 1) * batch]]

    return samples


def _permutation(name: str, seed: int, count: int) -> np.ndarray:
    if name == "torch":
        generator = torch.Generator().manual_seed(seed)
        return torch.randperm(count, generator=generator).numpy()
    if name == "pcg64":
        return np.random.default_rng(seed).permutation(count)
    return np.random.RandomState(seed % 2**32).permutation(count)


def _indexed(path: Path, batch: int, first: int) -> Order:
    """OLMo's global indices: raw uint32, one a sample, in the order of training."""
    if not path.is_file():
        raise ReplayError(f"{path}: no such file: check indices=")
    with path.open("rb") as file:
        whole = file.read(6) == b"\x93NUMPY"
    if not whole and path.stat().st_size % 4:
        raise ReplayError(f"{path}: not whole numbers of 4 bytes: check indices=")
    numbers = load_npy(path) if whole else np.memmap(path, dtype=np.uint32, mode="r")

    def samples(step: int) -> Sequence[int]:
        begin = (step - first) * batch
        if begin < 0 or begin + batch > len(numbers):
            raise ReplayError(f"{path}: step {step} is not in it: check batch= and first=")
        return [int(i) for i in numbers[begin : begin + batch]]

    return samples


def _own(name: str) -> Order:
    """The user's own function from a step to sample numbers."""
    module, colon, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function) if colon else None
    except (ImportError, AttributeError, ValueError) as error:
        raise ReplayError(f"--data: rows={name}: cannot be imported: {error}") from None
    if not callable(found):
        raise ReplayError(f"--data: rows={name}: not package.module:function")

    def samples(step: int) -> Sequence[int]:
        return [int(i) for i in found(step)]

    return samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How replayed and logged losses agree."""

    correlation: float
    """Pearson's, with a straight line taken out of both."""
    steps: int
    """On how many steps."""
    shift: int | None = None
    """Offset at which they agree, where they do not at 0."""

    @property
    def proven(self) -> bool:
        """Whether these are the samples of those steps."""
        return self.steps >= STEPS and self.correlation >= CORRELATION


def agreement(replayed: Sequence[float], logged: Sequence[float]) -> Agreement:
    """Compare losses of consecutive steps; those that are not finite are left out.

    Args:
        replayed: Losses on the checkpoint, in the order of the steps.
        logged: Losses of the same steps in the log.
    """
    best = _correlation(replayed, logged)
    shift = None
    if best < CORRELATION:
        for by in SHIFTS:
            here = replayed[max(0, -by) : len(replayed) - max(0, by)]
            there = logged[max(0, by) : len(logged) - max(0, -by)]
            if len(here) >= STEPS - 2 and _correlation(here, there) >= CORRELATION:
                shift = by
                break
    steps = sum(
        math.isfinite(a) and math.isfinite(b) for a, b in zip(replayed, logged, strict=True)
    )
    return Agreement(correlation=best, steps=steps, shift=shift)


def _correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Correlation once a straight line is taken out of both: a falling loss alone proves nothing."""
    both = np.array([a, b], np.float64)
    x = np.arange(both.shape[1], dtype=np.float64)
    usable = np.isfinite(both).all(0)
    both, x = both[:, usable], x[usable]
    if len(x) < 4:
        return 0.0
    rest = [row - np.polyval(np.polyfit(x, row, 1), x) for row in both]
    sizes = [float(np.linalg.norm(r)) for r in rest]
    if min(sizes) <= 1e-9 * max(1.0, float(np.abs(both).max())):
        return 0.0
    return float(rest[0] @ rest[1]) / (sizes[0] * sizes[1])


def check(found: Agreement, shown: str) -> float:
    """Return the correlation of a proven mapping.

    Raises:
        ReplayError: It is not proven.
    """
    if found.proven:
        return found.correlation
    if found.steps < STEPS:
        raise ReplayError(
            f"{shown}: {found.steps} neighbouring steps have a logged loss, {STEPS} are needed to"
            " prove which samples a step saw: give the log with --log, or record the batch"
        )
    if found.shift is not None:
        later = "earlier" if found.shift < 0 else "later"
        raise ReplayError(
            f"{shown}: these samples fit the losses logged {abs(found.shift)} steps {later}: off by"
            f" {abs(found.shift)}: change first="
        )
    raise ReplayError(
        f"{shown}: these are not the samples of those steps: their losses and the logged ones"
        f" correlate with r = {found.correlation:.2f}, {CORRELATION} is needed: wrong seed or order?"
    )
