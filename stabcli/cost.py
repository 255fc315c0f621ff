"""Cost: where the tokens and GPU-hours of a run went, and on what grounds we say so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from stabcli.incidents import Incident
from stabcli.run import Run
from stabcli.units import GpuHours, Tokens

WasteClass = Literal[
    "poisoned",
    "rolled-back",
    "lost",
    "recovering",
    "skipped",
    "downtime",
    "stall",
    "slow",
    "productive",
]
CLASSES: tuple[WasteClass, ...] = get_args(WasteClass)
"""Where time goes; a row or gap belongs to the first that applies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Steps, tokens and GPU time of a part of a run. What cannot be known is None, never 0."""

    steps: int = 0
    """Optimizer steps."""
    tokens: Tokens | None = None
    """Training tokens, padding included."""
    gpu_hours: GpuHours | None = None
    """GPUs x hours of wall clock."""
    usd: float | None = None
    """Money; only where a price was given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostReport:
    """The bill of a run."""

    incidents: tuple[Cost, ...] = ()
    """What each incident threw away, in the incidents' order; spans may overlap."""
    total: Cost = field(default_factory=Cost)
    """Everything wasted, over disjoint rows and gaps: nothing counts twice."""
    all: Cost = field(default_factory=Cost)
    """Everything the run used."""
    goodput: float | None = None
    """Productive share of the GPU time, or of the tokens where GPU time is unknown."""
    classes: tuple[tuple[WasteClass, Cost], ...] = ()
    """Each class that occurs with its cost; they add up to ``all``."""
    assumptions: tuple[str, ...] = ()
    """Every assumption and every missing input, as a sentence the report prints."""


def price(run: Run, incidents: Sequence[Incident]) -> CostReport:
    """Price each incident and the run."""
    return CostReport(incidents=tuple(Cost() for _ in incidents))
