"""Cost: where the tokens and GPU-hours of a run went, and on what grounds we say so.

Every row, and every gap between attempts, is in one class, the first of ``CLASSES`` that applies.
Totals are sums over the classes, so that nothing counts twice however many incidents overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, get_args

import numpy as np

from stabcli.damage import Damages, Rows, went_nonfinite
from stabcli.efficiency import Efficiency, efficiency
from stabcli.incidents import Incident
from stabcli.ledger import HOUR, Ledger, contradictions, ledger
from stabcli.run import Run
from stabcli.units import GpuHours, Tokens, steps

WasteClass = Literal[
    "poisoned",
    "rolled-back",
    "lost",
    "recovering",
    "skipped",
    "downtime",
    "stall",
    "slow",
    "unseen",
    "productive",
]
CLASSES: tuple[WasteClass, ...] = get_args(WasteClass)
"""Where time goes; a row or gap belongs to the first that applies."""

HOLES_SHOWN = 3
"""Holes in a log that are named."""

MEANING: Final[dict[WasteClass, str]] = {
    "poisoned": "trained after a non-finite state that never healed",
    "rolled-back": "superseded by a later attempt",
    "lost": "from the onset of an incident that never recovered",
    "recovering": "from the onset of an incident to its recovery",
    "skipped": "optimizer steps that the trainer skipped",
    "downtime": "between attempts",
    "stall": "standing still within an attempt: hangs, checkpoints, evaluations",
    "slow": "above the run's own usual step time",
    "unseen": "steps that the log does not tell of: nobody knows whether they were well",
    "productive": "the rest",
}
"""One line on each class."""


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
    at_stake: tuple[Cost, ...] = ()
    """What each warning that never recovered would have thrown away, had it been an error."""
    total: Cost = field(default_factory=Cost)
    """Everything known to be wasted, over disjoint rows and gaps: nothing counts twice."""
    all: Cost = field(default_factory=Cost)
    """Everything the run used."""
    goodput: float | None = None
    """Productive share of the GPU time that the log tells of; of tokens where that is unknown."""
    classes: tuple[tuple[WasteClass, Cost], ...] = ()
    """Each class that occurs with its cost; they add up to ``all``."""
    assumptions: tuple[str, ...] = ()
    """Every assumption and every missing input, as a sentence the report prints."""
    sources: tuple[tuple[str, str], ...] = ()
    """Figure (``tokens``, ``gpu_hours``) and where it comes from."""
    efficiency: Efficiency = field(default_factory=Efficiency)
    """MFU, and what its distance to a target costs; beside the classes, not in them."""

    @property
    def unseen(self) -> Cost | None:
        """What the log does not tell of; None where it tells of all."""
        return dict(self.classes).get("unseen")


def price(run: Run, incidents: Sequence[Incident]) -> CostReport:
    """Price each incident and the run.

    What the log does not say is taken from the run's facts, which flags may have set:
    ``gpus``, ``tokens_per_step``, ``gpu_hours_per_trillion``, ``gpu_price`` and others.
    """
    book = ledger(run)
    damages = Damages(run)
    classes = _classes(run, incidents, book)
    wasted = [cost for name, cost in classes.items() if name not in ("productive", "unseen")]
    total = _sum(wasted, like=book)
    everything = _sum(list(classes.values()), like=book)
    productive = classes.get("productive", _none(book))
    seen = _sum([cost for name, cost in classes.items() if name != "unseen"], like=book)
    notes = [*book.assumptions, *contradictions(run, book), *_notes(run, classes)]
    fit = efficiency(run, book.tokens, book.gpu_seconds, dict(book.sources)["gpu_hours"])
    report = CostReport(
        incidents=tuple(_of_incident(run, i, book, damages) for i in incidents),
        at_stake=tuple(_at_stake(i, book, damages) for i in incidents),
        total=total,
        all=everything,
        goodput=_share(productive, seen),
        classes=tuple((name, classes[name]) for name in CLASSES if name in classes),
        assumptions=tuple(dict.fromkeys([*notes, *fit.notes])),
        sources=tuple(book.sources.items()),
        efficiency=fit,
    )
    per_hour = run.fact("gpu_price")
    return report if per_hour is None else _with_money(report, per_hour)


def row_classes(run: Run, incidents: Sequence[Incident]) -> np.ndarray:
    """Return the class of every row as an index into ``CLASSES``, int8 of shape (n,).

    Only classes of whole rows: what a row holds beyond its usual time, and steps that it skipped,
    are shares of it.
    """
    state = np.full(run.frame.height, CLASSES.index("productive"), np.int8)
    marks: list[tuple[WasteClass, np.ndarray | slice]] = [("poisoned", went_nonfinite(run))]
    damages = Damages(run)
    for incident in incidents:
        damage = damages.of(incident)
        if damage is None:
            continue
        marks.append(("poisoned", damage.poisoned))
        marks.append(("lost" if incident.recovered is None else "recovering", damage.rows))
    marks.append(("rolled-back", run.frame["discarded"].to_numpy()))
    for name, rows in marks:
        at = CLASSES.index(name)
        if isinstance(rows, slice):
            np.minimum(state[rows], at, out=state[rows])
        else:
            state[rows & (state > at)] = at
    return state


def _classes(run: Run, incidents: Sequence[Incident], book: Ledger) -> dict[WasteClass, Cost]:
    """Add up the classes that occur."""
    state = row_classes(run, incidents)
    shares: dict[WasteClass, np.ndarray] = {
        name: (state == at).astype(np.float64) for at, name in enumerate(CLASSES)
    }
    skipped = shares["productive"] * _skipped(run, book)
    shares["skipped"] = skipped
    shares["productive"] = shares["productive"] - skipped
    shares["unseen"] = shares["productive"] * _unseen(run, book)
    shares["productive"] = shares["productive"] - shares["unseen"]
    found: dict[WasteClass, Cost] = {}
    for name, share in shares.items():
        if share.any():
            found[name] = _cost(book, share)
    excess = _excess(book) * shares["productive"] if book.gpu_seconds is not None else None
    if excess is not None and excess.any() and "productive" in found:
        for name, rows in (("stall", book.stands), ("slow", ~book.stands)):
            hours = float(excess[rows].sum()) / HOUR
            if hours > 0:
                found[name] = _no_steps(book, hours)
        whole_hours = found["productive"].gpu_hours or 0.0
        left_hours = whole_hours - float(excess.sum()) / HOUR
        found["productive"] = replace(found["productive"], gpu_hours=left_hours)
    if "productive" in found:  # shares are rounded: the rest takes what is left of the steps
        others = sum(c.steps for name, c in found.items() if name != "productive")
        left = int(book.steps.sum()) - others
        found["productive"] = replace(found["productive"], steps=left)
    down = float(book.gap_gpu_seconds.sum()) / HOUR
    if down > 0:
        found["downtime"] = _no_steps(book, down)
    return found


def _skipped(run: Run, book: Ledger) -> np.ndarray:
    """Return the share of every row that the trainer skipped."""
    if not run.has("skipped_steps"):
        return np.zeros(len(book.steps))
    count = np.nan_to_num(run.array("skipped_steps"), nan=0.0, posinf=0.0, neginf=0.0)
    share: np.ndarray = np.clip(count / np.maximum(book.steps, 1), 0.0, 1.0)
    return share


def _unseen(run: Run, book: Ledger) -> np.ndarray:
    """Return the share of every row that stands for steps which the log does not tell of."""
    share = np.zeros(len(book.steps))
    for hole in run.holes:
        share[hole.row] = hole.steps / max(1, int(book.steps[hole.row]))
    return share


def _excess(book: Ledger) -> np.ndarray:
    """Return the GPU-seconds of every row beyond its usual; zeros where no clock shows them."""
    if book.seconds is None or book.usual is None or book.gpus is None:
        return np.zeros(len(book.steps))
    excess: np.ndarray = (book.seconds - book.usual) * book.gpus
    return excess


def _cost(book: Ledger, share: np.ndarray) -> Cost:
    """Add up shares of rows."""
    hours = None if book.gpu_seconds is None else float((book.gpu_seconds * share).sum()) / HOUR
    return Cost(
        steps=round(float((book.steps * share).sum())),
        tokens=None if book.tokens is None else float((book.tokens * share).sum()),
        gpu_hours=hours,
    )


def _no_steps(book: Ledger, hours: GpuHours) -> Cost:
    """Return a cost of time only."""
    return Cost(tokens=None if book.tokens is None else 0.0, gpu_hours=hours)


def _none(book: Ledger) -> Cost:
    return _cost(book, np.zeros(len(book.steps)))


def _sum(costs: Sequence[Cost], *, like: Ledger) -> Cost:
    """Add up disjoint costs; unknown where the ledger does not know."""
    return Cost(
        steps=sum(c.steps for c in costs),
        tokens=None if like.tokens is None else sum(c.tokens or 0.0 for c in costs),
        gpu_hours=None if like.gpu_seconds is None else sum(c.gpu_hours or 0.0 for c in costs),
    )


def _share(part: Cost, of: Cost) -> float | None:
    for a, b in ((part.gpu_hours, of.gpu_hours), (part.tokens, of.tokens), (part.steps, of.steps)):
        if a is not None and b:
            return a / b
    return None


def cost_of_rows(book: Ledger, rows: np.ndarray) -> Cost:
    """Price the rows that a mask of shape (n,) picks."""
    return _cost(book, rows.astype(float))


def _cost_of_stretches(book: Ledger, stretches: Rows) -> Cost:
    """Price stretches of rows."""

    def added(values: np.ndarray | None) -> float | None:
        return None if values is None else sum(float(values[s].sum()) for s in stretches)

    hours = added(book.gpu_seconds)
    return Cost(
        steps=round(added(book.steps) or 0.0),
        tokens=added(book.tokens),
        gpu_hours=None if hours is None else hours / HOUR,
    )


def _of_incident(run: Run, incident: Incident, book: Ledger, damages: Damages) -> Cost:
    """Price one incident on its own."""
    if incident.family == "speed":
        steps = run.frame["step"].to_numpy()
        inside = (run.frame["attempt"].to_numpy() == incident.attempt) & (
            (steps >= incident.first) & (steps <= incident.last)
        )
        if book.gpu_seconds is None or book.usual is None or book.gpus is None:
            return Cost(tokens=None if book.tokens is None else 0.0)
        return _no_steps(book, float(_excess(book)[inside].sum()) / HOUR)
    damage = damages.of(incident)
    return _cost_of_stretches(book, () if damage is None else damage.thrown_away)


def _at_stake(incident: Incident, book: Ledger, damages: Damages) -> Cost:
    """Price what followed a warning that never recovered; it is not part of any total."""
    damage = damages.of(incident, ("warning",)) if incident.recovered is None else None
    return _cost_of_stretches(book, () if damage is None else (damage.rows,))


def _notes(run: Run, classes: dict[WasteClass, Cost]) -> list[str]:
    notes = []
    if not any(c.gpu_hours is not None for c in classes.values()):
        counted = any(c.tokens is not None for c in classes.values())
        notes.append(
            f"goodput is a share of the {'tokens' if counted else 'steps'}: without GPU-hours"
            " downtime, stalls and slowness stay unseen"
        )
    if holes := run.holes:
        where = ", ".join(f"{h.first:,} and {h.last:,}" for h in holes[:HOLES_SHOWN])
        more = f" and {len(holes) - HOLES_SHOWN:,} other places" if holes[HOLES_SHOWN:] else ""
        notes.append(
            f"in no row: {steps(sum(h.steps for h in holes))} between {where}{more}: unseen,"
            " neither productive nor wasted; give the log that holds them as well"
        )
    if "stall" in classes:
        notes.append("stalls hold every pause between rows: checkpoints and evaluations as well")
    if run.fact("gpu_price") is None and any(c.gpu_hours for c in classes.values()):
        notes.append("money: not shown without --gpu-price USD")
    return notes


def _with_money(report: CostReport, per_hour: float) -> CostReport:
    """Fill in the money of every cost of a report."""

    def paid(cost: Cost) -> Cost:
        return cost if cost.gpu_hours is None else replace(cost, usd=cost.gpu_hours * per_hour)

    return replace(
        report,
        incidents=tuple(paid(c) for c in report.incidents),
        at_stake=tuple(paid(c) for c in report.at_stake),
        total=paid(report.total),
        all=paid(report.all),
        classes=tuple((name, paid(c)) for name, c in report.classes),
    )
