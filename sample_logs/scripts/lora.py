# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.4", "numpy>=1.26", "transformers>=5.0", "accelerate>=1.0"]
# ///
"""Three fine-tunes of low-rank adapters under transformers' Trainer, 300 steps each.

A Llama of two layers is first trained on prose for 500 steps. Its weights are then cast to
fp16 and frozen, and fp32 adapters of rank 8 learn source code of the standard library.

- lora_fine: a warm-up of 50 steps; clipping at 1.0. Healthy.
- lora_nan: 50 times that rate and no warm-up. The activations outgrow fp16, and everything is
  NaN from step 9 on. Trainer hides it: it writes a loss of 0.0 and a gradient norm of NaN. This
  run counts its tokens, for which Trainer writes train_runtime into every row: real times.
- lora_spike: as lora_fine but without clipping, and the batch of step 180 is corrupted (bytes
  drawn at random). The loss comes back at once.

A model this small bears higher rates than one of billions: what 2e-4 and 1e-3 are to those,
2e-3 and 0.1 are here. Writes hf-trainer/<run>/trainer_state.json, the file that Trainer leaves
in its last checkpoint.
"""

import copy
import importlib.util
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from places import out_path
from tiny_gpt import SEED, T, Text, V, determined, garbage
from torch import nn

B, STEPS, BAD = 16, 300, 180
SOURCES = ("argparse", "ast", "inspect", "tarfile", "typing", "zipfile")
RUNS = {
    "lora_fine": {"learning_rate": 2e-3, "warmup_steps": 50, "max_grad_norm": 1.0},
    "lora_nan": {
        "learning_rate": 0.1,
        "warmup_steps": 0,
        "max_grad_norm": 1.0,
        "include_num_input_tokens_seen": "all",
    },
    "lora_spike": {"learning_rate": 2e-3, "warmup_steps": 50, "max_grad_norm": 0.0},
}


class Adapter(nn.Module):
    """A frozen linear layer plus a trainable one of rank 8."""

    def __init__(self, base: nn.Linear, rank: int = 8, alpha: float = 16.0) -> None:
        super().__init__()
        self.base, self.scale = base, alpha / rank
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        """Return the layer's output in the precision of the base."""
        return self.base(x) + (x.float() @ self.down.T @ self.up.T * self.scale).to(x.dtype)


def base_model() -> nn.Module:
    """Return a small Llama trained on prose for a while."""
    config = transformers.LlamaConfig(
        vocab_size=V,
        hidden_size=64,
        intermediate_size=176,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=T,
        tie_word_embeddings=True,
    )
    model = transformers.LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    text = Text()
    for step in range(500):
        inputs_BT, _ = text.batch(step, seed=SEED)
        model(input_ids=inputs_BT, labels=inputs_BT).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def adapted(model: nn.Module) -> nn.Module:
    """Freeze a model in fp16 and put adapters on its linear layers."""
    model = model.half().requires_grad_(requires_grad=False)
    for layer in model.model.layers:
        for module in (layer.self_attn, layer.mlp):
            for name, child in list(module.named_children()):
                if isinstance(child, nn.Linear):
                    setattr(module, name, Adapter(child))
    return model


class Code(torch.utils.data.Dataset):
    """Sequences of source code in the order in which they are trained on."""

    def __init__(self, *, bad: int | None = None, held_out: bool = False) -> None:
        origins = [importlib.util.find_spec(name).origin for name in SOURCES]
        raw = b"\n".join(Path(origin).read_bytes() for origin in origins)
        tokens = torch.from_numpy(np.frombuffer(raw, np.uint8).astype(np.int64))
        cut = len(tokens) * 9 // 10
        tokens = tokens[cut:] if held_out else tokens[:cut]
        rng = np.random.default_rng((SEED, int(held_out)))
        size = 8 * B if held_out else STEPS * B
        starts = torch.from_numpy(rng.integers(0, len(tokens) - T, size))
        self.rows = tokens[starts[:, None] + torch.arange(T)]
        if bad is not None:
            self.rows[(bad - 1) * B : bad * B] = garbage(bad, seed=SEED)[0][:B]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


class InOrder(transformers.Trainer):
    """Trainer that does not shuffle, so that a batch is where it was put."""

    def _get_train_sampler(self, *_args):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def fine_tune(base: nn.Module, name: str, path: Path) -> None:
    """Run one fine-tune and keep the state file of its last checkpoint."""
    determined()
    model = adapted(copy.deepcopy(base))
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            max_steps=STEPS,
            per_device_train_batch_size=B,
            logging_steps=1,
            eval_strategy="steps",
            eval_steps=50,
            save_steps=STEPS,
            lr_scheduler_type="cosine",
            report_to="none",
            use_cpu=True,
            seed=SEED,
            disable_tqdm=True,
            **RUNS[name],
        )
        bad = BAD if name == "lora_spike" else None
        data = {"train_dataset": Code(bad=bad), "eval_dataset": Code(held_out=True)}
        InOrder(model, arguments, **data).train()
        path.mkdir(parents=True, exist_ok=True)
        shutil.copy(f"{folder}/checkpoint-{STEPS}/trainer_state.json", path)


if __name__ == "__main__":
    parent = out_path("hf-trainer/lora_fine", __doc__).parent
    determined()
    base = base_model()
    for run in RUNS:
        fine_tune(base, run, parent / run)
