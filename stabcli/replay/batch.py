"""A batch as the optimizer step saw it: token IDs, targets, masks, and where they came from.

One convention for labels, in the whole package: ``labels_BT[b, t]`` is the target predicted *at*
position ``t``, which is usually the next token, ``tokens_BT[b, t + 1]``. That is nanoGPT's ``y``,
Megatron's and torchtitan's ``labels``. Hugging Face's ``labels`` are not shifted
(``labels[b, t]`` belongs to token ``t``): bring them here with ``shift_labels``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stabcli.errors import ReplayError

IGNORED = -100
"""Target that is not trained on: ``ignore_index`` of ``torch.nn.functional.cross_entropy``."""

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """All sequences of one optimizer step, over all ranks and micro-batches, in order."""

    tokens_BT: Tensor
    """Token IDs as fed to the model, int64, on the CPU."""
    labels_BT: Tensor | None = None
    """Target predicted at each position, int64, ``IGNORED`` = not trained on.
    None where the source has no labels: the next token is the target, and label faults
    cannot be tested."""
    loss_mask_BT: Tensor | None = None
    """True where the loss of the prediction at that position counts (Megatron's ``loss_mask``)."""
    attention_mask_BT: Tensor | None = None
    """True at real tokens, False at padding; None where nothing is padded."""
    positions_BT: Tensor | None = None
    """Position of each token as fed to the model, int64: begins anew where a sequence holds several
    documents that do not see one another. None where positions just count."""
    sample_ids: tuple[str, ...] | None = None
    """What the data set calls each sequence, in the order of the rows."""
    step: int | None = None
    """Optimizer step that saw the batch."""
    source: str = ""
    """Where it was read: a file, and the rows in it."""

    def __post_init__(self) -> None:
        """Refuse what no model could be fed."""
        where = self.source or "batch"
        tokens_BT = self.tokens_BT
        if tokens_BT.ndim != 2 or tokens_BT.dtype not in INTEGERS:
            shape = tuple(tokens_BT.shape)
            raise ReplayError(
                f"{where}: tokens have shape {shape} and type {tokens_BT.dtype}: "
                "give integers, sequences by positions"
            )
        if tokens_BT.shape[0] < 1 or tokens_BT.shape[1] < 2:
            raise ReplayError(
                f"{where}: {tokens_BT.shape[0]} sequences of {tokens_BT.shape[1]} tokens leave "
                "nothing to predict: give at least one sequence of two tokens"
            )
        for name in ("labels_BT", "loss_mask_BT", "attention_mask_BT", "positions_BT"):
            value = getattr(self, name)
            if value is not None and value.shape != tokens_BT.shape:
                raise ReplayError(
                    f"{where}: {name[:-3].replace('_', ' ')} has shape {tuple(value.shape)}, "
                    f"tokens have {tuple(tokens_BT.shape)}: give one value a token"
                )
        if self.sample_ids is not None and len(self.sample_ids) != len(tokens_BT):
            raise ReplayError(
                f"{where}: {len(self.sample_ids)} sample IDs for {len(tokens_BT)} sequences: "
                "give one a sequence"
            )
        object.__setattr__(self, "tokens_BT", tokens_BT.long())
        for name in ("labels_BT", "positions_BT"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, value.long())
        for name in ("loss_mask_BT", "attention_mask_BT"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, value != 0)

    @property
    def sequences(self) -> int:
        """Number of sequences."""
        return int(self.tokens_BT.shape[0])

    @property
    def length(self) -> int:
        """Positions of a sequence."""
        return int(self.tokens_BT.shape[1])

    def targets_BT(self) -> Tensor:
        """The target at each position once labels, their absence and both masks are applied.

        Without labels the target is the next token, the last position has none, and padding
        (by the attention mask) is not a target.
        """
        if self.labels_BT is not None:
            targets_BT = self.labels_BT.clone()
        else:
            targets_BT = shift_labels(self.tokens_BT)
            if self.attention_mask_BT is not None:
                targets_BT[:, :-1][~self.attention_mask_BT[:, 1:]] = IGNORED
        if self.loss_mask_BT is not None:
            targets_BT[~self.loss_mask_BT] = IGNORED
        return targets_BT

    def rows(self, rows: list[int]) -> Batch:
        """The same batch with these sequences only."""

        def pick(value: Tensor | None) -> Tensor | None:
            return None if value is None else value[rows]

        return Batch(
            tokens_BT=self.tokens_BT[rows],
            labels_BT=pick(self.labels_BT),
            loss_mask_BT=pick(self.loss_mask_BT),
            attention_mask_BT=pick(self.attention_mask_BT),
            positions_BT=pick(self.positions_BT),
            sample_ids=self.sample_ids and tuple(self.sample_ids[row] for row in rows),
            step=self.step,
            source=self.source,
        )


def positions_by(tokens_BT: Tensor, end: int) -> Tensor:
    """Positions that begin anew after each token that ends a document.

    Args:
        tokens_BT: Token IDs.
        end: The ID that ends a document; it belongs to the one before.
    """
    count_T = torch.arange(tokens_BT.shape[1]).expand(tokens_BT.shape)
    begins_BT = torch.zeros_like(tokens_BT)
    begins_BT[:, 1:] = torch.where(tokens_BT[:, :-1] == end, count_T[:, 1:], 0)
    return count_T - begins_BT.cummax(1).values


def shift_labels(unshifted_BT: Tensor) -> Tensor:
    """Labels that belong to tokens (Hugging Face) as targets of the positions before them.

    Args:
        unshifted_BT: ``labels[b, t]`` is the label of token ``t``; tokens themselves do.

    Returns:
        ``targets[b, t] = labels[b, t + 1]``; the last position has no target.
    """
    targets_BT = torch.full_like(unshifted_BT, IGNORED)
    targets_BT[:, :-1] = unshifted_BT[:, 1:]
    return targets_BT
