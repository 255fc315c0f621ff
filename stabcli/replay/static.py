"""What a batch tells without the model: impossible IDs, targets that do not fit, repetition.

These checks come first because an ID outside the embedding table kills a CUDA process for good
(a device-side assert), and because they cost no pass.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stabcli.replay.batch import IGNORED, Batch
from stabcli.replay.verdict import Culprit, Kind

SHIFTS = (-2, -1, 0, 1, 2, 3)
"""Offsets tried between targets and tokens; 1 is right: the target is the next token."""
AGREEMENT = 0.9
"""Part of a row's targets that must be its next tokens. Rows of the next-token objective agree
wholly; documents joined, or IDs remapped at a few places, leave more than this."""
JUDGED_TARGETS = 8
"""Targets a row needs before its agreement is judged: fewer agree with some offset by chance."""
RUN_OF_MISFITS = 8
"""Consecutive targets that are not the next token and are named as a stretch."""
PADDING_PART = 0.01
"""Part of the targets that may be the padding ID; it often doubles as end-of-text."""
MAX_PERIOD = 13
"""Longest period of a repeated n-gram: OLMo-core's ``repetition_max_period``."""
MIN_REPEATS = 8
MIN_REPEATED_TOKENS = 24
"""Repeats and tokens from which a repetition is worth listing. OLMo-core masks from 32 repeats; a
lead may be shorter, since nothing is concluded from it alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Oddity:
    """Something out of order in the batch itself."""

    kind: Kind | None
    """The verdict it settles; None for a lead."""
    text: str
    """What it is, in a sentence."""
    culprits: tuple[Culprit, ...] = ()
    """Where it is."""


def inspect(
    batch: Batch, rows_V: int, *, pad_id: int | None, tokenizer: int | None
) -> list[Oddity]:
    """Everything out of order, what settles a verdict first.

    Args:
        batch: The batch.
        rows_V: Rows of the model's embedding.
        pad_id: ID used for padding, where there is one.
        tokenizer: IDs the tokenizer can produce, where it is known.
    """
    found = [*_outside(batch, rows_V, tokenizer)]
    if not any(oddity.kind for oddity in found):
        found += [*_untrained(batch), *_misfits(batch), *_padding(batch, pad_id)]
    found += [*_repetitions(batch), *_duplicates(batch)]
    return sorted(found, key=lambda oddity: oddity.kind is None)


def _outside(batch: Batch, rows_V: int, tokenizer: int | None) -> list[Oddity]:
    found = []
    outside_BT = (batch.tokens_BT < 0) | (batch.tokens_BT >= rows_V)
    if outside_BT.any():
        ids = batch.tokens_BT[outside_BT].unique().tolist()
        text = f"token IDs {_few(ids)} are outside the {rows_V} rows of the embedding"
        culprits = ids_at(batch.tokens_BT, ids, note="outside the vocabulary")
        found.append(Oddity(kind="invalid-input", text=text, culprits=culprits))
    if batch.labels_BT is not None:
        targets_BT = batch.targets_BT()
        outside_BT = (targets_BT != IGNORED) & ((targets_BT < 0) | (targets_BT >= rows_V))
        if outside_BT.any():
            ids = targets_BT[outside_BT].unique().tolist()
            text = f"targets {_few(ids)} are outside the {rows_V} rows of the output"
            culprits = ids_at(targets_BT, ids, note="target outside the vocabulary")
            found.append(Oddity(kind="invalid-input", text=text, culprits=culprits))
    if tokenizer is not None:
        spare_BT = (batch.tokens_BT >= tokenizer) & (batch.tokens_BT < rows_V)
        if spare_BT.any():
            ids = batch.tokens_BT[spare_BT].unique().tolist()
            text = f"token IDs {_few(ids)} are padding rows that no tokenizer output trains"
            culprits = ids_at(batch.tokens_BT, ids, note="beyond the tokenizer")
            found.append(Oddity(kind=None, text=text, culprits=culprits))
    return found


def _untrained(batch: Batch) -> list[Oddity]:
    live_BT = batch.targets_BT() != IGNORED
    if not live_BT.any():
        text = "no target is trained on: the mean of the loss is 0 / 0"
        return [Oddity(kind="label-fault", text=text)]
    empty = (~live_BT.any(1)).nonzero()[:, 0].tolist()
    if not empty:
        return []
    text = f"sequences {_few(empty)} have no target that is trained on"
    return [Oddity(kind=None, text=text, culprits=whole_rows(batch, empty))]


def _misfits(batch: Batch) -> list[Oddity]:
    """Rows and stretches whose targets are not the next tokens."""
    if batch.labels_BT is None:
        return []
    targets_BT = batch.targets_BT()
    live_BT = targets_BT != IGNORED
    agree_KB = torch.stack([_agreement(batch.tokens_BT, targets_BT, k) for k in SHIFTS])
    judged_B = live_BT.sum(1) >= JUDGED_TARGETS
    right_B = agree_KB[SHIFTS.index(1)]
    wrong = (judged_B & (right_B < AGREEMENT)).nonzero()[:, 0].tolist()
    if not wrong:
        return []
    best_B = agree_KB.argmax(0)
    shifts = Counter(
        SHIFTS[int(best_B[row])] if float(agree_KB[:, row].max()) >= AGREEMENT else None
        for row in wrong
    )
    said = []
    for shift, count in shifts.most_common():
        if shift is None:
            said.append(f"{count} agree with their tokens at no offset")
        elif shift == 0:
            said.append(f"{count} predict the token itself: the labels were not shifted")
        else:
            said.append(f"{count} predict {shift} tokens ahead instead of 1")
    misfit_BT = _misfit(batch.tokens_BT, targets_BT)
    culprits = []
    for row in wrong:
        places = misfit_BT[row].nonzero()[:, 0]
        for first, last in runs(misfit_BT[row].numpy(), gap=2):
            if last - first + 1 >= RUN_OF_MISFITS or len(places) < RUN_OF_MISFITS:
                culprits.append(stretch(row, first, last, note="targets do not fit"))
    text = f"targets of {len(wrong)} of {batch.sequences} sequences do not fit: {', '.join(said)}"
    return [Oddity(kind="label-fault", text=text, culprits=tuple(culprits))]


def _agreement(tokens_BT: Tensor, targets_BT: Tensor, shift: int) -> Tensor:
    """Part of each row's targets that equal the token ``shift`` places on, (B,)."""
    length = tokens_BT.shape[1]
    there_T = torch.arange(length) + shift
    inside_T = (there_T >= 0) & (there_T < length)
    judged_BT = (targets_BT != IGNORED) & inside_T
    equal_BT = tokens_BT[:, there_T.clamp(0, length - 1)] == targets_BT
    return (equal_BT & judged_BT).sum(1) / judged_BT.sum(1).clamp_min(1)


