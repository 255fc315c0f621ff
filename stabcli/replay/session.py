"""A replay from files to findings: read, plan, load, prove, replay, tell."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from stabcli.errors import ReplayError
from stabcli.replay import account, memory
from stabcli.replay.batch import Batch
from stabcli.replay.cascade import Context, Settings, replay
from stabcli.replay.checkpoint import DTYPES, Loaded, base_of, load, open_checkpoint
from stabcli.replay.checkpoint_hf import hf_config
from stabcli.replay.choosing import Chosen, Request, choose
from stabcli.replay.controls import Calibration, calibrate
from stabcli.replay.forward import embedding_of
from stabcli.replay.optimizer import Moments, adam_of, jumps, moments_of
from stabcli.replay.pieces import Recorded
from stabcli.replay.probes import Grid, Probe, examined
from stabcli.replay.processes import Group, together
from stabcli.replay.state import LEVEL_TOLERANCE
from stabcli.replay.stored import Stored
from stabcli.replay.texts import Texts, beside
from stabcli.replay.verdict import Kind, Verdict
from stabcli.replay.window import Window, damages, judged

ANOTHER_VOCABULARY = 0.1
"""Part of a batch's IDs beyond the vocabulary from which it was made for another model: a corrupted
batch holds a few such IDs, and naming them is the verdict."""
UNPROVEN: tuple[Kind, ...] = (
    "state-fault", "checkpoint-nonfinite", "number-format", "invalid-input", "label-fault",
)  # fmt: skip
"""Verdicts that stand though clean batches are off the log's level: they say why, or need no model."""

MOMENT_BYTES = 8
"""Bytes a parameter of Adam's two moments in float32."""

Tell = Callable[[str], None]
"""Takes a line of progress."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Level:
    """Clean batches on the checkpoint beside what the log has for them."""

    replayed: float
    logged: float | None

    @property
    def proven(self) -> bool | None:
        """Whether the checkpoint was loaded right; None where no loss was logged."""
        if self.logged is None:
            return None
        return abs(self.replayed - self.logged) <= LEVEL_TOLERANCE


def plan(request: Request) -> list[tuple[str, str]]:
    """Return the memory and passes of a replay as labels and texts; nothing is loaded.

    Raises:
        ReplayError: Something asked for does not exist or does not fit.
    """
    chosen, stored = choose(request), open_checkpoint(request.checkpoint)
    group = Group(device=memory.device_of(request.device))
    made, _ = _plan(request, chosen, stored, group)
    return made.lines()


def _plan(
    request: Request, chosen: Chosen, stored: Stored, group: Group
) -> tuple[memory.Plan, Any]:
    if request.dtype not in DTYPES:
        raise ReplayError(f"--dtype {request.dtype}: one of {', '.join(DTYPES)}")
    base = base_of(stored, request.model)
    folder = (base or stored).where if request.model is None or base else Path(request.model)
    config = hf_config(folder) if (folder / "config.json").is_file() else None
    first = chosen.flagged[0].batch
    _fits_context(config, first)
    made = memory.plan(
        stored, config, rows=first.sequences, length=first.length,
        references=len(chosen.controls), dtype=DTYPES[request.dtype],
        device=group.device, base=base, world=group.world,
    )  # fmt: skip
    return made, config


def _fits_context(config: Any, batch: Batch) -> None:
    for name in ("max_position_embeddings", "n_positions", "block_size", "max_seq_len"):
        most = getattr(config, name, None)
        if isinstance(most, int) and 0 < most < batch.length:
            raise ReplayError(
                f"{batch.source}: sequences of {batch.length:,} positions, the model's context is"
                f" {most:,}: give the batch as the model saw it"
            )


def run(request: Request, tell: Tell) -> dict[str, Any]:
    """Replay what was asked for.

    Returns:
        All that reports may tell, as plain values.

    Raises:
        ReplayError: It cannot be replayed.
    """
    with together(request.device, request.shard) as group:
        tell("reading the batches")
        chosen = choose(request)
        stored = open_checkpoint(request.checkpoint)
        made, config = _plan(request, chosen, stored, group)
        memory.check(made)
        texts, note = _texts(request)
        chosen = replace(chosen, notes=(*chosen.notes, *note))
        tell(f"loading {request.checkpoint}")
        loaded = _loaded(request, stored, group)
        _fits_context(getattr(loaded.model, "config", config), chosen.flagged[0].batch)
        older = None
        if request.older is not None:
            if group.world > 1:
                raise ReplayError("--older: not under torchrun: compare in one process")
            older = _loaded(request, open_checkpoint(request.older), group)
        with examined(loaded.model):
            return _replayed(request, chosen, made, loaded, older, texts, tell, group)


def _loaded(request: Request, stored: Stored, group: Group) -> Loaded:
    dtype = DTYPES[request.dtype]
    return load(stored, model=request.model, dtype=dtype, device=group.loads_on)


def _wide(
    request: Request, stored: Stored, made: memory.Plan, group: Group
) -> Callable[[], Probe | None]:
    """What loads a spread model once more, in float32 and spread alike, where there is room for it."""

    def once_more() -> Probe | None:
        wide = made.float32(group.world)
        if not group.agreed(wide < memory.SPARE * memory.free(group.device)):
            return None
        model = group.spread(_loaded(request, stored, group).model.float().eval())
        return group.probe(model, 1)

    return once_more


def _texts(request: Request) -> tuple[Texts, tuple[str, ...]]:
    """The tokenizer asked for, or the checkpoint's own if it can be read."""
    if request.tokenizer is not None:
        return Texts(request.tokenizer), ()
    try:
        return Texts(beside(request.checkpoint)), ()
    except ReplayError as error:
        return Texts(None), (str(error).removeprefix("--"),)


