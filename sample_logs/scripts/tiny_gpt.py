"""A byte-level GPT of 0.1 million parameters and the loop that trains it on one CPU thread.

Everything the other scripts share: the model, the data, the clock and the loop. The text is
the language reference that every Python carries (``pydoc_data.topics``), one byte a token.
Batch k of a seed is the same whatever came before it, so that a resumed run sees the data of
the run it goes on from.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
import torch
from places import EPOCH
from torch import Tensor, nn

B, T, V, D = 32, 64, 256, 64
"""Sequences a step, bytes a sequence, vocabulary, width."""

SEED = 1234


class Clock:
    """A simulated clock: it starts at a fixed date and says that a step takes 32 ms.

    That is what a step took where these samples were made, but not what it takes each time:
    with a real clock no log could be rebuilt as it is, and a healthy run would show whatever
    else the machine was doing.
    """

    STEP, SPREAD = 0.032, 0.02
    """Seconds a step, and the standard deviation of their logarithm."""

    def __init__(self, start: float = EPOCH, *, seed: int = SEED) -> None:
        self.time = start
        self.rng = np.random.default_rng((seed, int(start)))

    def tick(self, steps: float = 1.0) -> float:
        """Let the time of so many steps pass and return it in seconds."""
        seconds = steps * self.STEP * math.exp(self.rng.normal(0, self.SPREAD))
        self.time += seconds
        return seconds


class Text:
    """The text as bytes, nine tenths to train on, the rest held out."""

    def __init__(self) -> None:
        from pydoc_data.topics import topics

        raw = "\n\n".join(topics[name] for name in sorted(topics)).encode()
        self.sha256 = hashlib.sha256(raw).hexdigest()
        tokens = torch.from_numpy(np.frombuffer(raw, np.uint8).astype(np.int64))
        cut = len(tokens) * 9 // 10
        self.train, self.held_out = tokens[:cut], tokens[cut:]

    def batch(self, step: int, *, seed: int, held_out: bool = False) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of a step, both int64 of shape (B, T)."""
        tokens = self.held_out if held_out else self.train
        rng = np.random.default_rng((seed, step, int(held_out)))
        starts = torch.from_numpy(rng.integers(0, len(tokens) - T - 1, B))
        rows = tokens[starts[:, None] + torch.arange(T + 1)]
        return rows[:, :-1], rows[:, 1:]


def garbage(step: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Return a corrupted batch: bytes drawn at random, as a wrongly decoded shard looks."""
    rng = np.random.default_rng((seed, step, 2))
    rows = torch.from_numpy(rng.integers(0, V, (B, T + 1)))
    return rows[:, :-1], rows[:, 1:]


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind its own norm."""

    def __init__(self, mlp: nn.Module) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.mlp = mlp

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return the activations after the block, (B, T, D)."""
        b, t, _ = x_BTD.shape
        q, k, v = (
            part.view(b, t, 4, D // 4).transpose(1, 2)
            for part in self.qkv(self.norm1(x_BTD)).chunk(3, dim=-1)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BTD = x_BTD + self.out(mixed.transpose(1, 2).reshape(b, t, D))
        return x_BTD + self.mlp(self.norm2(x_BTD))


def feed_forward() -> nn.Module:
    """Return the usual dense layer of four times the width."""
    return nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))


class TinyGPT(nn.Module):
    """Two blocks; the embedding is also the output matrix."""

    def __init__(self, mlp: Callable[[], nn.Module] = feed_forward) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(V, D), nn.Embedding(T, D)
        self.blocks = nn.Sequential(Block(mlp()), Block(mlp()))
        self.norm = nn.LayerNorm(D)
        for p in self.parameters():
            if p.ndim > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the mean loss in nats per byte."""
        x_BTD = self.tokens(tokens_BT) + self.places.weight[: tokens_BT.shape[1]]
        logits_BTV = self.norm(self.blocks(x_BTD)) @ self.tokens.weight.T
        return nn.functional.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten())


def determined(seed: int = SEED) -> None:
    """Make the run repeatable: one thread, one seed."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    torch.manual_seed(seed)


def rate(step: int, *, peak: float, warmup: int, total: int) -> float:
    """Return the learning rate: a linear rise, then a cosine down to a tenth."""
    if step <= warmup:
        return peak * step / warmup
    share = (step - warmup) / max(1, total - warmup)
    return peak * (0.55 + 0.45 * math.cos(math.pi * share))


class Training:
    """A model in training, one step at a time."""

    def __init__(
        self,
        *,
        total: int,
        peak: float = 3e-3,
        warmup: int = 100,
        clip: float = 4.0,
        seed: int = SEED,
        bad: Collection[int] = (),
        clock: Clock | None = None,
    ) -> None:
        determined(seed)
        self.text = Text()
        self.model = TinyGPT()
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=peak, betas=(0.9, 0.95), weight_decay=0.1
        )
        self.total, self.peak, self.warmup, self.clip = total, peak, warmup, clip
        self.seed, self.bad = seed, frozenset(bad)
        self.clock = clock or Clock()

    def config(self, **more: Any) -> dict[str, Any]:
        """Return what a logger would write first."""
        return {
            "config": {
                "params": sum(p.numel() for p in self.model.parameters()),
                "gpus": 1,
                "device": "cpu",
                "tokens_per_step": B * T,
                "seq_len": T,
                "vocab_size": V,
                "total_steps": self.total,
                "peak_lr": self.peak,
                "warmup_steps": self.warmup,
                "grad_clip": self.clip,
                "weight_decay": 0.1,
                "seed": self.seed,
                "precision": "fp32",
                "text_sha256": self.text.sha256,
                **more,
            }
        }

    def step(self, step: int) -> dict[str, Any]:
        """Train one step and return its row."""
        make = garbage if step in self.bad else self.text.batch
        lr = rate(step, peak=self.peak, warmup=self.warmup, total=self.total)
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group.get("factor", 1.0)
        loss = self.model(*make(step, seed=self.seed))
        self.optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        seconds = self.clock.tick()
        return {
            "step": step,
            "loss": round(loss.item(), 6),
            "grad_norm": round(norm.item(), 6),
            "lr": round(lr, 9),
            "tokens_per_sec": round(B * T / seconds, 1),
            "step_time": round(seconds, 6),
            "timestamp": round(self.clock.time, 3),
        }

    @torch.no_grad()
    def evaluate(self, step: int, batches: int = 8) -> dict[str, Any]:
        """Return a row with the loss on held-out text, always the same batches."""
        losses = [
            self.model(*self.text.batch(i, seed=self.seed, held_out=True)).item()
            for i in range(batches)
        ]
        self.clock.tick(batches / 3)
        return {
            "step": step,
            "val_loss": round(sum(losses) / batches, 6),
            "timestamp": round(self.clock.time, 3),
        }

    def rows(self, first: int = 1, *, eval_every: int = 100) -> Iterator[dict[str, Any]]:
        """Train to the end, yielding a row a step and one after each evaluation."""
        for step in range(first, self.total + 1):
            yield self.step(step)
            if step % eval_every == 0:
                yield self.evaluate(step)
