"""Small real training runs that go on from the bundled checkpoint and meet a bad batch."""

import functools
import json
import warnings
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from stabcli.record import Recorder, callback
from tests.replay.command import CHECKPOINT

PLANTED = (385, 436)
"""The two names that sample_logs/scripts/replay_model.py plants."""
B, T = 8, 64
SAVED, BAD, STEPS = 36, 40, 42


@functools.cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))


@functools.cache
def stream() -> np.ndarray:
    """Python's language reference as the bundled model's token IDs."""
    pieces = [topics[name] for name in sorted(topics)]
    return np.array([i for piece in pieces for i in [*tokenizer().encode(piece).ids, 1]])


def model():
    return AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)


def rows(step: int, seed: int = 3) -> torch.Tensor:
    """The batch of a step, in an order of its own."""
    order = np.random.default_rng(seed).permutation(len(stream()) // T)
    chosen = order[(step - 1) * B : step * B]
    return torch.from_numpy(np.stack([stream()[r * T : (r + 1) * T] for r in chosen]))


def spoilt(step: int) -> torch.Tensor:
    """The same batch with one ID over most of two sequences: a broken record of a shard."""
    ids = rows(step)
    ids[3:5, 6:58] = 700
    return ids


def plain_loop(folder: Path) -> Path:
    """Train with a recorder in the loop; returns the checkpoint of step SAVED."""
    torch.manual_seed(0)
    trained = model().train()
    optimizer = torch.optim.AdamW(trained.parameters(), lr=2e-4, betas=(0.9, 0.95))
    record = Recorder(folder / "flagged", keep=6, labels="own")
    with (folder / "run.jsonl").open("w") as log:
        for step in range(1, STEPS + 1):
            ids = spoilt(step) if step == BAD else rows(step)
            optimizer.zero_grad()
            loss = trained(input_ids=ids, labels=ids).loss
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
            optimizer.step()
            record(step, ids, labels=ids, loss=loss, grad_norm=norm)
            log.write(
                json.dumps({"step": step, "loss": loss.item(), "grad_norm": norm.item()}) + "\n"
            )
            if step == SAVED:
                trained.save_pretrained(folder / f"checkpoint-{SAVED}")
    record.flush()
    return folder / f"checkpoint-{SAVED}"


def with_trainer(folder: Path) -> Path:
    """The same under transformers' Trainer, with its callback; returns Trainer's own checkpoint."""
    from transformers import Trainer, TrainingArguments

    data = []
    for step in range(1, STEPS + 1):
        ids = spoilt(step) if step == BAD else rows(step)
        data += [{"input_ids": row, "labels": row.clone()} for row in ids]

    class InOrder(Trainer):
        def _get_train_sampler(self, *_):
            return torch.utils.data.SequentialSampler(data)

    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=STEPS, per_device_train_batch_size=B // 2,
        gradient_accumulation_steps=2, learning_rate=2e-4, lr_scheduler_type="constant",
        logging_steps=1, save_steps=SAVED, report_to=[], use_cpu=True, disable_tqdm=True, seed=1,
        dataloader_pin_memory=False, adam_beta2=0.95,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        InOrder(
            model=model(), args=arguments, train_dataset=data,
            callbacks=[callback(folder / "flagged", keep=6)],
        ).train()  # fmt: skip
    return folder / f"checkpoint-{SAVED}"