def _replayed(
    request: Request, chosen: Chosen, made: memory.Plan, loaded: Loaded, older: Loaded | None,
    texts: Texts, tell: Tell, group: Group,
) -> dict[str, Any]:  # fmt: skip
    moments, why_no_adam = _moments(loaded, made)
    table = embedding_of(loaded.model).weight
    own = next((n for n, p in loaded.model.named_parameters() if p is table), "")
    moment_VD = moments[own]["exp_avg_sq"] if own in moments else None
    adam = None
    if moments and (group.world > 1 or not _room(made)):
        why_no_adam = "only the embedding's state: there is no room for all of it"
    elif moments:
        adam = adam_of(loaded.model, moments, loaded.stored.optimizer())
    group = group.decided(request.shard, loaded.model, chosen.flagged[0].batch.sequences)
    model = group.spread(loaded.model)
    probe = group.probe(model, made.micro_rows)
    vocabulary(probe, chosen, texts)
    calibration = level = correlation = None
    controls = [r.batch for r in chosen.controls]
    if not loaded.nonfinite:
        if chosen.proof is not None:
            tell(f"proving the samples on {len(chosen.neighbours)} neighbouring steps")
            grids = [Grid.of(r.batch) for r in chosen.neighbours]
            correlation = chosen.proof([probe.measure(grid).loss for grid in grids])
        tell(f"measuring {len(controls)} control batches")
        calibration = calibrate(probe, controls, chosen.flagged[0].batch.sequences)
        level = _level(chosen, calibration)
    wide = _wide(request, loaded.stored, made, group)
    settings = Settings(micro_rows=made.micro_rows)
    cases = []
    for recorded in chosen.flagged:
        at = "" if recorded.batch.step is None else f" of step {recorded.batch.step:,}"
        tell(f"replaying the batch{at}")
        context = _context(chosen, recorded, loaded, older, texts, correlation)
        passes = group.probe(model, made.micro_rows)
        passes.wide = wide
        verdict = replay(
            model, recorded.batch, controls, context=context, settings=settings,
            older=None if older is None else older.model, second_moment_VD=moment_VD,
            calibration=calibration, probe=passes,
        )  # fmt: skip
        verdict = _weighed(verdict, level, older, request)
        moved = _moved(probe, recorded, adam) if verdict.unit or verdict.kind == "hard-data" else []
        cases.append(account.case(recorded, verdict, texts if request.text else None, moved))
    window = _window(probe, chosen, calibration, adam, tell)
    return account.document(
        request=request, loaded=loaded, plan=made, chosen=chosen, calibration=calibration,
        level=level, correlation=correlation, cases=cases, window=window,
        no_adam=why_no_adam, vocabulary=probe.rows_V,
    )  # fmt: skip


def _moments(loaded: Loaded, made: memory.Plan) -> tuple[Moments, str]:
    """The optimizer's moments, where the checkpoint has them and memory can hold them."""
    if MOMENT_BYTES * made.parameters > memory.SPARE * memory.free("cpu"):
        return {}, "the optimizer state does not fit the memory"
    return moments_of(loaded.model, loaded.stored.optimizer())


def _room(made: memory.Plan) -> bool:
    """Whether Adam fits beside the model; passes need what the plan says."""
    return made.needed + MOMENT_BYTES * made.parameters < memory.SPARE * made.available


