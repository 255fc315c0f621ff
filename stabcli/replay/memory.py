"""Memory and passes of a replay, before anything is loaded."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

import torch

from stabcli.errors import ReplayError
from stabcli.replay.stored import Stored
from stabcli.units import count

KEPT = 12
"""Activations of a token that a layer keeps for the backward pass, in units of its input width:
input and output of the norms and matrices of a transformer's layer, attention without scores."""
SPARE = 0.9
"""Part of the memory that is used: the rest is fragments and what others take."""
VERIFIED = (9, 6)
"""Forward and backward passes over the batch of a verified answer, at the median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a replay takes."""

    parameters: int
    weights: int
    """Bytes of the weights."""
    gradients: int
    """Bytes of one gradient, and of the copy that is kept when a batch needs several passes."""
    sequence: int
    """Bytes of activations and logits of one sequence."""
    available: int
    """Bytes that are free on the device."""
    rows: int
    """Sequences of the batch."""
    length: int
    """Positions of a sequence."""
    references: int
    """Control batches."""
    device: str

    @property
    def micro_rows(self) -> int:
        """Sequences that fit one pass; 0 where not even one does."""
        free = self.available * SPARE - self.weights - self.gradients
        return max(0, min(self.rows, int(free // max(1, self.sequence))))

    @property
    def needed(self) -> int:
        """Bytes that are needed at least."""
        return self.weights + self.gradients + self.sequence

    def float32(self, world: int) -> int:
        """Bytes that weights, gradients and one sequence take in float32, on one of these processes."""
        return 3 * 4 * self.parameters // world + 4 * self.sequence

    def lines(self) -> list[tuple[str, str]]:
        """The plan as labels and texts."""
        fits = self.micro_rows
        said = f"{fits} of {self.rows} sequences a pass" if fits else "not even one sequence fits"
        forward, backward = VERIFIED
        tokens = self.rows * self.length
        return [
            ("model", f"{count(float(self.parameters))} parameters, {size(self.weights)} of weights"),
            ("gradients", size(self.gradients)),
            ("a sequence", f"{size(self.sequence)} of activations and logits ({self.length:,} positions)"),
            ("memory", f"{size(self.needed)} needed, {size(self.available)} free on {self.device}: {said}"),
            ("controls", f"{self.references} batches: {self.references} forward and backward passes"),
            ("screen", f"1 forward and 1 backward pass over {tokens:,} tokens"),
            ("answer", f"at the median {forward} forward and {backward} backward passes, if it spiked"),
        ]  # fmt: skip


def plan(
    stored: Stored, config: Any, *, rows: int, length: int, references: int,
    dtype: torch.dtype, device: str, base: Stored | None = None, world: int = 1,
) -> Plan:  # fmt: skip
    """Work out what a replay takes, from names and shapes alone.

    Args:
        stored: The checkpoint.
        config: Its transformers config, where it has one: layers, width and vocabulary.
        rows: Sequences of the batch.
        length: Positions of a sequence.
        references: Control batches.
        dtype: Type the weights are loaded as.
        device: Where the model will stand.
        base: What an adapter sits on.
        world: Processes the weights are spread over.
    """
    parameters = stored.parameters + (base.parameters if base else 0)
    wide = torch.empty((), dtype=dtype).element_size()
    trained = stored.parameters
    shapes = {**(base.tensors if base else {}), **stored.tensors}
    matrices = [s.shape for s in shapes.values() if len(s.shape) == 2]
    vocabulary = getattr(config, "vocab_size", None) or max((max(s) for s in matrices), default=0)
    width = getattr(config, "hidden_size", None) or max((min(s) for s in matrices), default=0)
    # what a layer keeps goes with the rows of its matrices: queries, keys, values, both halves
    kept = sum(sum(s) for s in matrices if vocabulary not in s) + KEPT * width
    token = kept * wide + vocabulary * (3 * wide)
    return Plan(
        parameters=parameters,
        weights=parameters * wide // world,
        gradients=2 * trained * wide // world,
        sequence=length * token,
        available=free(device),
        rows=rows,
        length=length,
        references=references,
        device=device,
    )


def check(found: Plan) -> None:
    """Refuse what will not fit, before it is loaded.

    Raises:
        ReplayError: Not even one sequence fits.
    """
    if found.micro_rows:
        return
    raise ReplayError(
        f"{found.device}: {size(found.needed)} are needed, {size(found.available)} are free: give"
        " --dtype bfloat16, a larger device, or several with torchrun"
    )


def free(device: str) -> int:
    """Bytes free on a device."""
    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(torch.device(device))[0])
    limits = [os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            kib = next(int(line.split()[1]) for line in file if line.startswith("MemAvailable"))
        limits = [kib * 1024]
    except (OSError, StopIteration, ValueError):
        pass
    try:  # a container may have less than its machine
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            most = int(file.read())
        with open("/sys/fs/cgroup/memory.current", encoding="ascii") as file:
            limits.append(most - int(file.read()))
    except (OSError, ValueError):
        pass
    return max(0, min(limits))


def device_of(asked: str) -> str:
    """Return the device to use.

    Raises:
        ReplayError: There is no such device.
    """
    if asked == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if asked.startswith("cuda") and not torch.cuda.is_available():
        raise ReplayError(f"--device {asked}: torch sees no GPU here: give --device cpu")
    try:
        device = torch.device(asked)
    except RuntimeError:
        raise ReplayError(f"--device {asked}: no such device: give auto, cuda or cpu") from None
    if device.type not in ("cpu", "cuda"):
        raise ReplayError(f"--device {asked}: not tried: give auto, cuda or cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ReplayError(f"--device {asked}: there are {torch.cuda.device_count()} GPUs")
    return asked


def size(amount: float) -> str:
    """Print a number of bytes: ``28 GiB``."""
    for unit, scale in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if amount >= scale:
            value = amount / scale
            digits = 0 if value >= 100 else 1
            return f"{value:.{digits}f} {unit}"
    return f"{math.ceil(amount)} bytes"
