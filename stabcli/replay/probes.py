"""One forward and one backward over a batch, and everything they tell.

Inside, a batch is a ``Grid`` of ``S = T + 1`` columns: column ``c`` is token ``c``, and ``target``
says whether its prediction (made at position ``c - 1``) is trained on. So a token, its own loss and
its own gradient stand in the same column, and dropping a token drops both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from stabcli.replay.batch import IGNORED, Batch
from stabcli.replay.forward import embedding_of, logits_of, token_losses, whole
from stabcli.replay.shares import Gradients, Shares


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grid:
    """A batch with each token beside its own target."""

    tokens_BS: Tensor
    """Tokens; the last column is the target after the last token, 0 where there is none."""
    targets_BS: Tensor
    """What was to be predicted in the place of each token; ``IGNORED`` = nothing."""
    mask_BS: Tensor | None = None
    """False at padding; None where nothing is padded."""
    positions_BS: Tensor | None = None
    """Positions, where they do not just count."""

    @classmethod
    def of(cls, batch: Batch) -> Grid:
        """Lay a batch out."""
        targets_BT = batch.targets_BT()
        last_B = targets_BT[:, -1]
        filled_B1 = torch.where(last_B == IGNORED, 0, last_B)[:, None]
        first_B1 = torch.full_like(filled_B1, IGNORED)
        mask_BS = None
        if batch.attention_mask_BT is not None:
            last_B1 = batch.attention_mask_BT[:, -1:]
            mask_BS = torch.cat([batch.attention_mask_BT, last_B1], 1)
        positions_BS = None
        if batch.positions_BT is not None:
            positions_BS = torch.cat([batch.positions_BT, batch.positions_BT[:, -1:] + 1], 1)
        return cls(
            tokens_BS=torch.cat([batch.tokens_BT, filled_B1], 1),
            targets_BS=torch.cat([first_B1, targets_BT], 1),
            mask_BS=mask_BS,
            positions_BS=positions_BS,
        )

    def rows(self, rows: list[int]) -> Grid:
        """These sequences only."""
        return Grid(
            tokens_BS=self.tokens_BS[rows],
            targets_BS=self.targets_BS[rows],
            mask_BS=None if self.mask_BS is None else self.mask_BS[rows],
            positions_BS=None if self.positions_BS is None else self.positions_BS[rows],
        )

    def run(self, model: nn.Module, device: torch.device) -> Tensor:
        """The logits that a model on that device gives for it, (B, T, V)."""

        def there(value_BS: Tensor | None) -> Tensor | None:
            return None if value_BS is None else value_BS[:, :-1].to(device)

        tokens_BT = self.tokens_BS[:, :-1].to(device)
        return logits_of(model, tokens_BT, there(self.mask_BS), there(self.positions_BS))

    @property
    def live_BS(self) -> Tensor:
        """Where something is trained on."""
        return self.targets_BS != IGNORED

    @property
    def count(self) -> int:
        """Number of targets."""
        return int(self.live_BS.sum())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measurement:
    """What one pass over a grid told; per-token tensors are on the CPU, in columns."""

    loss: float
    """Mean loss of the targets, nats."""
    grad_norm: float | None
    """Norm of the gradient of that mean, unclipped; None where no backward was made."""
    loss_BS: Tensor
    """Loss of each token, nats; 0 where nothing is trained on."""
    entropy_BS: Tensor
    """Loss the model expected there."""
    variance_BS: Tensor
    """Variance of the loss the model expected there."""
    live_BS: Tensor
    """Where something is trained on."""
    share_BS: Tensor | None = None
    """Share of the squared gradient norm of each position, in units of the gradient norm squared."""
    coverage: float | None = None
    """Sum of the shares over the squared gradient norm: 1 where every layer has its term."""
    row_norms_V: Tensor | None = None
    """Norm of the gradient of each embedding row."""

    @property
    def surprise_BS(self) -> Tensor:
        """How far the loss lies above what the model expected, in its own standard deviations.

        Half a nat is added to the deviation in quadrature: where the model is certain, a variance
        near 0 would make every miss infinite.
        """
        raw_BS = (self.loss_BS - self.entropy_BS) / (self.variance_BS + 0.25).sqrt()
        return torch.where(self.live_BS, raw_BS, 0.0)


class Probe:
    """A model under examination; counts what its passes cost.

    Args:
        model: The model, left as it is but for its gradients.
        micro_rows: Sequences a pass takes at once; None = all.
    """

    def __init__(self, model: nn.Module, micro_rows: int | None = None) -> None:
        self.model, self.micro_rows = model, micro_rows
        self.table = embedding_of(model)
        self.device = self.table.weight.device
        self.forward_tokens = self.backward_tokens = 0
        self.wide: Callable[[], Probe | None] = lambda: None
        """Gives a probe of the same weights in float32, where they cannot be held so in their place."""

    @property
    def rows_V(self) -> int:
        """Rows of the embedding: IDs the model has."""
        return int(self.table.num_embeddings)

    def parameters(self) -> list[nn.Parameter]:
        """What a trainer would update."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def measure(
        self,
        grid: Grid,
        *,
        backward: bool = False,
        shares: bool = False,
        count: int | None = None,
    ) -> Measurement:
        """Run the model over a grid.

        Args:
            grid: What to run.
            backward: Also make the gradient, which is left in ``p.grad``.
            shares: Also each position's share of the squared gradient norm: in the same pass where
                the grid fits one, else in a second one.
            count: Targets the loss is a mean over, where they are not all in this grid.

        Returns:
            The measurement; ``loss`` is the mean over the grid's own targets in any case.
        """
        targets = max(1, grid.count if count is None else count)
        self.clear()
        parts = []
        single = self._single(grid)
        collected: list[Tensor] = []
        for part in self._parts(grid):
            tokens_BT = part.tokens_BS[:, :-1].to(self.device)
            share = self._shares(tokens_BT) if shares and backward and single else None
            with share or nullcontext():
                parts.append(self._pass(part, tokens_BT, targets, backward=backward))
            if share is not None:
                collected.append(share.share_BT)
        if shares and backward and not single:
            collected = self._second_pass(grid, targets)
        loss_BS, entropy_BS, variance_BS = (torch.cat(each) for each in zip(*parts, strict=True))
        loss = float(loss_BS.double().sum()) / max(1, grid.count)
        measured = Measurement(
            loss=loss,
            grad_norm=self.grad_norm() if backward else None,
            loss_BS=loss_BS,
            entropy_BS=entropy_BS,
            variance_BS=variance_BS,
            live_BS=grid.live_BS,
        )
        return self._with_shares(measured, collected) if collected else measured

    def _with_shares(self, measured: Measurement, collected: list[Tensor]) -> Measurement:
        share_BT = torch.cat([self._gathered_share(part) for part in collected]).float().cpu()
        squared = (measured.grad_norm or 0.0) ** 2
        covered = float(share_BT.double().sum()) / squared if squared > 0 else math.nan
        return replace(
            measured,
            share_BS=nn.functional.pad(share_BT, (0, 1)),
            coverage=covered,
            row_norms_V=self.row_norms(),
        )

    def _gathered(self, part_BT: Tensor) -> Tensor:
        """The rows of all processes; one process has them all."""
        return part_BT

    def _gathered_share(self, part_BT: Tensor) -> Tensor:
        """Shares of the rows of all processes, in the gradients of all."""
        return self._gathered(part_BT)

    def _shares(self, tokens_BT: Tensor, gradients: Gradients | None = None) -> Shares:
        return Shares(self.model, tokens_BT, gradients)

    def _kept(self, gradient: Tensor) -> Tensor:
        """A gradient of all passes as the shares of one of them need it."""
        return whole(gradient)

    def _parts(self, grid: Grid) -> Iterator[Grid]:
        rows = len(grid.tokens_BS)
        step = self.micro_rows or rows
        for first in range(0, rows, step):
            yield grid.rows(list(range(first, min(rows, first + step))))

    def _pass(
        self, part: Grid, tokens_BT: Tensor, targets: int, *, backward: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Losses, entropies and variances of one micro-batch, in columns, on the CPU."""
        self.forward_tokens += tokens_BT.numel()
        wanted_BT = part.targets_BS[:, 1:].to(self.device)
        with torch.enable_grad() if backward else torch.no_grad():
            logits_BTV = part.run(self.model, self.device)
            losses_BT, entropy_BT, variance_BT = token_losses(logits_BTV, wanted_BT)
            del logits_BTV
            if backward:
                self.backward_tokens += tokens_BT.numel()
                self._backward(losses_BT.sum() / targets)

        def columns(value_BT: Tensor) -> Tensor:
            return nn.functional.pad(self._gathered(value_BT.detach()).cpu(), (1, 0))

        return columns(losses_BT), columns(entropy_BT), columns(variance_BT)

    @property
    def whole_here(self) -> bool:
        """Whether this process has the whole model, and may change its number format."""
        return True

    def agreed(self, found: Any) -> Any:
        """What all processes found of a forward pass; one has only its own."""
        return found

    def settle(self) -> None:
        """Bring the weights back to where they rest between passes."""

    def _backward(self, loss: Tensor) -> None:
        loss.backward()

    def _second_pass(self, grid: Grid, targets: int) -> list[Tensor]:
        """Shares of every micro-batch in the gradient of all of them, which is kept in ``p.grad``."""
        kept = {
            (id(module), name): parameter.grad
            for module in self.model.modules()
            for name, parameter in module.named_parameters(recurse=False)
        }
        gradients = [p.grad for p in self.model.parameters()]
        collected = []

        def known(module: nn.Module, name: str) -> Tensor | None:
            gradient = kept.get((id(module), name))
            return None if gradient is None else self._kept(gradient)

        for part in self._parts(grid):
            self.clear()
            tokens_BT = part.tokens_BS[:, :-1].to(self.device)
            with self._shares(tokens_BT, known) as share:
                self._pass(part, tokens_BT, targets, backward=True)
            collected.append(share.share_BT)
        for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        return collected

    def _single(self, grid: Grid) -> bool:
        """Whether one micro-batch of one process makes the whole gradient."""
        return self.micro_rows is None or len(grid.tokens_BS) <= self.micro_rows

    def _squared(self, gradient: Tensor) -> float:
        return float(torch.linalg.vector_norm(gradient, dtype=torch.float32)) ** 2

    def grad_norm(self) -> float:
        """Norm of what is in ``p.grad``; NaN or infinite where a gradient is."""
        return self.norm_of([p.grad for p in self.parameters() if p.grad is not None])

    def norm_of(self, gradients: Iterable[Tensor]) -> float:
        """Norm of all these tensors together."""
        return math.sqrt(math.fsum(self._squared(gradient) for gradient in gradients))

    def row_norms(self) -> Tensor | None:
        """Norm of the gradient of each embedding row, on the CPU."""
        gradient = self.table.weight.grad
        return None if gradient is None else whole(gradient).float().norm(dim=-1).cpu()

    def clear(self) -> None:
        """Drop all gradients."""
        for parameter in self.model.parameters():
            parameter.grad = None


@contextmanager
def examined(model: nn.Module) -> Iterator[None]:
    """Hold a model in evaluation mode (no dropout) and leave it as it was, without gradients."""
    modes = {name: module.training for name, module in model.named_modules()}
    model.eval()
    try:
        yield
    finally:
        for name, module in model.named_modules():
            module.training = modes[name]
        for parameter in model.parameters():
            parameter.grad = None
