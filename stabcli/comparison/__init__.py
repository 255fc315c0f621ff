"""Comparison: several runs side by side, which of them to keep, and how alike two of them are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from stabcli.comparison.choice import Choice, choose
from stabcli.comparison.differences import Difference, differences, same_recipe
from stabcli.comparison.likeness import Likeness, likeness
from stabcli.comparison.points import Common, Point, common, points, unit_of
from stabcli.comparison.sides import HELD_OUT, HIGHER, Side, sides
from stabcli.diagnosis import Diagnosis
from stabcli.units import Step

PAIRS = 5
"""Runs up to which every two are compared row by row; of more, each with the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Several runs side by side."""

    sides: tuple[Side, ...]
    """The runs in the order given."""
    metric: str | None
    """What they are compared by; None where they have nothing in common."""
    differences: tuple[Difference, ...]
    """Settings in which they differ, those known to differ first."""
    shared: tuple[str, ...]
    """Settings that are known to be the same in all."""
    points: tuple[Point, ...]
    """Where they stood at the same steps or after the same tokens."""
    common: Common | None
    """Their levels at the last point that all reached."""
    pairs: tuple[Likeness, ...]
    """How alike every two are."""
    twins: tuple[tuple[str, str], ...]
    """Pairs of which nothing tells that they were trained differently."""
    choice: Choice
    notes: tuple[str, ...]
    """What the comparison rests on."""

    @property
    def higher(self) -> bool:
        """Whether more of the metric is better."""
        return self.metric in HIGHER


def compare(diagnoses: Sequence[Diagnosis], at: Sequence[Step] = ()) -> Comparison:
    """Put runs side by side.

    Args:
        diagnoses: The runs, at least two.
        at: Steps to compare at; a few that all runs reached where none are given.
    """
    made, metric = sides(diagnoses)
    unit, why = unit_of(made)
    differing, shared = differences(made)
    if len(made) <= PAIRS:
        chosen = list(combinations(made, 2))
    else:
        chosen = [(made[0], other) for other in made[1:]]
    shown = points(made, at, unit)
    notes = [why if metric else "the runs have no metric in common"]
    if metric and not shown:
        notes.append("the runs have no stretch in common")
    if metric and any(s.run.has(m) for s in made for m in ("val_loss", "val_perplexity")):
        notes.append("held-out figures are taken to be of the same data in all runs")
    vocabularies = [s.run.fact("vocab_size") for s in made]
    if any(v is None for v in vocabularies) and any(v is not None for v in vocabularies):
        silent = ", ".join(s.key for s, v in zip(made, vocabularies, strict=True) if v is None)
        notes.append(f"the vocabulary of {silent} is not told: losses are compared all the same")
    restarted = [s.key for s in made if bool(s.run.frame["discarded"].any())]
    if restarted:
        notes.append(f"steps that a restart took back are left out ({', '.join(restarted)})")
    for name in dict.fromkeys([metric, *HELD_OUT] if metric else HELD_OUT):
        ended = [f"{s.key}, {late}" for s in made if (late := s.gone(name))]
        if ended:
            notes.append(f"{name} at the end is unknown: {'; '.join(ended)}")
    return Comparison(
        sides=made,
        metric=metric,
        differences=differing,
        shared=shared,
        points=shown,
        common=common(made, unit),
        pairs=tuple(likeness(a, b) for a, b in chosen),
        twins=tuple((a.key, b.key) for a, b in chosen if same_recipe(a, b)),
        choice=choose(made, metric),
        notes=tuple(notes),
    )
