"""Pieces of batches as files hold them, and how pieces of one step become its batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from stabcli.errors import ReplayError
from stabcli.replay.batch import IGNORED, Batch, shift_labels

Labels = Literal["auto", "next", "own"]
"""How labels lie: ``labels[t]`` is the token after ``t`` (next), token ``t`` itself (own, as Hugging
Face has them, and the model shifts), or whichever of the two they agree with (auto)."""

TOKEN_NAMES = ("input_ids", "tokens", "token_ids", "x", "inputs", "input", "idx")
LABEL_NAMES = ("labels", "y", "targets", "target_ids")
"""Names of the two in dumps; ``y`` and ``targets`` are always next tokens."""
MASK_NAMES = ("attention_mask", "loss_mask")
POSITION_NAME = "position_ids"
SAMPLE_NAMES = ("sample_ids", "sample_id", "ids", "uid")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Piece:
    """Sequences that one record of a file holds."""

    where: str
    """File and line, for messages."""
    tokens_BT: np.ndarray
    """Token IDs, int64."""
    labels_BT: np.ndarray | None = None
    labels_are: Labels = "auto"
    attention_mask_BT: np.ndarray | None = None
    loss_mask_BT: np.ndarray | None = None
    positions_BT: np.ndarray | None = None
    """Positions as the model was fed them."""
    sample_ids: tuple[str, ...] | None = None
    step: int | None = None
    loss: float | None = None
    """Loss that the trainer had."""
    grad_norm: float | None = None
    """Gradient norm that the trainer had, before clipping."""
    flagged: bool | None = None
    """Whether whoever wrote it objected to it; None where it does not say."""
    whole: bool = True
    """Whether these are all sequences of the step."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recorded:
    """A batch, and what is known of its step."""

    batch: Batch
    loss: float | None = None
    """Loss that was logged for it."""
    grad_norm: float | None = None
    """Gradient norm that was logged for it."""
    flagged: bool | None = None
    """Whether it was written down because of a spike; None where the file does not say."""
    notes: tuple[str, ...] = field(default=())
    """What reading it had to decide."""


def piece_of(fields: dict[str, Any], where: str) -> Piece:
    """Make a piece of what a record holds, by the names that dumps use.

    Raises:
        ReplayError: There are no token IDs in it, or something is not what its name says.
    """
    tokens_name = next((n for n in TOKEN_NAMES if fields.get(n) is not None), None)
    if tokens_name is None:
        held = ", ".join(map(str, list(fields)[:8])) or "nothing"
        raise ReplayError(f"{where}: no input_ids in it: it holds {held[:160]}")
    tokens_BT = grid(fields[tokens_name], f"{where}: {tokens_name}")
    found: dict[str, Any] = {}
    label_name = next((n for n in LABEL_NAMES if fields.get(n) is not None), None)
    if label_name is not None:
        found["labels_BT"] = grid(fields[label_name], f"{where}: {label_name}")
        found["labels_are"] = "auto" if label_name == "labels" else "next"
    if fields.get("labels_are") in ("next", "own"):
        found["labels_are"] = fields["labels_are"]
    for name in MASK_NAMES:
        if fields.get(name) is not None:
            found[f"{name}_BT"] = grid(fields[name], f"{where}: {name}") != 0
    if fields.get(POSITION_NAME) is not None:
        found["positions_BT"] = grid(fields[POSITION_NAME], f"{where}: {POSITION_NAME}")
    for name, value in found.items():
        if name.endswith("_BT") and value.shape != tokens_BT.shape:
            said = f"{value.shape[0]} x {value.shape[1]}"
            raise ReplayError(
                f"{where}: {name[:-3]} are {said}, {tokens_name}"
                f" {tokens_BT.shape[0]} x {tokens_BT.shape[1]}: give one a token"
            )
    return Piece(
        where=where,
        tokens_BT=tokens_BT,
        sample_ids=_sample_ids(fields, len(tokens_BT), where),
        step=_step(fields.get("step"), where),
        loss=_figure(fields.get("loss"), f"{where}: loss"),
        grad_norm=_figure(fields.get("grad_norm"), f"{where}: grad_norm"),
        flagged=fields["flagged"] if isinstance(fields.get("flagged"), bool) else None,
        whole=fields.get("sequences_in_step") in (None, len(tokens_BT)),
        **found,
    )


