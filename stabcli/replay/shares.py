"""Whose gradient is it: each position's exact share of the squared gradient norm.

For a linear layer ``y = W a`` the gradient is ``G = sum_t d_t a_t^T`` over positions ``t``, with
``d`` the gradient of the output. So ``|G|^2 = sum_t d_t^T G a_t``: position ``t`` owns
``d_t^T G a_t``, and the shares add up exactly. Both ``d`` and ``a`` are alive when backward passes
the layer, and ``G`` is complete the moment autograd has accumulated it: one more product a layer, no
further pass, nothing kept. (Per-example norms by the same trick: Goodfellow 2015,
https://arxiv.org/abs/1510.01799.) Gains, biases and embeddings have their own, simpler, terms.

A share belongs to the position *where* a gradient enters the weights, which is the position that
predicts and every position it attends to, not only the token that was predicted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn import functional

from stabcli.replay.experts import Apart, is_apart
from stabcli.replay.forward import here

NUMBERS_AT_ONCE = {"cpu": 1 << 18, "cuda": 1 << 25}
"""Products formed at once: 1 MiB stays in a core's cache, 128 MiB keep a GPU busy and are small."""

Term = Callable[[Tensor], Tensor]
"""Takes the gradient of a parameter, gives the share of each position, (N,)."""


Gradients = Callable[[nn.Module, str], Tensor | None]
"""Gives the gradient of a module's parameter. By name, because a sharded model has another
parameter in its place while it runs."""


