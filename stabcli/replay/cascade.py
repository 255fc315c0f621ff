"""The cascade: from a flagged batch and a checkpoint to a verdict, cheapest question first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from stabcli.replay import proof, screening, static, words
from stabcli.replay.batch import Batch
from stabcli.replay.controls import Calibration, calibrate
from stabcli.replay.explain import Excess, Explanation, Race
from stabcli.replay.nonfinite import first_nonfinite, in_float32, is_short
from stabcli.replay.probes import Grid, Measurement, Probe, examined
from stabcli.replay.repair import Repairs
from stabcli.replay.screening import Screened
from stabcli.replay.state import bad_state, bisect
from stabcli.replay.verdict import Culprit, Kind, TokenMap, Unit, Verdict
from stabcli.replay.weights import WeightReport, weigh

DIFFUSE = 0.6
"""Part of the excess below which a set is not called the culprit but the batch hard."""
MARGIN = 0.4
"""By how much a set must explain more than a placebo set of its size."""
WHOLE_ROWS = 0.9
"""Part of their sequences that stretches cover when the sequences are named instead."""
DRIFT = 0.1
"""Part of the excess that two runs of the same sequences may differ by and still be trusted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What is known of the run; None = unknown, and said so in the verdict."""

    logged_loss: float | None = None
    """Loss the log has for the flagged step."""
    logged_grad_norm: float | None = None
    """Gradient norm before clipping that the log has for the flagged step."""
    usual_loss: float | None = None
    """Median loss of the steps before the incident."""
    usual_grad_norm: float | None = None
    """Median gradient norm of the steps before the incident."""
    checkpoint_step: int | None = None
    """Step of the checkpoint the model was loaded from."""
    older_step: int | None = None
    """Step of the older checkpoint, where one is given."""
    mapping_correlation: float | None = None
    """Correlation of replayed and logged losses over neighbouring steps, where it was measured;
    None = nobody proved that these are the samples of that step."""
    tokenizer_size: int | None = None
    """IDs the tokenizer can produce: rows of the embedding beyond it are padding."""
    pad_id: int | None = None
    """ID used for padding, where there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to replay; the defaults are right for most."""

    micro_rows: int | None = None
    """Sequences a forward pass takes at once; None = all of them."""
    seed: int = 0
    """Of the placebo sets."""


def replay(
    model: nn.Module,
    batch: Batch,
    references: Sequence[Batch],
    *,
    context: Context = Context(),
    settings: Settings = Settings(),
    older: nn.Module | None = None,
    second_moment_VD: Tensor | None = None,
    calibration: Calibration | None = None,
    probe: Probe | None = None,
) -> Verdict:
    """Run the batch on the model again and say what was wrong with it.

    Args:
        model: Maps tokens to logits of every position: a Hugging Face causal LM, or a module that
            returns logits (or a tuple that begins with them). It is left as it was, bit for bit,
            without gradients. Batches are sent to where its embedding stands.
        batch: The flagged batch.
        references: At least two clean batches of the same size, best from neighbouring steps.
        context: What the log and the checkpoint say.
        settings: How to replay.
        older: The same model from an earlier checkpoint: tells a bad batch from a bad meeting of
            batch and state.
        second_moment_VD: Adam's ``exp_avg_sq`` of the embedding: tells never-trained IDs.
        calibration: What ``calibrate`` gave for this checkpoint, where it is already known.
        probe: How passes are made, where not plainly: a sharded model's.

    Returns:
        The verdict, whatever it is.

    Raises:
        ReplayError: The model or the batch cannot be used at all.
    """
    probe = probe or Probe(model, settings.micro_rows)
    with examined(model):
        work = _Replay(probe, batch, references, context, settings, older)
        return work.run(second_moment_VD, calibration)


@dataclass(slots=True)
class _Replay:
    """One replay under way: what was found so far."""

    probe: Probe
    batch: Batch
    references: Sequence[Batch]
    context: Context
    settings: Settings
    older: nn.Module | None
    evidence: list[str] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    numbers: dict[str, float] = field(default_factory=dict)
    leads: list[Culprit] = field(default_factory=list)
    notes: dict[int, str] = field(default_factory=dict)
    measured: Measurement | None = None
    calibration: Calibration | None = None

    def run(self, second_moment_VD: Tensor | None, calibration: Calibration | None) -> Verdict:
        """Ask the questions in turn; the first that settles it is the answer."""
        settled = self._static() or self._weights(second_moment_VD)
        if settled is not None:
            return settled
        spent = self.probe.forward_tokens, self.probe.backward_tokens
        cal = calibration or calibrate(self.probe, self.references, self.batch.sequences)
        self.probe.forward_tokens, self.probe.backward_tokens = spent
        self.calibration = cal
        settled = self._state(cal)
        if settled is not None:
            return settled
        grid = Grid.of(self.batch)
        m = self.probe.measure(grid, backward=True, shares=True)
        self._note_measurement(m, cal)
        if not (math.isfinite(m.loss) and math.isfinite(m.grad_norm or 0.0)):
            return self._nonfinite(grid, m, cal)
        repairs = Repairs(self.probe, grid, m)
        excess = Excess.of(m, cal)
        settled = self._format(grid, excess)
        if settled is not None:
            return settled
        found = screening.screen(cal, grid, m, repairs)
        race = Race(grid, found, excess, repairs, self.probe.rows_V)
        explanations = race.run(self._lead_ids(found), m.row_norms_V)
        if not excess.any:
            return self._in_band(grid, m, found, explanations)
        return self._spike(grid, m, found, race, explanations)

    def _static(self) -> Verdict | None:
        context = self.context
        oddities = static.inspect(
            self.batch,
            self.probe.rows_V,
            pad_id=context.pad_id,
            tokenizer=context.tokenizer_size,
        )
        if self.batch.labels_BT is None:
            self.not_checked.append("label faults: the batch came without labels")
        if (
            self.batch.labels_BT is None
            and self.batch.loss_mask_BT is None
            and context.pad_id is None
        ):
            self.not_checked.append("padding in the loss: no padding ID, no loss mask")
        for oddity in oddities:
            self.evidence.append(oddity.text)
            if oddity.kind is not None:
                unit: Unit = (
                    "ids" if any(c.token_id is not None for c in oddity.culprits) else "segments"
                )
                return self._verdict(
                    oddity.kind, unit=unit, culprits=oddity.culprits, confidence="high"
                )
            self.leads += oddity.culprits
            self.notes |= {c.token_id: c.note for c in oddity.culprits if c.token_id is not None}
        return None

    def _weights(self, second_moment_VD: Tensor | None) -> Verdict | None:
        ids = self.batch.tokens_BT.unique().tolist()
        report: WeightReport = weigh(self.probe.model, ids, second_moment_VD)
        self.notes |= report.odd_rows
        if report.absurd:
            self.evidence.append(f"single weights far beyond all others in {report.absurd[0]}")
        if second_moment_VD is None:
            self.not_checked.append("which IDs were never trained: no optimizer state")
        if not report.nonfinite:
            return None
        self.evidence.append(f"not finite: {', '.join(report.nonfinite[:4])}")
        hit = [i for i in report.nonfinite_rows if i in set(ids)]
        culprits = static.ids_at(self.batch.tokens_BT, hit, note="non-finite embedding row")
        return self._verdict(
            "checkpoint-nonfinite",
            unit="ids" if hit else None,
            culprits=culprits,
            confidence="high",
        )

    def _state(self, cal: Calibration) -> Verdict | None:
        context = self.context
        usual_loss, usual_norm = context.usual_loss, context.usual_grad_norm
        self.numbers |= {
            "control_loss": cal.loss.middle, "control_grad_norm": cal.grad_norm.middle,
            "loss_band": cal.loss.limit, "grad_norm_band": cal.grad_norm.limit,
            "controls": float(cal.batches),
        }  # fmt: skip
        then: Calibration | None = None
        if usual_loss is None and self.older is not None:
            with examined(self.older):
                then = calibrate(Probe(self.older, self.settings.micro_rows), self.references, 1)
            usual_loss, usual_norm = then.loss.middle, then.grad_norm.middle
        if usual_loss is None:
            self.not_checked.append(
                "whether the weights were already bad: no loss level of the log, no older checkpoint"
            )
        why = bad_state(cal, usual_loss, usual_norm, self.probe.rows_V)
        if why is None:
            return None
        self.evidence.insert(0, why)
        if self.older is not None and usual_loss is not None:
            control = Grid.of(self.references[0])
            result = bisect(self.probe, self.older, control, usual_loss + 0.35)
            self.evidence.append(words.bisection(result))
        return self._verdict("state-fault", confidence="high" if self.older else "medium")

    def _note_measurement(self, m: Measurement, cal: Calibration) -> None:
        self.measured = m
        self.numbers |= {"loss": m.loss, "grad_norm": m.grad_norm or 0.0}
        if m.coverage is not None:
            self.numbers["share_coverage"] = m.coverage
            if not 0.99 <= m.coverage <= 1.01:
                self.not_checked.append(
                    f"{1 - m.coverage:.0%} of the squared gradient norm: layers without a share"
                )
        self.evidence.append(words.levels(m, cal))

    def _nonfinite(self, grid: Grid, m: Measurement, cal: Calibration) -> Verdict:
        where = first_nonfinite(self.probe, grid)
        if where is not None:
            self.evidence.insert(0, words.blowup(where))
        culprits: tuple[Culprit, ...] = ()
        if where is not None and where.positions:
            ids = sorted({int(grid.tokens_BS[place]) for place in where.positions})
            places = frozenset(where.positions)
            everywhere = {(b, c) for i in ids for b, c in (grid.tokens_BS == i).nonzero().tolist()}
            by_ids = len(ids) <= 8 and everywhere == places
            explanation = Explanation(
                unit="ids" if by_ids else "segments", ids=tuple(ids) if by_ids else (),
                places=places, bits=0.0, residual=0.0,
            )  # fmt: skip
            culprits = proof.culprits_of(
                explanation, grid, m, explained=None, role=None, notes=self.notes
            )
        if is_short(self.probe.model):
            with in_float32(self.probe.model):
                wide = self.probe.measure(grid, backward=True)
            self.numbers |= {"loss_float32": wide.loss, "grad_norm_float32": wide.grad_norm or 0.0}
            if math.isfinite(wide.loss) and math.isfinite(wide.grad_norm or 0.0):
                self.evidence.append(
                    f"in float32 the same batch has loss {wide.loss:.3f}, "
                    f"gradient norm {wide.grad_norm:.3g}"
                )
                return self._verdict(
                    "number-format", unit="segments" if culprits else None, culprits=culprits,
                    confidence="high",
                )  # fmt: skip
        else:
            self.not_checked.append("the number format of the run: the checkpoint is in float32")
        if culprits:
            fixed = Repairs(self.probe, grid, m).losses(
                frozenset(c for k in culprits for c in k.positions)
            )
            if math.isfinite(fixed.loss) and fixed.loss <= cal.loss.limit:
                self.evidence.append(f"without these tokens the loss is {fixed.loss:.3f}")
                by_ids = culprits[0].token_id is not None
                kind: Kind = "data-ids" if by_ids else "data-segments"
                unit: Unit = "ids" if by_ids else "segments"
                return self._verdict(kind, unit=unit, culprits=culprits, confidence="medium")
        return self._verdict("inconclusive", culprits=culprits)

    def _format(self, grid: Grid, excess: Excess) -> Verdict | None:
        """In a short format, whether float32 sees the spike too."""
        if not excess.any or not is_short(self.probe.model):
            return None
        with in_float32(self.probe.model):
            wide = Excess.of(self.probe.measure(grid, backward=True), excess.calibration)
        self.numbers |= {"loss_float32": wide.loss, "grad_norm_float32": wide.grad_norm}
        if wide.any:
            return None
        self.evidence.insert(
            0, f"in float32 the same batch is in the band: loss {wide.loss:.3f}, "
            f"gradient norm {wide.grad_norm:.3g}",
        )  # fmt: skip
        return self._verdict("number-format", confidence="medium")

    def _lead_ids(self, found: Screened) -> list[int]:
        """IDs that something without a pass points to, those in flagged stretches first."""
        repeated = {
            int(self.batch.tokens_BT[place])
            for lead in self.leads
            if lead.note.startswith("period")
            for place in lead.positions
        }
        ids = [*self.notes, *(repeated if len(repeated) <= 3 else ())]
        ids += [each.token_id for each in found.own_ids]
        return list(dict.fromkeys(ids))

    def _in_band(
        self, grid: Grid, m: Measurement, found: Screened, explanations: list[Explanation]
    ) -> Verdict:
        context, cal = self.context, self.calibration
        assert cal is not None
        spiked = (context.logged_loss is not None and context.logged_loss > cal.loss.limit) or (
            context.logged_grad_norm is not None and context.logged_grad_norm > cal.grad_norm.limit
        )
        culprits: tuple[Culprit, ...] = ()
        unit: Unit | None = None
        if explanations:
            unit = explanations[0].unit
            culprits = proof.culprits_of(
                explanations[0], grid, m, explained=None, role=None, notes=self.notes
            )
        self._list(found, grid, m, explanations[:1])
        if spiked:
            self.evidence.insert(0, words.spiked(context, m))
            self.not_checked += words.why_not_reproduced(context, self.batch.step)
            return self._verdict(
                "not-reproduced", unit=unit, culprits=culprits, confidence="medium"
            )
        if culprits:
            return self._verdict("anomalies", unit=unit, culprits=culprits, confidence="medium")
        return self._verdict("no-fault", confidence="medium")

    def _spike(
        self,
        grid: Grid,
        m: Measurement,
        found: Screened,
        race: Race,
        explanations: list[Explanation],
    ) -> Verdict:
        best = explanations[0] if explanations else None
        if best is None:
            held_BS = m.share_BS if race.excess.in_norm and m.share_BS is not None else m.loss_BS
            best = race.sequences(held_BS.sum(1).argsort(descending=True).tolist())
        if best is None:
            self._list(found, grid, m, [])
            return self._verdict("hard-data", confidence="low")
        tested = proof.prove(
            best, grid, race.excess, race.repairs, found.places, self.settings.seed
        )
        self.numbers |= {
            "explained": tested.explained, "placebo": tested.placebo,
            "untrained": tested.untrained, "tests": float(race.repairs.tests),
            "drift": race.repairs.drift,
        }  # fmt: skip
        if tested.sufficient is not None:
            self.numbers["sufficient"] = tested.sufficient
        else:
            self.not_checked.append("sufficiency: no control has the shape of the batch")
        self.evidence[:0] = words.proof(tested)
        culprits = proof.culprits_of(
            best, grid, m, explained=tested.explained, role=tested.role, notes=self.notes
        )
        self._list(found, grid, m, [best])
        if race.repairs.drift > DRIFT * abs(race.excess.loss - race.excess.calibration.loss.middle):
            if race.excess.in_loss:
                self.evidence.append(
                    f"two runs of a sequence differ by {race.repairs.drift:.3g} nats"
                )
                return self._verdict("inconclusive", unit=best.unit, culprits=culprits)
        weak = tested.explained < DIFFUSE or tested.explained - max(0.0, tested.placebo) < MARGIN
        if weak:
            self.leads += culprits
            return self._verdict("hard-data", confidence="low")
        return self._verdict_of_data(grid, best, culprits, tested)

    def _verdict_of_data(
        self, grid: Grid, best: Explanation, culprits: tuple[Culprit, ...], tested: proof.Proof
    ) -> Verdict:
        unit = best.unit
        rows = {row for row, _ in best.places}
        if unit == "segments" and len(best.places) > WHOLE_ROWS * len(rows) * self.batch.length:
            unit = "sequences"
        kinds: dict[Unit, Kind] = {
            "ids": "data-ids", "segments": "data-segments", "sequences": "data-sequences",
        }  # fmt: skip
        kind = kinds[unit]
        if self.older is None:
            self.not_checked.append("whether an older checkpoint takes the batch well: none given")
        else:
            then = self._on_older(grid)
            self.evidence.append(words.on_older(then))
            if not then.any:
                kind = "batch-x-state"
        sure = tested.explained >= 0.8 and tested.placebo <= 0.1
        both = sure and tested.sufficient is not None and tested.sufficient >= 0.5
        confidence = "high" if both else "medium" if sure else "low"
        return self._verdict(kind, unit=unit, culprits=culprits, confidence=confidence)

    def _on_older(self, grid: Grid) -> Excess:
        """The same batch on the older checkpoint, against the controls there."""
        assert self.older is not None
        with examined(self.older):
            probe = Probe(self.older, self.settings.micro_rows)
            cal = calibrate(probe, self.references, self.batch.sequences)
            return Excess.of(probe.measure(grid, backward=True), cal)

    def _list(self, found: Screened, grid: Grid, m: Measurement, best: list[Explanation]) -> None:
        """List the stretches that were flagged and are not wholly named."""
        named = best[0].places if best else frozenset()
        whole = [s for s in found.segments if not screening.places_of([s]) <= named]
        if whole:
            rest = Explanation(
                unit="segments", places=screening.places_of(whole), bits=0.0, residual=0.0
            )
            self.leads += proof.culprits_of(
                rest, grid, m, explained=None, role=None, notes=self.notes
            )

    def _verdict(
        self, kind: Kind, *, unit: Unit | None = None, culprits: tuple[Culprit, ...] = (),
        confidence: words.Confidence = "low",
    ) -> Verdict:  # fmt: skip
        m, context, size = self.measured, self.context, self.batch.tokens_BT.numel()
        tokens = None
        if m is not None:
            share_BT = None
            if m.share_BS is not None and m.grad_norm:
                share_BT = m.share_BS[:, :-1] / m.grad_norm**2
            tokens = TokenMap(
                loss_BT=m.loss_BS[:, :-1], surprise_BT=m.surprise_BS[:, :-1], share_BT=share_BT
            )
        if context.mapping_correlation is None and kind.startswith("data"):
            self.not_checked.append(
                "whether these are the samples of that step: mapping not verified"
            )
        return Verdict(
            kind=kind, unit=unit if culprits else None, culprits=culprits, listed=tuple(self.leads),
            evidence=tuple(self.evidence), confidence=confidence,
            not_checked=tuple(dict.fromkeys(self.not_checked)),
            actions=words.actions(kind, unit, culprits),
            numbers=self.numbers, forward_passes=self.probe.forward_tokens / size,
            backward_passes=self.probe.backward_tokens / size, step=self.batch.step,
            checkpoint_step=context.checkpoint_step, tokens=tokens,
        )  # fmt: skip
