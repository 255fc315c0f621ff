# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.4", "numpy>=1.26", "transformers>=5.0", "tokenizers>=0.20"]
# ///
"""A small Llama in training meets a batch full of names it never saw, and the recorder is there.

The tokenizer was trained on more than the model: it has whole tokens for user names of a forum
that the model's text never holds, as SolidGoldMagikarp came about. At step 500 a piece of that
forum is in the batch: two of the names stand at 200 places of six sequences. The loss leaps,
``stabcli.record`` writes the batch and the ones before it down, and the checkpoint of step 480 is
kept. Writes replay/: checkpoint-480/, run.jsonl, flagged/.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import sys

import numpy as np
import torch
from places import EPOCH, SAMPLES, dump, out_path
from tiny_gpt import determined
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.append(str(SAMPLES.parent))
from stabcli.record import Recorder

SEED = 1234
VOCABULARY, WIDTH, LAYERS = 1024, 96, 3
B, T = 16, 128
STEPS, SAVED, BAD = 520, 480, 500
PLACES, ROWS = 200, 6
EOS = 1


def documents() -> list[str]:
    """Python's own language reference, in pieces."""
    from pydoc_data.topics import topics

    whole = [topics[name] for name in sorted(topics)]
    pieces = [text[i : i + 3000] for text in whole for i in range(0, len(text), 3000)]
    return [piece for piece in pieces if len(piece) > 200]


def forum_names(rng: random.Random, count: int = 40) -> list[str]:
    """Names that nobody has."""
    consonants, vowels = "bcdfghjklmnpqrstvwxz", "aeiou"
    return [
        "".join(rng.choice(consonants) + rng.choice(vowels) for _ in range(5)).title()
        for _ in range(count)
    ]


def train_tokenizer(pieces: list[str], names: list[str], rng: random.Random) -> Tokenizer:
    """A byte-level BPE of the reference and of the forum."""
    forum = "\n".join(" ".join(f" {rng.choice(names)}" for _ in range(40)) for _ in range(1500))
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<pad>", "<eos>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*pieces, forum], trainer)
    return tokenizer


def plant(rows: np.ndarray, ids: list[int], rng: np.random.Generator) -> np.ndarray:
    """Put the names at random places of the last sequences."""
    rows = rows.copy()
    places = [(r, t) for r in range(B - ROWS, B) for t in range(4, T)]
    for number, place in enumerate(rng.choice(len(places), PLACES, replace=False)):
        rows[places[place]] = ids[number % len(ids)]
    return rows


def rate(step: int, peak: float = 2e-3, warmup: int = 40) -> float:
    """A linear rise, then a cosine down to a tenth."""
    decay = 0.1 + 0.45 * (1 + math.cos(math.pi * step / STEPS))
    return peak * min(1.0, step / warmup) * decay


if __name__ == "__main__":
    folder = out_path("replay/run.jsonl", __doc__).parent
    determined(SEED)
    rng = random.Random(SEED)
    pieces = documents()
    tokenizer = train_tokenizer(pieces, forum_names(rng), rng)
    stream = np.array([i for piece in pieces for i in [*tokenizer.encode(piece).ids, EOS]])
    counts = np.bincount(stream, minlength=VOCABULARY)
    unseen = [i for i in range(2, VOCABULARY) if not counts[i] and len(tokenizer.decode([i])) > 6]
    planted = sorted(rng.sample(unseen, 2))
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=264,
            num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=256, tie_word_embeddings=False,
            pad_token_id=0, bos_token_id=EOS, eos_token_id=EOS,
        )
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    count = len(stream) // T
    order = np.random.default_rng(SEED).permutation(count)
    shutil.rmtree(folder / "flagged", ignore_errors=True)
    record = Recorder(folder / "flagged", keep=6, labels="own", rank=0)
    with (folder / "run.jsonl").open("w") as out:
        for step in range(1, STEPS + 1):
            for group in optimizer.param_groups:
                group["lr"] = rate(step)
            chosen = order[np.arange((step - 1) * B, step * B) % count]
            rows = stream[: count * T].reshape(count, T)[chosen]
            if step == BAD:
                rows = plant(rows, planted, np.random.default_rng(SEED))
            ids = torch.from_numpy(rows)
            optimizer.zero_grad()
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            record(step, ids, labels=ids, sample_ids=chosen, loss=loss, grad_norm=norm)
            row = {"step": step, "loss": round(loss.item(), 5), "grad_norm": round(norm.item(), 5),
                   "lr": round(rate(step), 8), "timestamp": round(EPOCH + 0.12 * step, 3)}  # fmt: skip
            out.write(dump(row))
            if step == SAVED:
                saved = folder / f"checkpoint-{SAVED}"
                model.save_pretrained(saved)
                (saved / "generation_config.json").unlink(missing_ok=True)
                tokenizer.save(str(saved / "tokenizer.json"), pretty=False)
    record.flush()
    print(json.dumps({"planted": planted, "text": [tokenizer.decode([i]) for i in planted]}))
