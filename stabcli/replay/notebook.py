"""What one replay was given and has found so far; it writes the verdict at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import nn

from stabcli.replay import proof, words
from stabcli.replay.batch import Batch
from stabcli.replay.context import Context, Settings
from stabcli.replay.explain import Explanation
from stabcli.replay.probes import Grid, Measurement, Probe
from stabcli.replay.screening import Segment, places_of
from stabcli.replay.verdict import Confidence, Culprit, Kind, TokenMap, Unit, Verdict


@dataclass(slots=True)
class Notebook:
    """One replay under way."""

    probe: Probe
    batch: Batch
    references: Sequence[Batch]
    context: Context
    settings: Settings
    older: nn.Module | None
    """The same model from an earlier checkpoint."""
    evidence: list[str] = field(default_factory=list)
    """Sentences, most telling first."""
    not_checked: list[str] = field(default_factory=list)
    """What could not be looked at."""
    numbers: dict[str, float] = field(default_factory=dict)
    """Figures by name."""
    leads: list[Culprit] = field(default_factory=list)
    """What is odd and not convicted."""
    notes: dict[int, str] = field(default_factory=dict)
    """What is known of IDs."""
    measured: Measurement | None = None
    """The batch as it is, once a pass was made."""

    @property
    def grid(self) -> Grid:
        """The batch, laid out."""
        return Grid.of(self.batch)

    def culprits(
        self, explanation: Explanation, tested: proof.Proof | None = None
    ) -> tuple[Culprit, ...]:
        """An explanation's tokens as culprits."""
        assert self.measured is not None
        return proof.culprits_of(
            explanation,
            self.grid,
            self.measured,
            explained=None if tested is None else tested.explained,
            role=None if tested is None else tested.role,
            notes=self.notes,
        )

    def list_rest(self, segments: list[Segment], best: Explanation | None) -> None:
        """List the stretches that were flagged and are not wholly named."""
        named = frozenset() if best is None else best.places
        rest = [s for s in segments if not places_of([s]) <= named]
        if rest:
            places = places_of(rest)
            whole = Explanation(unit="segments", places=places, bits=0.0, residual=0.0)
            self.leads += self.culprits(whole)

    def verdict(
        self,
        kind: Kind,
        *,
        unit: Unit | None = None,
        culprits: tuple[Culprit, ...] = (),
        confidence: Confidence = "low",
    ) -> Verdict:
        """Close the book."""
        m, context, size = self.measured, self.context, self.batch.tokens_BT.numel()
        tokens = None
        if m is not None:
            share_BT = None
            if m.share_BS is not None and m.grad_norm:
                share_BT = m.share_BS[:, :-1] / m.grad_norm**2
            tokens = TokenMap(
                loss_BT=m.loss_BS[:, :-1], surprise_BT=m.surprise_BS[:, :-1], share_BT=share_BT
            )
        if context.mapping_correlation is None and kind.startswith(("data", "batch")):
            self.not_checked.append(
                "whether these are the samples of that step: mapping not verified"
            )
        if self.batch.step is not None and context.checkpoint_step is not None:
            self.numbers["checkpoint_age"] = float(self.batch.step - context.checkpoint_step)
        return Verdict(
            kind=kind,
            unit=unit if culprits else None,
            culprits=culprits,
            listed=tuple(self.leads),
            evidence=tuple(self.evidence),
            confidence=confidence,
            not_checked=tuple(dict.fromkeys(self.not_checked)),
            actions=words.actions(kind, unit, culprits),
            numbers=self.numbers,
            forward_passes=self.probe.forward_tokens / size,
            backward_passes=self.probe.backward_tokens / size,
            step=self.batch.step,
            checkpoint_step=context.checkpoint_step,
            tokens=tokens,
        )