def grid(value: Any, where: str) -> np.ndarray:
    """Return whole numbers as an int64 array of sequences by positions.

    Raises:
        ReplayError: They are not whole numbers, too large, ragged, or nested too deep.
    """
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = (value.float() if value.is_floating_point() else value).numpy()
    if isinstance(value, list):
        value = _rows(value, where)
    array = np.asarray(value)
    if array.dtype == object or array.dtype.kind not in "iufb":
        raise ReplayError(f"{where}: not whole numbers: give lists of token IDs")
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise ReplayError(f"{where}: NaN or infinite values: give whole numbers")
        if array.size and not (array == np.trunc(array)).all():
            raise ReplayError(f"{where}: fractions: give whole numbers")
    if array.size and array.dtype.kind in "uf" and float(array.max()) > 2**62:
        raise ReplayError(f"{where}: {array.max()} is no token ID: give whole numbers below 2^62")
    if array.ndim == 1:
        array = array[None]
    if array.ndim == 3:  # micro-batches of a step
        array = array.reshape(-1, array.shape[-1])
    if array.ndim != 2:
        raise ReplayError(f"{where}: {array.ndim} dimensions: give sequences by positions")
    if not array.size:
        raise ReplayError(f"{where}: empty: give at least one sequence of two tokens")
    return array.astype(np.int64)


def _rows(value: list[Any], where: str) -> np.ndarray:
    """Lists from JSON as an array; every element is looked at, for JSON may hold anything."""
    if not value:
        raise ReplayError(f"{where}: empty: give at least one sequence of two tokens")
    rows = value if isinstance(value[0], list) else [value]
    if all(isinstance(row, list) and row and isinstance(row[0], list) for row in rows):
        rows = [inner for row in rows for inner in row]  # micro-batches of a step
    for number, row in enumerate(rows):
        if not isinstance(row, list):
            raise ReplayError(f"{where}: sequence {number} is no list: give lists of token IDs")
        if len(row) != len(rows[0]):
            raise ReplayError(
                f"{where}: ragged: sequence {number} has {len(row)} tokens, sequence 0"
                f" {len(rows[0])}: pad them and give an attention_mask"
            )
        odd = [v for v in row if type(v) is not int and type(v) is not bool]
        if odd:
            fraction = next((v for v in odd if type(v) is float), None)
            what = f"a {type(odd[0]).__name__}" if fraction is None else str(fraction)
            raise ReplayError(f"{where}: sequence {number} holds {what}: give whole numbers")
        if any(abs(v) >= 2**62 for v in row):
            raise ReplayError(f"{where}: sequence {number}: an ID beyond 2^62: give token IDs")
    return np.array(rows, np.int64)


def _sample_ids(fields: dict[str, Any], rows: int, where: str) -> tuple[str, ...] | None:
    value = next((fields[n] for n in SAMPLE_NAMES if fields.get(n) is not None), None)
    if value is None:
        return None
    if isinstance(value, (torch.Tensor, np.ndarray)):
        value = value.tolist()
    if not isinstance(value, (list, tuple)):
        value = [value]
    if not all(isinstance(v, (str, int)) for v in value):
        raise ReplayError(f"{where}: sample_ids are neither texts nor whole numbers")
    if len(value) != rows:
        raise ReplayError(f"{where}: {len(value)} sample_ids for {rows} sequences: give one each")
    return tuple(str(v)[:200] for v in value)


def _scalar(value: Any) -> Any:
    """A number of its own, where it is the one element of a tensor or an array."""
    if isinstance(value, torch.Tensor):
        return value.item() if value.numel() == 1 else value
    if isinstance(value, (np.ndarray, np.generic)):
        return value.item() if value.size == 1 else value
    return value


def _step(value: Any, where: str) -> int | None:
    if value is None:
        return None
    value = _scalar(value)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**62:
        raise ReplayError(f"{where}: step {str(value)[:40]!r} is not a whole number")
    return value


_WORDS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def _figure(value: Any, where: str) -> float | None:
    if isinstance(value, str) and value in _WORDS:
        return _WORDS[value]
    value = _scalar(value)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e300:
        if isinstance(value, float):
            return value
        raise ReplayError(f"{where}: {str(value)[:40]!r} is not a number")
    return float(value)


