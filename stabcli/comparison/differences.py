"""Differences: the settings in which runs differ, and where each of them is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stabcli.comparison.sides import Side
from stabcli.facts import FACTS
from stabcli.observed import peak_rate, warm_up
from stabcli.run import Fact

NOT_SETTINGS = ("checkpoints", "gpu_price", "target_mfu", "peak_tflops", "flops_convention",
                "gpu_hours_per_trillion", "mfu", "checkpoint_seconds", "outcome")  # fmt: skip
"""Facts that say nothing of how a run was trained."""
NOT_RECIPE = ("gpus", "gpu", "checkpoint_every", "total_steps", "eval_every", "eval_strategy",
              "stop_on_nonfinite", "seed", "data_seed", "deterministic")  # fmt: skip
"""Settings that change nothing of the recipe."""
SAME = 1e-9
"""Relative difference below which two numbers are one, written in two ways."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A setting in which not all runs agree."""

    setting: str
    """Name of the fact."""
    values: tuple[Fact | None, ...]
    """What each run has, in their order; None where nothing tells."""

    @property
    def certain(self) -> bool:
        """Whether two runs are known to differ, rather than one not to tell."""
        known = [f.value for f in self.values if f is not None]
        return any(not _same(known[0], v) for v in known[1:])


def differences(sides: Sequence[Side]) -> tuple[tuple[Difference, ...], tuple[str, ...]]:
    """Return the settings in which runs differ, and the names of those they share."""
    told = [settings(side) for side in sides]
    names = [n for n in FACTS if n not in NOT_SETTINGS and any(n in t for t in told)]
    differing, shared = [], []
    for name in names:
        values = tuple(t.get(name) for t in told)
        first = values[0]
        if first is not None and all(v is not None and _same(first.value, v.value) for v in values):
            shared.append(name)
        else:
            differing.append(Difference(setting=name, values=values))
    differing.sort(key=lambda d: not d.certain)
    return tuple(differing), tuple(shared)


def settings(side: Side) -> dict[str, Fact]:
    """Return what is known of how a run was trained: what was told, then what its log shows."""
    known = dict(side.run.facts)
    column = f"seen in column {side.run.word('learning_rate')}"
    peak, warm = peak_rate(side.run), warm_up(side.run)
    if "peak_lr" not in known and peak is not None:
        known["peak_lr"] = Fact(value=peak, source=column)
    if not {"warmup_steps", "warmup_ratio"} & set(known) and warm and warm.steps is not None:
        known["warmup_steps"] = Fact(value=warm.steps, source=column)
    return known


def same_recipe(a: Side, b: Side) -> bool:
    """Say whether nothing tells that two runs were trained differently."""
    mine, theirs = settings(a), settings(b)
    both = set(mine) & set(theirs) - {*NOT_SETTINGS, *NOT_RECIPE}
    return all(_same(mine[name].value, theirs[name].value) for name in both)


def _same(a: object, b: object) -> bool:
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return abs(a - b) <= SAME * max(abs(a), abs(b))
    return a == b