def vocabulary(probe: Probe, chosen: Chosen, texts: Texts) -> None:
    """Refuse batches or a tokenizer that were made for another model.

    Raises:
        ReplayError: They were.
    """
    rows = probe.rows_V
    for recorded in (*chosen.controls, *chosen.flagged, *chosen.neighbours):
        tokens_BT = recorded.batch.tokens_BT
        outside = float(((tokens_BT < 0) | (tokens_BT >= rows)).double().mean())
        clean = not any(recorded is f for f in chosen.flagged)
        if outside > (0 if clean else ANOTHER_VOCABULARY):
            raise ReplayError(
                f"{recorded.batch.source}: {outside:.1%} of its IDs are beyond the {rows:,} of the"
                " model: it was made with another tokenizer"
            )
    if texts.size is not None and texts.size > rows:
        raise ReplayError(
            f"--tokenizer: it has {texts.size:,} IDs, the model {rows:,}: it is another model's"
        )


def _level(chosen: Chosen, calibration: Calibration) -> Level:
    logged = [r.loss for r in chosen.controls if r.loss is not None and math.isfinite(r.loss)]
    if not logged:
        step = chosen.flagged[0].batch.step
        usual = None if step is None else chosen.log.usual("loss", step)
        logged = [] if usual is None else [usual]
    return Level(replayed=calibration.loss.middle, logged=median(logged) if logged else None)


def _context(
    chosen: Chosen, recorded: Recorded, loaded: Loaded, older: Loaded | None, texts: Texts,
    correlation: float | None,
) -> Context:  # fmt: skip
    step, log = recorded.batch.step, chosen.log
    off = [r.batch.step for r in chosen.flagged if r.batch.step is not None]
    losses = [r.loss for r in chosen.controls if r.loss is not None and math.isfinite(r.loss)]
    norms = [r.grad_norm for r in chosen.controls if r.grad_norm is not None]
    norms = [n for n in norms if math.isfinite(n)]
    usual_loss = None if step is None else log.usual("loss", step, without=off)
    usual_norm = None if step is None else log.usual("grad_norm", step, without=off)
    return Context(
        logged_loss=_first(recorded.loss, None if step is None else log.loss.get(step)),
        logged_grad_norm=_first(
            recorded.grad_norm, None if step is None else log.grad_norm.get(step)
        ),
        usual_loss=_first(median(losses) if losses else None, usual_loss, chosen.usual.get("loss")),
        usual_grad_norm=_first(
            median(norms) if norms else None, usual_norm, chosen.usual.get("grad_norm")
        ),
        checkpoint_step=loaded.stored.step,
        older_step=None if older is None else older.stored.step,
        mapping_correlation=1.0 if chosen.recorded else correlation,
        tokenizer_size=texts.size,
        pad_id=texts.pad_id,
    )


def _first(*values: float | None) -> float | None:
    return next((v for v in values if v is not None), None)


def _weighed(
    verdict: Verdict, level: Level | None, older: Loaded | None, request: Request
) -> Verdict:
    """Say what the load was not proven of; refuse a verdict on a model that is not that run's.

    Raises:
        ReplayError: Clean batches are off the log's level, and the verdict does not say why.
    """
    if level is None:
        return verdict
    if level.proven is None:
        doubt = "that the checkpoint was loaded right: no logged loss to compare with; give --log"
        return replace(verdict, not_checked=(*verdict.not_checked, doubt))
    if level.proven:
        return verdict
    said = f"clean batches lose {level.replayed:.3g} nats on it, the log has {level.logged:.3g}"
    if verdict.kind not in UNPROVEN:
        raise ReplayError(
            f"{request.checkpoint}: {said}: not the model, the data or the tokenizer of that run,"
            " or far from that step"
        )
    if verdict.kind == "state-fault" and older is None:
        doubt = f"whether it is the model and the data of that run: {said}; --older settles it"
        return replace(verdict, confidence="low", not_checked=(*verdict.not_checked, doubt))
    return verdict


def _moved(
    probe: Probe, recorded: Recorded, adam: torch.optim.AdamW | None
) -> list[tuple[str, float]]:
    """Which parameters the batch would move, beside what Adam saw so far."""
    if adam is None:
        return []
    probe.measure(Grid.of(recorded.batch), backward=True)
    found = jumps(probe.model, adam)
    probe.clear()
    return found


def _window(
    probe: Probe,
    chosen: Chosen,
    calibration: Calibration | None,
    adam: torch.optim.AdamW | None,
    tell: Tell,
) -> Window:
    """Which of several steps did the damage; needs the optimizer, and at least three steps."""
    if adam is None or calibration is None or len(chosen.flagged) < 3:
        return Window()
    tell(f"taking {len(chosen.flagged)} steps one by one")
    controls = [r.batch for r in chosen.controls]
    batches = [r.batch for r in chosen.flagged]
    found = damages(probe, batches, controls, adam, clip=chosen.log.grad_clip)
    return judged(found, calibration)
