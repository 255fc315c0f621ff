"""Which batches to replay, and which are clean: from dumps, from a scan's incident, from the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from stabcli.errors import LogError, ReplayError
from stabcli.replay.batch import Batch, positions_by
from stabcli.replay.data import DataSet, open_data, parse_spec
from stabcli.replay.load_batches import dumps_in, load_batches
from stabcli.replay.log import Flagged, Log, read_incidents, read_log
from stabcli.replay.mapping import STEPS, Order, agreement, check, order_of
from stabcli.replay.pieces import Labels, Recorded

FEW_CONTROLS = 4
"""Controls below which the limits are so wide that only a gross spike is told: with 2 the limit of
the loss is beyond any loss, with 3 at almost three times the usual."""
CONTROLS = 8
"""Control batches where the user does not say: what the research was measured with."""
NEIGHBOURS = 24
"""Neighbouring steps whose losses are compared to prove a mapping."""


Sharding = Literal["auto", "fsdp", "tp"]
"""What ``--shard`` may say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the user asked for."""

    checkpoint: Path
    batch: tuple[Path, ...] = ()
    incident: Path | None = None
    batches: Path | None = None
    data: str | None = None
    steps: tuple[int, int] | None = None
    references: str | None = None
    """A file with clean batches, or their number."""
    log: tuple[str, ...] = ()
    model: str | None = None
    older: Path | None = None
    device: str = "auto"
    dtype: str = "float32"
    tokenizer: Path | None = None
    text: bool = True
    labels: Labels = "auto"
    documents: int | None = None
    """ID that ends a document, where those of a sequence did not see one another in training."""
    shard: Sharding = "auto"
    """How a model is spread over the processes of torchrun."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chosen:
    """Batches to replay, and clean ones."""

    flagged: tuple[Recorded, ...]
    controls: tuple[Recorded, ...]
    log: Log
    notes: tuple[str, ...] = ()
    usual: Mapping[str, float] = field(default_factory=dict)
    """What the scan expected, by metric."""
    recorded: bool = False
    """Whether whoever trained wrote step and batch down together."""
    neighbours: tuple[Recorded, ...] = ()
    """Batches of neighbouring steps whose losses prove the mapping; empty where none is needed."""
    proof: Callable[[Sequence[float]], float] | None = None
    """Takes the losses of the neighbours, gives the correlation, refuses a wrong mapping."""


def choose(request: Request) -> Chosen:
    """Read what was asked for.

    Raises:
        ReplayError: It is not clear what to replay, or there are no clean batches.
        LogError: The log cannot be read.
    """
    ways = [bool(request.batch), request.incident is not None, request.data is not None]
    if sum(ways) != 1:
        raise ReplayError(
            "replay-batch: what to replay? give one of --batch, --incident and --data"
        )
    if request.incident is not None:
        found = _incident(request)
    elif request.data is not None:
        found = _from_data(request)
    else:
        log = read_log(request.log) if request.log else Log()
        found = _from_dumps(load_batches(request.batch, request.labels), request.steps, log)
    found = _usable(_with_references(found, request))
    return found if request.documents is None else _parted(found, request.documents)


def _parted(found: Chosen, end: int) -> Chosen:
    """Part the sequences that came without positions into documents."""

    def parted(recorded: Recorded) -> Recorded:
        batch = recorded.batch
        if batch.positions_BT is not None:
            return recorded
        positions_BT = positions_by(batch.tokens_BT, end)
        return replace(recorded, batch=replace(batch, positions_BT=positions_BT))

    if not any((r.batch.tokens_BT == end).any() for r in (*found.flagged, *found.controls)):
        raise ReplayError(
            f"--documents {end}: no batch holds this ID: give the one between documents"
        )
    return replace(
        found,
        flagged=tuple(map(parted, found.flagged)),
        controls=tuple(map(parted, found.controls)),
        neighbours=tuple(map(parted, found.neighbours)),
    )


