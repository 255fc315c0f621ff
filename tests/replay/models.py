"""Tiny language models trained for real on text that comes with Python, and faults to plant.

The tokenizer sees names that the models never do, which is how never-trained IDs come about in
the wild (SolidGoldMagikarp). Everything follows from the seeds given.
"""

import ast
import functools
import math
import random
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pydoc_data import topics

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

PAD, EOS = 0, 1
PADDED_ROWS = 48
"""Rows of the embedding beyond the tokenizer, as frameworks add to make the number round."""
PIECE = 3000
"""Characters of one document."""


@functools.cache
def _documentation() -> tuple[str, ...]:
    """What the standard library's modules say of themselves."""
    found = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8", errors="ignore"))
        holders = [
            n for n in ast.walk(tree) if isinstance(n, (ast.Module, ast.ClassDef, ast.FunctionDef))
        ]
        found.append("\n\n".join(ast.get_docstring(node) or "" for node in holders))
    return tuple(found)


@dataclass(frozen=True)
class Text:
    """Token IDs of a small world: ``train`` and ``clean`` are of one kind, ``foreign`` is not."""

    tokenizer: Tokenizer
    train: np.ndarray
    clean: np.ndarray
    foreign: np.ndarray
    counts: np.ndarray
    """How often each row of the embedding stands in ``train``."""

    @property
    def rows(self) -> int:
        """Rows of the embedding, padding included."""
        return len(self.counts)

    @property
    def vocabulary(self) -> int:
        return self.tokenizer.get_vocab_size()

    def never_trained(self) -> np.ndarray:
        """IDs of whole names the tokenizer knows and the models never saw."""
        return np.array(
            [i for i in range(2, self.vocabulary)
             if self.counts[i] == 0 and len(self.tokenizer.id_to_token(i)) > 2]
        )  # fmt: skip


@functools.cache
def text(vocabulary: int = 2000, most: int | None = None) -> Text:
    """The world; of ``most`` pieces of text only, for tests that have to be quick."""
    rng = random.Random(0)
    documents = [*topics.topics.values(), *_documentation()]
    pieces = [d[i : i + PIECE] for d in documents for i in range(0, len(d), PIECE)]
    pieces = [piece for piece in pieces if len(piece) > 200]
    if most is not None:
        pieces = rng.sample(pieces, most)
    names = [
        "".join(rng.choice("bcdfghjklmnpqrstvwxz") + rng.choice("aeiou") for _ in range(5)).title()
        for _ in range(vocabulary // 22)
    ]
    users = "\n".join(
        " ".join(f" {rng.choice(names)}{rng.randint(1, 9)}" for _ in range(40))
        for _ in range(most or 2000)
    )
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<pad>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*pieces, users], trainer)
    rng.shuffle(pieces)

    def encode(documents: list[str]) -> np.ndarray:
        return np.array(
            [i for coded in tokenizer.encode_batch(documents) for i in [*coded.ids, EOS]]
        )

    cut = int(len(pieces) * 0.85)
    train = encode(pieces[:cut])
    counts = np.bincount(train, minlength=tokenizer.get_vocab_size() + PADDED_ROWS)
    headers = sorted(Path(sysconfig.get_path("include")).rglob("*.h"))
    foreign = encode([path.read_text(encoding="utf-8", errors="ignore") for path in headers])
    return Text(tokenizer, train, encode(pieces[cut:]), foreign, counts)


def cut(stream: np.ndarray, rows: np.ndarray, length: int) -> Tensor:
    """These sequences of the stream, cut one after the other."""
    return torch.from_numpy(np.stack([stream[r * length : (r + 1) * length] for r in rows])).long()


def sequences(stream: np.ndarray, seed: int, count: int, length: int) -> Tensor:
    """``count`` different sequences of the stream."""
    chosen = np.random.RandomState(seed).choice(len(stream) // length, count, replace=False)
    return cut(stream, chosen, length)


def untrained(
    arch: str, rows: int, *, seed: int = 0, width: int = 128, layers: int = 4
) -> nn.Module:
    torch.manual_seed(seed)
    if arch == "llama":
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=rows, hidden_size=width, intermediate_size=width * 11 // 4,
                num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
                max_position_embeddings=1024, tie_word_embeddings=False,
                pad_token_id=PAD, bos_token_id=EOS, eos_token_id=EOS,
            )
        )  # fmt: skip
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=rows, n_embd=width, n_layer=layers, n_head=4, n_positions=1024,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            bos_token_id=EOS, eos_token_id=EOS, pad_token_id=PAD,
        )
    )  # fmt: skip


def loss_of(model: nn.Module, tokens_BT: Tensor) -> Tensor:
    """Mean loss of the next tokens, as a trainer computes it."""
    logits_BTV = model(input_ids=tokens_BT).logits[:, :-1].float()
    return functional.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT[:, 1:].flatten())


def adamw(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)


def train(
    model: nn.Module, stream: np.ndarray, *, steps: int, order: int = 1234, peak: float = 2e-3,
    batch: int = 16, length: int = 128, warm: int = 40,
    after: Callable[[int, torch.optim.Optimizer], None] | None = None,
) -> tuple[torch.optim.AdamW, list[tuple[float, float]]]:  # fmt: skip
    """Train with a warm-up and a cosine; returns the optimizer and (loss, gradient norm) a step."""
    optimizer, log = adamw(model), []
    model.train()
    count = len(stream) // length
    permuted = np.random.RandomState(order).permutation(count)
    for step in range(steps):
        decay = 0.1 + 0.45 * (1 + math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = peak * min(1.0, (step + 1) / warm) * decay
        rows = permuted[np.arange(step * batch, (step + 1) * batch) % count]
        optimizer.zero_grad()
        loss = loss_of(model, cut(stream, rows, length))
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        log.append((loss.item(), norm.item()))
        if after is not None:
            after(step + 1, optimizer)
    model.eval()
    model.zero_grad(set_to_none=True)
    return optimizer, log


def train_and_keep(
    arch: str, text: Text, seed: int, steps: int, older: int, folder: Path, peak: float = 3e-3
) -> None:
    """Train a model on a text and keep it, and its optimizer, at two steps."""
    model = untrained(arch, text.rows, seed=seed)

    def keep(step: int, optimizer: torch.optim.Optimizer) -> None:
        if step in (older, steps):
            kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(kept, folder / f"{arch}-{seed}-{step}.pt")

    train(model, text.train, steps=steps, order=1234 + seed, peak=peak, after=keep)