def join(pieces: Sequence[Piece], labels: Labels = "auto") -> list[Recorded]:
    """Make one batch of the pieces of each step, in the order of the steps.

    Pieces without a step are one batch. How labels lie is settled once for all pieces, because
    one batch alone may be the faulty one.

    Raises:
        ReplayError: Pieces of a step do not fit one another.
    """
    steps: dict[int | None, list[Piece]] = {}
    for piece in pieces:
        steps.setdefault(piece.step, []).append(piece)
    lie, note = _labels_lie(pieces, labels)
    order = sorted(steps, key=lambda s: (s is None, s or 0))
    return [_joined(steps[step], lie, note) for step in order]


def _joined(pieces: list[Piece], lie: Labels, note: str) -> Recorded:
    first = pieces[0]
    length = first.tokens_BT.shape[1]
    for piece in pieces:
        if piece.tokens_BT.shape[1] != length:
            raise ReplayError(
                f"{piece.where}: ragged: sequences of {piece.tokens_BT.shape[1]} tokens, in"
                f" {first.where} of {length}: pad them and give an attention_mask"
            )

    def together(name: str) -> torch.Tensor | None:
        values = [getattr(piece, name) for piece in pieces]
        present = [value for value in values if value is not None]
        if not present:
            return None
        if len(present) < len(values):
            lacking = next(p for p, v in zip(pieces, values, strict=True) if v is None)
            raise ReplayError(f"{lacking.where}: no {name[:-3]}, others of its step have some")
        return torch.from_numpy(np.concatenate(present))

    tokens_BT, labels_BT = together("tokens_BT"), together("labels_BT")
    assert tokens_BT is not None
    attention_mask_BT = together("attention_mask_BT")
    if labels_BT is not None and lie == "own":
        labels_BT = shift_labels(labels_BT)
    named = [piece.sample_ids for piece in pieces if piece.sample_ids is not None]
    flags = [piece.flagged for piece in pieces if piece.flagged is not None]
    notes = [note] if note and labels_BT is not None else []
    if not all(piece.whole for piece in pieces):
        notes.append("only a part of the step's sequences was recorded")
    where = first.where if len(pieces) == 1 else f"{first.where} and {len(pieces) - 1} more"
    batch = Batch(
        tokens_BT=tokens_BT,
        labels_BT=labels_BT,
        loss_mask_BT=together("loss_mask_BT"),
        attention_mask_BT=attention_mask_BT,
        positions_BT=together("positions_BT"),
        sample_ids=sum(named, ()) if len(named) == len(pieces) else None,
        step=first.step,
        source=where,
    )
    return Recorded(
        batch=batch,
        loss=_mean(pieces, [piece.loss for piece in pieces]),
        grad_norm=_mean(pieces, [piece.grad_norm for piece in pieces]),
        flagged=any(flags) if flags else None,
        notes=tuple(notes),
    )


def _mean(pieces: Iterable[Piece], values: list[float | None]) -> float | None:
    """Mean over the sequences of what ranks logged; all ranks often log the same."""
    known = [(v, len(p.tokens_BT)) for v, p in zip(values, pieces, strict=True) if v is not None]
    if not known:
        return None
    return sum(v * n for v, n in known) / sum(n for _, n in known)


def _labels_lie(pieces: Sequence[Piece], labels: Labels) -> tuple[Labels, str]:
    """Find out whether labels are the tokens themselves or the next ones, and say so."""
    with_labels = [piece for piece in pieces if piece.labels_BT is not None]
    if labels != "auto" or not with_labels:
        return labels, ""
    stated = {piece.labels_are for piece in with_labels} - {"auto"}
    if len(stated) == 1:
        return stated.pop(), ""
    own = ahead = targets = 0
    for piece in with_labels:
        assert piece.labels_BT is not None
        here_BT, next_BT = piece.tokens_BT[:, 1:-1], piece.tokens_BT[:, 2:]
        wanted_BT = piece.labels_BT[:, 1:-1]
        live_BT = wanted_BT != IGNORED
        targets += int(live_BT.sum())
        own += int(((wanted_BT == here_BT) & live_BT).sum())
        ahead += int(((wanted_BT == next_BT) & live_BT).sum())
    if own > ahead and own > targets / 2:
        return "own", (
            "labels equal the tokens: taken as Hugging Face's, which the model shifts;"
            " --labels next says that they were trained on as they are"
        )
    return "next", ""