def _from_dumps(recorded: list[Recorded], steps: tuple[int, int] | None, log: Log) -> Chosen:
    if steps is not None:
        first, last = steps
        flagged = [
            r for r in recorded if r.batch.step is not None and first <= r.batch.step <= last
        ]
        if not flagged:
            raise ReplayError(f"--steps {first}-{last}: not recorded: there are {_steps(recorded)}")
    else:
        flagged = [r for r in recorded if r.flagged]
        if not flagged and len(recorded) == 1:
            flagged = recorded
        if not flagged:
            raise ReplayError(
                f"--batch: {len(recorded)} batches, {_steps(recorded)}, and none is flagged: say"
                " which to replay with --steps"
            )
    kept = {id(r) for r in flagged}
    controls = [r for r in recorded if id(r) not in kept and not r.flagged]
    return Chosen(
        flagged=tuple(flagged),
        controls=tuple(controls),
        log=log,
        recorded=all(r.flagged is not None for r in flagged),
    )


def _steps(recorded: Sequence[Recorded]) -> str:
    known = [str(r.batch.step) for r in recorded if r.batch.step is not None]
    if not known:
        return "batches without a step"
    shown = ", ".join(known[:8]) + (" …" if len(known) > 8 else "")
    return f"step{'s' if len(known) > 1 else ''} {shown}"


def _incident(request: Request) -> Chosen:
    """The gravest incident of a scan that batches were recorded of."""
    assert request.incident is not None
    incidents = read_incidents(request.incident)
    if request.batches is None:
        raise ReplayError("--incident: where are the recorded batches? add --batches FOLDER")
    recorded = load_batches(dumps_in(request.batches), request.labels)
    for incident in incidents:
        inside = [r for r in recorded if _within(r.batch, incident)]
        if inside:
            break
    else:
        raise ReplayError(
            f"{request.incident}: no batch of an incident was recorded: incidents at steps"
            f" {', '.join(f'{i.first}..{i.last}' for i in incidents[:4])}, batches of"
            f" {_steps(recorded)}"
        )
    log, unread = _log_of_incident(request, incident)
    kept = {id(r) for r in inside}
    clean = [
        r for r in recorded
        if id(r) not in kept and not r.flagged
        and not any(_within(r.batch, i) for i in incidents if i.severity != "notice")
    ]  # fmt: skip
    note = f"incident {incident.rule}, steps {incident.first:,} to {incident.last:,}"
    return Chosen(
        flagged=tuple(inside), controls=tuple(clean), log=log, notes=(note, *unread),
        usual=incident.expected, recorded=all(r.flagged is not None for r in inside),
    )  # fmt: skip


def _within(batch: Batch, incident: Flagged) -> bool:
    return batch.step is not None and incident.first <= batch.step <= incident.last


def _log_of_incident(request: Request, incident: Flagged) -> tuple[Log, tuple[str, ...]]:
    """The log given, or the one that was scanned where it still is there."""
    if request.log or not Path(incident.source).exists():
        return (read_log(request.log) if request.log else Log()), ()
    try:
        return read_log([incident.source]), ()
    except LogError as error:
        return Log(), (f"the scanned log was not read again: {error}",)


def _from_data(request: Request) -> Chosen:
    """Batches of the data set itself, and of the steps around for the proof."""
    assert request.data is not None
    if request.steps is None:
        raise ReplayError("--data: of which steps? add --steps FIRST-LAST")
    first, last = request.steps
    spec = parse_spec(request.data)
    data = open_data(spec)
    order = order_of(spec, data)
    log = read_log(request.log) if request.log else Log()
    start = spec.whole("first", 1)
    before = [s for s in range(first - 1, start - 1, -1) if s in log.loss][:NEIGHBOURS]
    after = [s for s in range(last + 1, last + 1 + NEIGHBOURS) if s in log.loss]
    near = sorted(before if len(before) >= STEPS else [*before, *after[: NEIGHBOURS - len(before)]])
    if len(near) < STEPS:
        check(agreement([], []), request.data)
    neighbours = [_made(data, order, step, log) for step in near]
    shown = request.data.partition(",")[0]

    def proof(losses: Sequence[float]) -> float:
        return check(agreement(losses, [log.loss[s] for s in near]), shown)

    closest = sorted(neighbours, key=lambda r: abs((r.batch.step or 0) - first))
    usual = log.usual("loss", first)
    quiet = [r for r in closest if usual is None or _quiet(r.loss, usual)]
    return Chosen(
        flagged=tuple(_made(data, order, step, log) for step in range(first, last + 1)),
        controls=tuple(quiet),
        log=log,
        neighbours=tuple(neighbours),
        proof=proof,
    )


