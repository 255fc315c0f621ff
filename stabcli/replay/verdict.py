"""What a replay concludes: what kind of fault, which tokens, how sure, what was not checked."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from torch import Tensor

Kind = Literal[
    "invalid-input",
    "label-fault",
    "checkpoint-nonfinite",
    "state-fault",
    "number-format",
    "data-ids",
    "data-segments",
    "data-sequences",
    "hard-data",
    "anomalies",
    "batch-x-state",
    "not-reproduced",
    "inconclusive",
    "no-fault",
]
KINDS: tuple[Kind, ...] = get_args(Kind)

MEANINGS: dict[Kind, str] = {
    "invalid-input": "the batch holds token IDs or targets that the model does not have",
    "label-fault": "the targets or the loss mask do not fit the tokens",
    "checkpoint-nonfinite": "the checkpoint itself holds NaN or infinite weights",
    "state-fault": "the weights were already bad: clean batches are off as well",
    "number-format": "the same batch is normal in float32: the number format overflowed",
    "data-ids": "the named token IDs did it: without them the batch is normal",
    "data-segments": "the named stretches of text did it: without them the batch is normal",
    "data-sequences": "the named sequences did it: without them the batch is normal",
    "hard-data": "the batch is hard as a whole: no small part of it explains the spike",
    "anomalies": "odd tokens are listed, but loss and gradient norm are in the usual band",
    "batch-x-state": "the named tokens and this checkpoint together: an older one takes them well",
    "not-reproduced": "replay is normal where the log spiked",
    "inconclusive": "the evidence does not settle it",
    "no-fault": "loss, gradient norm and every token are as in the control batches",
}
"""One sentence a kind, the same in every report."""

Confidence = Literal["high", "medium", "low"]
Unit = Literal["ids", "segments", "sequences"]
Role = Literal["target", "context", "both"]
"""How tokens do harm: by being predicted badly, by spoiling the predictions after them, or both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """One token ID, one stretch of one sequence, or one whole sequence."""

    token_id: int | None = None
    """The ID, where the culprit is an ID wherever it stands."""
    sequence: int | None = None
    """Row of the batch, where the culprit is a stretch or a sequence."""
    first: int | None = None
    """First position of the stretch."""
    last: int | None = None
    """Last position of the stretch, inclusive."""
    positions: tuple[tuple[int, int], ...] = ()
    """Every place it covers, as (row, position)."""
    share: float | None = None
    """Part of the excess (of loss or gradient norm, whichever is out of band) that is its own."""
    gradient_share: float | None = None
    """Part of the batch's squared gradient norm that its positions hold."""
    loss: float | None = None
    """Mean loss of its tokens, in nats."""
    role: Role | None = None
    """How it does harm; None where it was not tested."""
    note: str = ""
    """What else is known of it: ``never trained``, ``period 3``, ``zero row``, …"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenMap:
    """Per-token measurements of the batch, for pictures; not part of the JSON."""

    loss_BT: Tensor
    """Loss of each *token* (the prediction that should have given it), nats; 0 where untrained.
    Column 0 is never predicted."""
    surprise_BT: Tensor
    """(loss - entropy) / standard deviation of the loss the model itself expected there."""
    share_BT: Tensor | None
    """Part of the squared gradient norm that enters the weights at each position; sums to 1."""
    threshold: dict[str, float] = field(default_factory=dict)
    """Largest usual value of ``loss``, ``surprise`` and ``share`` for one token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The conclusion of a replay."""

    kind: Kind
    """What kind of fault it is."""
    unit: Unit | None = None
    """In what the culprits are counted, where there are any."""
    culprits: tuple[Culprit, ...] = ()
    """The smallest set found whose repair makes the batch normal, most harmful first.
    With ``anomalies`` and ``invalid-input``: what is odd, without the claim."""
    listed: tuple[Culprit, ...] = ()
    """Other stretches out of the ordinary: leads, not culprits."""
    evidence: tuple[str, ...] = ()
    """Sentences with the figures the verdict rests on, most telling first."""
    confidence: Confidence = "low"
    """``high`` only where repair, placebo and sufficiency were all tested and agree."""
    not_checked: tuple[str, ...] = ()
    """What could not be looked at, and what would let it be."""
    actions: tuple[str, ...] = ()
    """What to do next, most useful first."""
    numbers: dict[str, float] = field(default_factory=dict)
    """Measured figures by name: ``loss``, ``grad_norm``, ``loss_band``, ``grad_norm_band``,
    ``explained``, ``placebo``, ``sufficient``, ``share_coverage``, ``checkpoint_age`` (steps from
    the checkpoint to the batch), …; absent = not measured."""
    forward_passes: float = 0.0
    """Forward passes spent, in units of the batch; control batches are not counted."""
    backward_passes: float = 0.0
    """Backward passes spent, in units of the batch."""
    step: int | None = None
    """Step of the batch."""
    checkpoint_step: int | None = None
    """Step of the checkpoint it was replayed on."""
    tokens: TokenMap | None = field(default=None, compare=False, repr=False)
    """Per-token measurements, where a forward pass was made."""

    @property
    def meaning(self) -> str:
        """The kind in a sentence."""
        return MEANINGS[self.kind]

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The IDs among the culprits."""
        return tuple(c.token_id for c in self.culprits if c.token_id is not None)

    @property
    def positions(self) -> frozenset[tuple[int, int]]:
        """Every place of every culprit."""
        return frozenset(place for culprit in self.culprits for place in culprit.positions)

    def as_json(self) -> dict[str, Any]:
        """Plain values for ``json.dumps(allow_nan=False)``; per-token maps are left out."""
        plain: dict[str, Any] = {"kind": self.kind, "meaning": self.meaning, "unit": self.unit}
        plain["culprits"] = [_culprit(culprit) for culprit in self.culprits]
        plain["listed"] = [_culprit(culprit) for culprit in self.listed]
        for name in ("evidence", "not_checked", "actions"):
            plain[name] = list(getattr(self, name))
        plain["confidence"] = self.confidence
        plain["numbers"] = {name: _number(value) for name, value in self.numbers.items()}
        plain["passes"] = {
            "forward": round(self.forward_passes, 3),
            "backward": round(self.backward_passes, 3),
        }
        plain["step"] = self.step
        plain["checkpoint_step"] = self.checkpoint_step
        return plain


def _culprit(culprit: Culprit) -> dict[str, Any]:
    return {
        "token_id": culprit.token_id,
        "sequence": culprit.sequence,
        "first": culprit.first,
        "last": culprit.last,
        "positions": [list(place) for place in culprit.positions],
        "share": _number(culprit.share),
        "gradient_share": _number(culprit.gradient_share),
        "loss": _number(culprit.loss),
        "role": culprit.role,
        "note": culprit.note,
    }


def _number(value: float | None) -> float | str | None:
    """The value, with NaN and infinities in words as everywhere in the project's JSON."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
