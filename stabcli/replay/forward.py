"""Calling a model, whatever its signature, and turning logits into losses in little memory."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from stabcli.errors import ReplayError
from stabcli.replay.batch import IGNORED

CHUNK_NUMBERS = {"cpu": 1 << 18, "cuda": 1 << 26}
"""Logits turned into float32 at once: 1 MiB stays in a core's cache, 256 MiB keep a GPU busy and are
small beside the logits of a batch that needs one."""
IMPOSSIBLE = -1e4
"""Least log probability in the moments: times its probability, which is 0, it is 0; -inf is NaN."""


def logits_of(
    model: nn.Module,
    tokens_BT: Tensor,
    attention_mask_BT: Tensor | None,
    positions_BT: Tensor | None = None,
) -> Tensor:
    """The logits of every position, as (B, T, V).

    Positions that begin anew part documents: transformers' models see by them that attention must not
    cross from one to the next, where no attention mask was given with them. Understands Hugging Face's keyword arguments, nanoGPT's ``forward(idx, targets)`` (which gives
    the last position only unless it gets targets), and a plain ``forward(tokens)``.
    """
    known = inspect.signature(model.forward).parameters
    arguments: dict[str, Any] = {}
    if attention_mask_BT is not None and "attention_mask" in known:
        arguments["attention_mask"] = attention_mask_BT
    if positions_BT is not None:
        if "position_ids" not in known:
            raise ReplayError(
                f"{type(model).__name__}: its sequences hold several documents, and forward takes no"
                " position_ids: wrap the model so that it does"
            )
        arguments["position_ids"] = positions_BT
    if "use_cache" in known:
        arguments["use_cache"] = False
    if "input_ids" in known:
        out = model(input_ids=tokens_BT, **arguments)
    elif "targets" in known:
        out = model(tokens_BT, targets=tokens_BT)
    else:
        out = model(tokens_BT, **arguments)
    if hasattr(out, "logits"):
        out = out.logits
    elif isinstance(out, dict):
        out = out.get("logits")
    elif isinstance(out, (tuple, list)):
        out = out[0]
    if not isinstance(out, Tensor) or out.shape[:-1] != tokens_BT.shape:
        what = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else f"a {type(out).__name__}"
        raise ReplayError(
            f"{type(model).__name__}: forward gives {what} for tokens of shape "
            f"{tuple(tokens_BT.shape)}: wrap the model so that it returns the logits of every position"
        )
    return out


class _TokenLoss(torch.autograd.Function):
    """Loss, entropy and variance of each prediction, in chunks of float32.

    Keeps the logits and one number a row, where ``logits.float()`` and ``cross_entropy`` keep
    two more copies of the logits.
    """

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        loss_N, entropy_N, variance_N, partition_N = (
            torch.empty(len(targets_N), device=logits_NV.device) for _ in range(4)
        )
        for part in _chunks(logits_NV):
            chunk_nV = logits_NV[part].float()
            partition_N[part] = chunk_nV.logsumexp(-1)
            log_nV = chunk_nV - partition_N[part, None]
            wanted_n = targets_N[part]
            got_n = log_nV.gather(1, wanted_n.clamp_min(0)[:, None])[:, 0]
            loss_N[part] = torch.where(wanted_n == IGNORED, 0.0, -got_n)
            weighted_nV = log_nV.exp()
            weighted_nV *= log_nV.clamp_(min=IMPOSSIBLE)
            entropy_N[part] = -weighted_nV.sum(-1)
            second_n = (weighted_nV.mul_(log_nV)).sum(-1)
            variance_N[part] = (second_n - entropy_N[part].square()).clamp_min(0)
        ctx.save_for_backward(logits_NV, targets_N, partition_N)
        ctx.mark_non_differentiable(entropy_N, variance_N)
        return loss_N, entropy_N, variance_N

    @staticmethod
    def backward(ctx: Any, weight_N: Tensor, *_: Tensor) -> tuple[Tensor, None]:
        logits_NV, targets_N, partition_N = ctx.saved_tensors
        gradient_NV = torch.empty_like(logits_NV)
        live_N = targets_N != IGNORED
        for part in _chunks(logits_NV):
            chunk_nV = (logits_NV[part].float() - partition_N[part, None]).exp_()
            wanted_n1 = targets_N[part].clamp_min(0)[:, None]
            chunk_nV.scatter_add_(1, wanted_n1, torch.full_like(chunk_nV[:, :1], -1.0))
            chunk_nV *= weight_N[part, None]
            chunk_nV[~live_N[part]] = 0.0  # not by a weight of 0: 0 · NaN would spread
            gradient_NV[part] = chunk_nV.to(gradient_NV.dtype)
        return gradient_NV, None


def _chunks(logits_NV: Tensor) -> Iterator[slice]:
    numbers = CHUNK_NUMBERS.get(logits_NV.device.type, CHUNK_NUMBERS["cpu"])
    rows = max(1, numbers // logits_NV.shape[1])
    for first in range(0, len(logits_NV), rows):
        yield slice(first, first + rows)


def token_losses(logits_BTV: Tensor, targets_BT: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Loss (differentiable), entropy and variance of the loss of each prediction.

    The entropy is the loss the model itself expects at a position, the variance that of this
    expectation: a token is surprising where its loss lies far above both.

    Returns:
        Three (B, T) tensors, float32, nats; the loss is 0 where the target is ``IGNORED``.
    """
    parts = _TokenLoss.apply(logits_BTV.flatten(0, 1), targets_BT.flatten())
    loss_N, entropy_N, variance_N = cast("tuple[Tensor, Tensor, Tensor]", parts)
    return (
        loss_N.view(targets_BT.shape),
        entropy_N.view(targets_BT.shape),
        variance_N.view(targets_BT.shape),
    )


def whole(tensor: Tensor) -> Tensor:
    """A tensor with all its parts; of a sharded one, gathered from all processes."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


def here(tensor: Tensor) -> Tensor:
    """The part of a sharded tensor that this process has; of another, all of it."""
    local = getattr(tensor, "to_local", None)
    return tensor if local is None else local()


def embedding_of(model: nn.Module) -> nn.Embedding:
    """The table that turns token IDs into vectors.

    Raises:
        ReplayError: There is none to be found.
    """
    getter = getattr(model, "get_input_embeddings", None)
    if callable(getter):
        found = getter()
        if isinstance(found, nn.Embedding):
            return found
    tables = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.Embedding)]
    named = [m for name, m in tables if any(w in name for w in ("wte", "tok", "word", "vocab"))]
    for table in [*named, *(m for _, m in tables)]:
        return table
    raise ReplayError(
        f"{type(model).__name__}: has no nn.Embedding: give a model that takes token IDs"
    )