def _misfit(tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
    """True at tokens whose prediction was trained towards another token."""
    misfit_BT = torch.zeros_like(tokens_BT, dtype=torch.bool)
    wanted_BT = targets_BT[:, :-1]
    misfit_BT[:, 1:] = (wanted_BT != IGNORED) & (wanted_BT != tokens_BT[:, 1:])
    return misfit_BT


def _padding(batch: Batch, pad_id: int | None) -> list[Oddity]:
    """Padding that is trained on."""
    targets_BT = batch.targets_BT()
    live_BT = targets_BT != IGNORED
    padded_BT = torch.zeros_like(live_BT)
    if pad_id is not None:
        padded_BT |= (targets_BT == pad_id) & (batch.tokens_BT == pad_id)
    if batch.attention_mask_BT is not None:
        padded_BT |= live_BT & ~batch.attention_mask_BT
    if int(padded_BT.sum()) <= PADDING_PART * int(live_BT.sum()):
        return []
    culprits: list[Culprit] = []
    if pad_id is not None and bool((batch.tokens_BT[padded_BT] == pad_id).all()):
        culprits += ids_at(batch.tokens_BT, [pad_id], note="padding")
    else:
        for row in padded_BT.any(1).nonzero()[:, 0].tolist():
            for first, last in runs(padded_BT[row].numpy()):
                culprits.append(stretch(row, first, last, note="padding"))
    text = f"{int(padded_BT.sum())} of {int(live_BT.sum())} targets are padding that counts in the loss"
    return [Oddity(kind="label-fault", text=text, culprits=tuple(culprits))]


def _repetitions(batch: Batch) -> list[Oddity]:
    culprits = []
    for row, tokens_T in enumerate(batch.tokens_BT.numpy()):
        for first, last, period, count in repeated(tokens_T):
            note = f"period {period}, {count} times"
            culprits.append(stretch(row, first, last, note=note))
    if not culprits:
        return []
    tokens = sum(len(culprit.positions) for culprit in culprits)
    text = f"{tokens} tokens in {len(culprits)} stretches repeat an n-gram"
    return [Oddity(kind=None, text=text, culprits=tuple(culprits))]


def repeated(tokens_T: np.ndarray) -> list[tuple[int, int, int, int]]:
    """Stretches that repeat with a short period, as (first, last, period, times), inclusive.

    The shortest period of a stretch is given, once.
    """
    found = []
    covered_T = np.zeros(len(tokens_T), bool)
    for period in range(1, min(MAX_PERIOD, len(tokens_T) - 1) + 1):
        equal_T = np.zeros(len(tokens_T), bool)
        equal_T[period:] = tokens_T[period:] == tokens_T[:-period]
        for begin, last in runs(equal_T):
            first = begin - period
            count = (last + 1 - first) // period
            enough = count >= MIN_REPEATS and last + 1 - first >= MIN_REPEATED_TOKENS
            if enough and not covered_T[first : last + 1].all():
                found.append((first, last, period, count))
                covered_T[first : last + 1] = True
    return found


def _duplicates(batch: Batch) -> list[Oddity]:
    _, inverse_B, counts = batch.tokens_BT.unique(dim=0, return_inverse=True, return_counts=True)
    copies = (counts[inverse_B] > 1).nonzero()[:, 0].tolist()
    if not copies:
        return []
    text = f"sequences {_few(copies)} are copies of one another"
    return [Oddity(kind=None, text=text, culprits=whole_rows(batch, copies))]


def runs(flags_T: np.ndarray, gap: int = 0) -> list[tuple[int, int]]:
    """Consecutive True values as (first, last), inclusive; runs ``gap`` apart or less are joined."""
    edges = np.diff(np.concatenate([[0], flags_T.astype(np.int8), [0]]))
    joined: list[tuple[int, int]] = []
    for first, end in zip(np.where(edges == 1)[0], np.where(edges == -1)[0], strict=True):
        if joined and first - joined[-1][1] - 1 <= gap:
            joined[-1] = (joined[-1][0], int(end) - 1)
        else:
            joined.append((int(first), int(end) - 1))
    return joined


def ids_at(tokens_BT: Tensor, ids: list[int], note: str = "") -> tuple[Culprit, ...]:
    """IDs as culprits, with every place they stand at."""
    return tuple(
        Culprit(
            token_id=i,
            positions=tuple((b, t) for b, t in (tokens_BT == i).nonzero().tolist()),
            note=note,
        )
        for i in ids
    )


def stretch(row: int, first: int, last: int, note: str = "") -> Culprit:
    """A stretch of a sequence as a culprit, ends inclusive."""
    places = tuple((row, t) for t in range(first, last + 1))
    return Culprit(sequence=row, first=first, last=last, positions=places, note=note)


def whole_rows(batch: Batch, rows: list[int]) -> tuple[Culprit, ...]:
    """Whole sequences as culprits."""
    return tuple(stretch(row, 0, batch.length - 1) for row in rows)


def _few(values: list[int]) -> str:
    """The first values, and how many more."""
    said = ", ".join(map(str, values[:8]))
    return said if len(values) <= 8 else f"{said} and {len(values) - 8} more"