class Shares:
    """Collects the shares of one backward pass; use as a context manager around it.

    Args:
        model: The model whose parameters receive gradients.
        tokens_BT: What goes in.
        gradients: None: the pass makes the whole gradient itself (``p.grad`` is None before).
            Otherwise gives the gradient that earlier passes made, of a module's parameter by name: the
            share of these positions in *that* gradient.
        counted: None: the model is whole here. Otherwise it is split by layers over processes, and
            this says of a parameter whether its part here belongs to the sum of all of them.
    """

    def __init__(
        self,
        model: nn.Module,
        tokens_BT: Tensor,
        gradients: Gradients | None = None,
        counted: Callable[[Tensor], bool] | None = None,
    ) -> None:
        self.model, self.tokens_BT, self.gradients = model, tokens_BT, gradients
        self.counted = counted or (lambda _: True)
        self.split = counted is not None
        self.share_N = torch.zeros(tokens_BT.numel(), device=tokens_BT.device)
        self._terms: dict[int, list[Term]] = {}
        self._handles: list[Any] = []
        self._token_gradient_ND: Tensor | None = None
        self._apart: list[Apart] = []
        self._positional: list[tuple[nn.Embedding, Tensor]] = []
        self._heads: dict[nn.Module, nn.Parameter] = {}
        self._head_gradients: dict[int, Tensor] = {}

    def __enter__(self) -> Self:
        """Hook every layer that has a term."""
        for module in self.model.modules():
            if _is_linear(module) or _is_norm(module) or isinstance(module, nn.Embedding):
                self._handles.append(module.register_forward_hook(self._forward))
            elif is_apart(module):
                hook = module.register_forward_hook(self._apart_forward, with_kwargs=True)
                self._handles.append(hook)
        if self.gradients is None:
            self._untie()
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    hook = parameter.register_post_accumulate_grad_hook(self._accumulated)
                    self._handles.append(hook)
        return self

    def __exit__(self, *error: object) -> None:
        """Unhook, and add what needs the whole pass."""
        for handle in self._handles:
            handle.remove()
        for head, parameter in self._heads.items():
            del head.__dict__["weight"]
            bias = head._parameters.pop("bias")
            head._parameters |= {"weight": parameter, "bias": bias}  # the order they had
        self._terms.clear()
        if error[0] is None:
            self._count_apart()
        if self._token_gradient_ND is not None:
            for table, places_T in self._positional:
                gradient = self._gradient(table, "weight")
                if gradient is not None and self.counted(table.weight):
                    rows_ND = _rows(gradient, places_T.expand(self.tokens_BT.shape).flatten())
                    self.share_N += _dot(rows_ND, self._token_gradient_ND)
        self._token_gradient_ND, self._positional = None, []

    def _apart_forward(
        self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any], output: Any
    ) -> Any:
        if not torch.is_grad_enabled():
            return output
        self._apart.append(Apart(module, (arguments, named), output, len(self.share_N)))
        return self._apart[-1].outputs

    def _count_apart(self) -> None:
        """Add what layers that are no plain product have of the gradient, now that it is whole."""
        for call in self._apart:
            found = {
                name: gradient
                for name, parameter in call.module.named_parameters(recurse=False)
                if parameter.requires_grad and self.counted(parameter)
                and (gradient := self._gradient(call.module, name)) is not None
            }  # fmt: skip
            share_N = call.share(found) if found and call.gradients else None
            if share_N is not None:
                self.share_N += share_N
        self._apart = []

    def _untie(self) -> None:
        """Let output layers that share the embedding's weight run on a copy without gradient.

        Their part of the gradient is then made once, here, where ``d`` is at hand, and added to the
        embedding's. Autograd would make it as well, and shows it only with the embedding's part in.
        """
        embedded = {id(m.weight) for m in self.model.modules() if isinstance(m, nn.Embedding)}
        for module in self.model.modules():
            weight = module._parameters.get("weight")
            tied = isinstance(module, nn.Linear) and id(weight) in embedded
            if tied and weight is not None and weight.requires_grad:
                self._heads[module] = weight
        for head, parameter in self._heads.items():
            del head._parameters["weight"]
            head.__dict__["weight"] = parameter.detach()

    @property
    def share_BT(self) -> Tensor:
        """Share of each position; their sum is the squared gradient norm as far as it is covered."""
        return self.share_N.view(self.tokens_BT.shape)

    def _gradient(self, module: nn.Module, name: str) -> Tensor | None:
        if self.gradients is not None:
            return self.gradients(module, name)
        gradient: Tensor | None = getattr(module, name).grad
        return gradient

    def _accumulated(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            if isinstance(parameter, DTensor):
                parameter.grad = placed(parameter.grad, parameter)
            head_OI = self._head_gradients.pop(id(parameter), None)
            if head_OI is not None:
                here(parameter.grad).add_(head_OI)
            for term in self._terms.pop(id(parameter), []):
                self.share_N += term(parameter.grad)

    def _add(self, module: nn.Module, name: str, term: Term) -> None:
        """Note a term of a parameter, or count it at once where its gradient is known."""
        parameter = getattr(module, name, None)
        if parameter is None or not parameter.requires_grad or not self.counted(parameter):
            return
        if self.gradients is None:
            self._terms.setdefault(id(parameter), []).append(term)
        elif (gradient := self.gradients(module, name)) is not None:
            self.share_N += term(gradient)

    def _forward(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        """Wait for the gradient of a layer's output."""
        if not isinstance(output, Tensor) or not output.requires_grad or not arguments:
            return
        inputs = here(arguments[0].detach())
        if isinstance(module, nn.Embedding):
            output.register_hook(lambda d: self._embedding(module, inputs, d))
        elif output.numel() // output.shape[-1] == len(self.share_N) or (
            _is_norm(module) and output.shape[:2] == self.tokens_BT.shape  # each head by itself
        ):
            a_NI = inputs.flatten(0, -2)
            done = self._linear if _is_linear(module) else self._norm
            output.register_hook(lambda d: done(module, a_NI, d.flatten(0, -2)))

    def _linear(self, module: Any, a_NI: Tensor, d_NO: Tensor) -> None:
        if self.split:
            d_NO = _columns(d_NO, module.weight)
        self._add(module, "bias", lambda g_O: d_NO.float() @ here(g_O).float())
        if module in self._heads:
            # G is complete only at the end, with the embedding's part: d, as large as the logits that
            # backward has just let go of, is kept until then
            head_OI, key = d_NO.T @ a_NI, id(self._heads[module])
            before = self._head_gradients.get(key)
            self._head_gradients[key] = head_OI if before is None else before + head_OI
            self._terms.setdefault(key, []).append(lambda g: _bilinear(d_NO, here(g), a_NI))
            return
        flipped = not isinstance(module, nn.Linear)
        self._add(module, "weight", lambda g: _bilinear(d_NO, g.T if flipped else here(g), a_NI))

    def _norm(self, module: Any, a_ND: Tensor, d_ND: Tensor) -> None:
        if isinstance(module, nn.LayerNorm):
            scaled_ND = functional.layer_norm(a_ND, a_ND.shape[-1:], None, None, module.eps)
        else:
            eps = getattr(module, "variance_epsilon", getattr(module, "eps", None)) or 1e-6
            wide_ND = a_ND.float()
            scaled_ND = wide_ND * (wide_ND.square().mean(-1, keepdim=True) + eps).rsqrt()
        count = len(self.share_N)  # a norm of single heads has several rows a position

        def weight(g_D: Tensor) -> Tensor:
            return ((d_ND.float() * scaled_ND.float()) @ here(g_D).float()).view(count, -1).sum(1)

        self._add(module, "weight", weight)
        self._add(module, "bias", lambda g: (d_ND.float() @ here(g).float()).view(count, -1).sum(1))

    def _embedding(self, module: nn.Embedding, ids: Tensor, d: Tensor) -> None:
        if ids.numel() != len(self.share_N):  # positions, the same for every sequence
            if module.weight.requires_grad and ids.shape[-1] == self.tokens_BT.shape[1]:
                self._positional.append((module, ids))
            return
        ids_N, d_ND = ids.flatten(), d.flatten(0, -2)
        if torch.equal(ids_N, self.tokens_BT.flatten()):
            self._token_gradient_ND = d_ND
        self._add(module, "weight", lambda g_VD: _dot(_rows(g_VD, ids_N), d_ND))


def _bilinear(d_NO: Tensor, g_OI: Tensor, a_NI: Tensor) -> Tensor:
    """``d_n^T G a_n`` for each position, (N,), summed in float32."""
    g_OI = g_OI.to(d_NO.dtype)
    if g_OI.shape[0] < g_OI.shape[1]:  # the product of the narrower side is the smaller one
        return _through(a_NI, g_OI.T, d_NO)
    return _through(d_NO, g_OI, a_NI)


def _through(from_NX: Tensor, g_XY: Tensor, to_NY: Tensor) -> Tensor:
    share_N = torch.empty(len(from_NX), device=from_NX.device)
    rows = max(1, NUMBERS_AT_ONCE.get(from_NX.device.type, 1 << 18) // g_XY.shape[1])
    for first in range(0, len(from_NX), rows):
        part = slice(first, first + rows)
        share_N[part] = _dot(from_NX[part] @ g_XY, to_NY[part])
    return share_N


def _dot(fresh_ND: Tensor, other_ND: Tensor) -> Tensor:
    """Products of rows, (N,), in float32; writes over the first."""
    return fresh_ND.float().mul_(other_ND).sum(-1)


def placed(gradient: Tensor, parameter: DTensor) -> Tensor:
    """A gradient in the parts that its parameter has: autograd leaves that of a table in sums."""
    if not isinstance(gradient, DTensor) or gradient.placements == parameter.placements:
        return gradient
    return gradient.redistribute(placements=parameter.placements)


def is_split(tensor: Tensor) -> bool:
    """Whether other processes have other parts of a tensor."""
    return isinstance(tensor, DTensor) and any(p.is_shard() for p in tensor.placements)


def _columns(d_NO: Tensor, weight_OI: Tensor) -> Tensor:
    """The columns that this process's rows of a weight made, where all outputs were gathered."""
    if not isinstance(weight_OI, DTensor) or d_NO.shape[1] == len(here(weight_OI)):
        return d_NO
    gathered = DTensor.from_local(d_NO, weight_OI.device_mesh, [Replicate()])
    return here(gathered.redistribute(placements=[Shard(1)]))


def _rows(table_VD: Tensor, ids_N: Tensor) -> Tensor:
    """A copy of rows of a table, (N, D); 0 for those that another process has."""
    own_VD = here(table_VD)
    if not is_split(table_VD):
        return own_VD[ids_N]
    mesh = cast("DTensor", table_VD).device_mesh
    first = mesh.get_local_rank() * -(-len(table_VD) // mesh.size())
    own_N = (ids_N >= first) & (ids_N < first + len(own_VD))
    return torch.where(own_N[:, None], own_VD[torch.where(own_N, ids_N - first, 0)], 0.0)


def _is_linear(module: nn.Module) -> bool:
    """A linear layer, or the transposed one of Hugging Face's GPT-2."""
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _is_norm(module: nn.Module) -> bool:
    """A layer norm or an RMS norm with a gain, whatever the library calls it."""
    if isinstance(module, nn.LayerNorm):
        return module.elementwise_affine and len(module.normalized_shape) == 1
    weight = getattr(module, "weight", None)
    return "RMSNorm" in type(module).__name__ and isinstance(weight, nn.Parameter)
