"""The recorder: what it keeps, what it waits for, and when it writes."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stabcli.record._dump import Labels, line_of, plain, write_whole
from stabcli.record._level import SEEN, Level

SPREAD_FLOOR = {"loss": 0.01, "grad_norm": 0.1}
"""Least spread, as a part of the median: a series that stands still has none of its own. Gradient
norms of healthy runs vary by a tenth and more, losses of large batches by a hundredth."""

DUMPS_AN_EVENT = 3
"""Dumps of flagged steps that follow one another: after the first, most are its victims."""


@dataclass(slots=True)
class _Step:
    """One optimizer step: its micro-batches, and its figures once they are known."""

    parts: list[dict[str, Any]] = field(default_factory=list)
    number: int = 0
    loss: Any = None
    grad_norm: Any = None
    arrived: Any = None
    """Event on a GPU that tells that loss and gradient norm are here; None where they are."""
    why: str = ""
    """What was wrong with it; empty where nothing was."""


class Recorder:
    """Keeps the last batches, and writes them when one of them made loss or gradient norm leap.

    Args:
        folder: Where to write; made when it is needed.
        keep: Steps to keep in memory; those before a spike are its control batches.
        sequences: Most sequences in one dump; the flagged step's come first.
        window: Steps a value is compared with.
        sigmas: Robust standard deviations above their median that are a spike.
        dumps: Most dumps of one run.
        labels: How labels lie: ``next`` or ``own``; None = found out when they are read.
        rank: Number of this process; None = what ``torchrun`` says.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        keep: int = 8,
        sequences: int = 100,
        window: int = 128,
        sigmas: float = 6.0,
        dumps: int = 20,
        labels: Labels | None = None,
        rank: int | None = None,
    ) -> None:
        if keep < 1 or sequences < 1 or window < SEEN:
            raise ValueError(
                f"Recorder: keep={keep}, sequences={sequences}, window={window}:"
                f" give at least 1, 1 and {SEEN}"
            )
        self.folder = Path(folder)
        self.keep, self.sequences, self.labels, self.dumps = keep, sequences, labels, dumps
        self.rank = int(os.environ.get("RANK", "0")) if rank is None else rank
        self.written: list[Path] = []
        self._levels = {name: Level(window, sigmas, floor) for name, floor in SPREAD_FLOOR.items()}
        self._open = _Step()
        self._kept: deque[_Step] = deque()
        self._pending: deque[_Step] = deque()
        self._event: list[int] = []

    def __call__(
        self,
        step: int,
        input_ids: Any,
        *,
        loss: Any,
        grad_norm: Any = None,
        labels: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        sample_ids: Any = None,
    ) -> None:
        """Record a step that is one batch: ``batch`` and ``step`` in one call."""
        self.batch(
            input_ids, labels=labels, attention_mask=attention_mask, position_ids=position_ids,
            sample_ids=sample_ids,
        )  # fmt: skip
        self.step(step, loss=loss, grad_norm=grad_norm)

    def batch(
        self,
        input_ids: Any,
        *,
        labels: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        sample_ids: Any = None,
    ) -> None:
        """Keep a (micro-)batch of the step under way.

        Args:
            input_ids: Tensor, array or lists, (B, T).
            labels: The same shape; None where the next token is the target.
            attention_mask: 1 at real tokens, 0 at padding.
            position_ids: Positions, where a sequence holds several documents and they begin anew.
            sample_ids: What the data set calls each sequence.
        """
        self._open.parts.append(
            {
                "input_ids": _copy(input_ids),
                "labels": _copy(labels),
                "attention_mask": _copy(attention_mask),
                "position_ids": _copy(position_ids),
                "sample_ids": _copy(sample_ids),
            }
        )

    def step(self, step: int, *, loss: Any, grad_norm: Any = None) -> None:
        """End an optimizer step.

        Args:
            step: Its number, as it is logged.
            loss: Its loss: a number or a tensor with one element, on any device.
            grad_norm: Its gradient norm before clipping; None where it is not known.
        """
        done, self._open = self._open, _Step()
        done.number = int(step)
        done.loss, done.grad_norm, done.arrived = _fetch(loss, grad_norm)
        self._pending.append(done)
        self._judge(all_of_them=False)

    def flush(self) -> None:
        """Judge what is still on its way; call it after the last step."""
        self._judge(all_of_them=True)

    def _judge(self, *, all_of_them: bool) -> None:
        while self._pending:
            first = self._pending[0]
            late = all_of_them or len(self._pending) > self.keep
            if first.arrived is not None and not first.arrived.query():
                if not late:
                    return
                first.arrived.synchronize()
            self._pending.popleft()
            self._look(first)

    def _look(self, step: _Step) -> None:
        """Compare a step with those before it; write it down where it leaps."""
        reasons = []
        for name, level in self._levels.items():
            value = getattr(step, name)
            value = None if value is None else float(value)
            setattr(step, name, value)
            if value is not None and (usual := level.judge(value)) is not None:
                reasons.append(f"{name} {value:.6g}{usual}")
        step.why = "; ".join(reasons)
        self._kept.append(step)
        while len(self._kept) > self.keep:
            self._kept.popleft()
        if step.why and self._wanted(step.number):
            self._write(step)

    def _wanted(self, number: int) -> bool:
        if self._event and abs(number - self._event[-1]) > self.keep:
            self._event.clear()
        self._event.append(number)
        return len(self._event) <= DUMPS_AN_EVENT and len(self.written) < self.dumps

    def _write(self, flagged: _Step) -> None:
        """Write the flagged step, then as many of the steps before it as whole ones fit."""
        room = self.sequences
        lines = []
        for step in reversed(self._kept):
            about = {
                "step": step.number,
                "flagged": bool(step.why),
                "why": step.why,
                "loss": plain(step.loss),
                "grad_norm": plain(step.grad_norm),
                "rank": self.rank,
                "labels_are": self.labels,
            }
            try:
                line = line_of(step.parts, room if step is flagged else None, about)
            except (TypeError, ValueError) as error:
                warnings.warn(f"stabcli.record: step {step.number}: {error}", stacklevel=2)
                line = None
            if line is None and step is flagged:
                return
            if line is None:
                continue
            if len(line["input_ids"]) > room:
                break
            room -= len(line["input_ids"])
            lines.append(line)
        path = self.folder / f"step-{flagged.number:08d}-rank-{self.rank}.jsonl"
        text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
        try:
            write_whole(path, text)
        except OSError as error:
            warnings.warn(f"stabcli.record: {path}: cannot be written: {error}", stacklevel=2)
            return
        self.written.append(path)


def _copy(value: Any) -> Any:
    """A copy that later steps cannot overwrite; on a GPU it is made there, without waiting."""
    if hasattr(value, "detach"):
        return value.detach().clone()
    return value.copy() if hasattr(value, "copy") else value


def _fetch(*values: Any) -> tuple[Any, ...]:
    """Values as numbers or tensors on the CPU, and the event that tells when they are there."""
    torch = sys.modules.get("torch")
    fetched = []
    moved = False
    for value in values:
        device = getattr(value, "device", None)
        if getattr(device, "type", "cpu") != "cpu":
            value = value.detach().to("cpu", non_blocking=True)  # noqa: PLW2901
            moved = True
        elif hasattr(value, "detach"):
            value = value.detach().clone()  # noqa: PLW2901
        fetched.append(value)
    event = None
    if moved and torch is not None and torch.cuda.is_available():
        event = torch.cuda.Event()
        event.record()
    return (*fetched, event)