def _quiet(loss: float | None, usual: float) -> bool:
    """Whether the log has nothing to object to a step: a control must not be a fault itself."""
    return loss is not None and math.isfinite(loss) and abs(loss - usual) < 0.5 * abs(usual)


def _made(data: DataSet, order: Order, step: int, log: Log) -> Recorded:
    batch = data.batch(order(step), step)
    return Recorded(batch=batch, loss=log.loss.get(step), grad_norm=log.grad_norm.get(step))


def _with_references(found: Chosen, request: Request) -> Chosen:
    """Take the control batches that the user gave, or as many as wanted."""
    wanted, said = CONTROLS, request.references
    if said is not None and said.isdigit():
        wanted = int(said)
        if wanted < 2:
            raise ReplayError(f"--references {said}: at least 2 are needed to know what is usual")
    elif said is not None:
        clean = [r for r in load_batches([Path(said)], request.labels) if not r.flagged]
        taken = {r.batch.step for r in found.flagged if r.batch.step is not None}
        clean = [r for r in clean if r.batch.step not in taken]
        found = replace(found, controls=tuple(clean))
        wanted = max(CONTROLS, len(clean))
    anchor = next((r.batch.step for r in found.flagged if r.batch.step is not None), None)
    controls = list(found.controls)
    if anchor is not None:  # the nearest steps saw the model most like the flagged one did
        controls.sort(
            key=lambda r: abs((anchor if r.batch.step is None else r.batch.step) - anchor)
        )
    return replace(found, controls=tuple(controls[:wanted]))


def _usable(found: Chosen) -> Chosen:
    """Bring controls to the shape of what is judged; leave out those that have another.

    Raises:
        ReplayError: Fewer than two are left.
    """
    rows, length = found.flagged[0].batch.sequences, found.flagged[0].batch.length
    whole: list[Recorded] = []
    notes = list(found.notes)
    odd = [r for r in found.controls if r.batch.length != length]
    for control in found.controls:
        if control.batch.length == length:
            whole += _parts(control, rows)
    small = [r for r in whole if r.batch.sequences < max(1, rows // 2)]
    if len(whole) - len(small) >= 2:
        whole = [r for r in whole if r.batch.sequences >= max(1, rows // 2)]
        odd += small
    if odd:
        notes.append(f"{len(odd)} control batches of another shape were left out")
    if len(whole) < 2:
        raise ReplayError(
            f"references: {len(whole)} clean batches of {length} positions: at least 2 are needed to"
            " know what is usual: give some with --references FILE"
        )
    if len(whole) < FEW_CONTROLS:
        notes.append(
            f"only {len(whole)} control batches: the limits are wide, and a spike may pass for usual;"
            " give more with --references FILE"
        )
    return replace(
        found, controls=tuple(whole[: max(CONTROLS, len(found.controls))]), notes=tuple(notes)
    )


def _parts(control: Recorded, rows: int) -> list[Recorded]:
    """A control, or several of it where it has twice the sequences of what is judged."""
    count = control.batch.sequences // rows
    if count < 2:
        return [control]
    return [
        replace(control, batch=control.batch.rows(list(range(i * rows, (i + 1) * rows))))
        for i in range(count)
    ]
