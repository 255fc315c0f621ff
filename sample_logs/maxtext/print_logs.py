"""Prints a real small run in the grammars of more frameworks, into the folders of their readers.

python sample_logs/maxtext/print_logs.py

The numbers are those of jsonl/bad_batch.jsonl from step 501 on; the lines are what each
framework's own format strings make of them. What that run did not log, and what stands in files
named ``oddities``, is made up.
"""

import json
from datetime import UTC, datetime
from pathlib import Path

LOGS = Path(__file__).parents[1]
FIRST, LAST, TOTAL = 501, 700, 1000
TOKENS, SEQUENCES = 2048, 32

with (LOGS / "jsonl/bad_batch.jsonl").open() as lines:
    RUN = [r for r in map(json.loads, lines) if FIRST <= r.get("step", 0) <= LAST]
STEPS = [r for r in RUN if "loss" in r]
EVALUATIONS = {r["step"]: r["val_loss"] for r in RUN if "val_loss" in r}


def when(row, form="%Y-%m-%d %H:%M:%S.%f"):
    return datetime.fromtimestamp(row["timestamp"], UTC).strftime(form)


def write(path, text):
    path = LOGS / path
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="")


MAXTEXT_CONFIG = {
    "adam_weight_decay": 0.1,
    "checkpoint_period": 100,
    "data_shuffle_seed": 0,
    "dtype": "bfloat16",
    "enable_checkpointing": True,
    "global_batch_size_to_train_on": SEQUENCES,
    "gradient_clipping_threshold": 1.0,
    "hardware": "tpu",
    "init_weights_seed": 7,
    "learning_rate": 0.003,
    "max_target_length": 64,
    "num_target_devices": 4,
    "steps": TOTAL,
    "warmup_steps_fraction": 0.1,
}


def maxtext_line(row, loss, *, lm="", more=""):
    return (
        f"I{when(row, '%m%d %H:%M:%S.%f')} 140110937163584 metric_logger.py:214] completed step:"
        f" {row['step']}, seconds: {row['step_time']:.3f}, TFLOP/s/device: 0.011, Tokens/s/device:"
        f" {row['tokens_per_sec'] / 4:.3f}, total_weights: {TOKENS}, loss: {loss}{lm}{more}\n"
    )


def maxtext():
    config = "".join(
        f"I0101 08:00:00.000000 140110937163584 pyconfig.py:559] Config param {k}: {v}\n"
        for k, v in MAXTEXT_CONFIG.items()
    )
    begin = (
        config
        + "I0101 08:00:10.000000 140110937163584 metric_logger.py:341] number parameters: 0.120 billion\n"
    )
    text = begin
    for row in STEPS:
        lm = f", lm_loss: {row['loss']:.3f}, perplexity: {2.718281828459045 ** row['loss']:.3f}"
        balance = ", moe_lb_loss: 0.010"
        text += maxtext_line(row, f"{row['loss'] + 0.01:.3f}", lm=lm, more=balance)
        if row["step"] in EVALUATIONS:
            loss = EVALUATIONS[row["step"]]
            text += (
                f"I{when(row, '%m%d %H:%M:%S.%f')} 140110937163584 metric_logger.py:190] eval"
                f" metrics after step: {row['step']}, loss={loss:.3f}, total_weights=75264.0\n"
            )
    write("maxtext/bad_batch.log", text)
    odd = begin
    for i, row in enumerate(STEPS[:40]):
        if i < 5:  # the batch grows: nothing is measured
            odd += f"[Rampup Batch Size Phase] completed step: {row['step']}, total_weights: 512, loss: 1.912\n"
        elif i == 20:
            odd += f"Completed eval after train step {row['step']}, loss=2.1, perplexity=8.166, total_weights=75264.0\n"
        elif i == 39:
            odd += maxtext_line(row, "nan", lm=", lm_loss: nan, perplexity: nan")
            odd += "Aborting training due to NaN loss.\n"
        else:
            odd += maxtext_line(row, "1.890")
    write("maxtext/oddities.log", odd)


def nemo():
    text = (
        "[default0]:[NeMo I 2026-01-01 08:00:00 utils:302] Setting up optimizer with config"
        " OptimizerConfig(optimizer='adam', lr=0.003, min_lr=None, decoupled_lr=None,"
        " weight_decay=0.1, fp16=False, bf16=True, clip_grad=1.0)\n"
        "[default0]:All distributed processes registered. Starting with 8 processes\n"
    )
    held_out = ""
    for row in STEPS:
        text += (
            f"[default0]:Training epoch 0, iteration {row['step']}/{TOTAL - 1} | lr:"
            f" {row['lr']:.4} | global_batch_size: {SEQUENCES} | global_step: {row['step']} |"
            f" reduced_train_loss: {row['loss']:.4} | train_step_timing in s:"
            f" {row['step_time']:.4} | consumed_samples: {row['step'] * SEQUENCES}{held_out}\n"
        )
        if row["step"] in EVALUATIONS:
            text += "".join(f"[default0]:Validation: iteration {i}/3\n" for i in (1, 2, 3))
            held_out = f" | val_loss: {EVALUATIONS[row['step']]:.4}"
            text += (
                "[default0]:[NeMo I 2026-01-01 08:00:09 model_checkpoint:522] Async checkpoint save"
                f" for step {row['step'] + 1} (/results/step={row['step']}.ckpt) finalized.\n"
            )
    text += f"[default0]:`Trainer.fit` stopped: `max_steps={LAST + 1}` reached.\n"
    write("nemo/bad_batch.log", text)
    odd = ""
    for i, row in enumerate(STEPS[:30]):
        for rank, loss in ((0, 0.0), (7, row["loss"])):  # the first pipeline stage has no loss
            shown = "nan" if i == 20 and rank else f"{loss:.4}"
            odd += (
                f"[default{rank}]:Training epoch 0, iteration {i}/29 | lr: 0.0003 |"
                f" global_batch_size: 512 | reduced_train_loss: {shown} | train_step_timing in s:"
                f" 7.5 | grad_norm: {row['grad_norm']:.4}\n"
            )
    write("nemo/oddities.log", odd)


def olmo():
    text = "2026-01-01 08:00:00.000\thost:0\tolmo.train:210\tINFO\tTotal parameters: 120,576\n"
    for row in STEPS:
        text += (
            f"{when(row)[:-3]}\thost:0\tolmo.train:979\tINFO\t[step={row['step']}/{TOTAL},epoch=0]\n"
            f"    optim/total_grad_norm={row['grad_norm']:.4f}\n"
            f"    optim/learning_rate_group0={row['lr']:.4f}\n"
            f"    train/CrossEntropyLoss={row['loss']:.4f}\n"
            f"    train/Perplexity={2.718281828459045 ** row['loss']:.3f}\n"
            f"    throughput/total_tokens={row['step'] * TOKENS:,}\n"
            f"    throughput/device/tokens_per_second={int(row['tokens_per_sec']):,}\n"
            "    System/Peak GPU Memory (MB)=1,234\n"
        )
        if row["step"] % 100 == 0:
            text += (
                f"{when(row)[:-3]}\thost:0\tolmo.train:401\tINFO\tSaving checkpoint to"
                f" /results/step{row['step']}...\n"
            )
    write("olmo/bad_batch.log", text)
    core = ""
    for i, row in enumerate(STEPS[80:130]):
        loss = "nan" if i == 45 else f"{row['loss']:.3f}"
        core += (
            f"{when(row)}\thost:0\tolmo_core.train.callbacks.console_logger:104\tINFO\t"
            f"[step={row['step']}/???,epoch=1,eta=1h 2m]\n"
            f"    optim/LR (group 0)={row['lr']:.2E}\n"
            f"    optim/step skipped={int(i == 30)}\n"
            f"    optim/total grad norm={row['grad_norm']:.3f}\n"
            "    throughput/device/MFU=41.2\n"
            "    throughput/device/TPS (actual avg)=7,900\n"
            f"    throughput/device/TPS={row['tokens_per_sec'] / 8:,.0f}\n"
            f"    throughput/total tokens={row['step'] * TOKENS / 1e9:.5f}B\n"
            "    train/block 03/load imbalance=1.25\n"
            f"    train/CE loss={loss}\n"
            "    train/load balancing loss=1.01\n"
            "    train/masked labels (%)=0.01\n"
            "    train/Z loss=1.23E-05\n"
        )
    write("olmo/olmo_core.log", core)


FOUNDRY = """\
******************************
Config:
max_seq_len: 64
n_params: 120576
n_gpus: 8
global_train_batch_size: 32
seed: 17
precision: amp_bf16
save_interval: 100ba
scheduler:
  name: cosine_with_warmup
  t_warmup: 100ba
optimizer:
  lr: 0.003
  weight_decay: 0.1
algorithms:
  gradient_clipping:
    clipping_threshold: 1.0
******************************
"""


def foundry_values(row, loss):
    return (
        f"\t Train time/batch: {row['step'] - 1}\n"
        f"\t Train time/token: {(row['step'] - 1) * TOKENS}\n"
        f"\t Train loss/train/total: {loss}\n"
        f"\t Train metrics/train/LanguageCrossEntropy: {loss}\n"
        f"\t Train l2_norm/grad/global: {row['grad_norm']:.4f}\n"
        f"\t Train throughput/tokens_per_sec: {row['tokens_per_sec']:.4f}\n"
        f"\t Train throughput/device/tokens_per_sec: {row['tokens_per_sec'] / 8:.4f}\n"
        "\t Train throughput/device/mfu: 0.4012\n"
        f"\t Train lr-DecoupledAdamW/group0: {row['lr']:.4f}\n"
        "\t Train time/remaining_estimate_unit: hours\n"
    )


def composer():
    text = FOUNDRY
    for row in STEPS:
        text += f"[batch={row['step']}/{TOTAL}]:\n" + foundry_values(row, f"{row['loss']:.4f}")
        if row["step"] in EVALUATIONS:
            loss = EVALUATIONS[row["step"]]
            text += (
                "[Eval batch=1/2] Eval on eval data:\n[Eval batch=2/2] Eval on eval data:\n"
                f"\t Eval metrics/eval/LanguageCrossEntropy: {loss:.4f}\n"
                f"\t Eval metrics/eval/LanguagePerplexity: {2.718281828459045**loss:.4f}\n"
            )
    write("composer/bad_batch.log", text)
    odd = ""
    for i, row in enumerate(STEPS[80:110]):  # a schedule in tokens, and a loss that breaks
        odd += f"[token={row['step'] * TOKENS}/{TOTAL * TOKENS}]:\n"
        odd += foundry_values(row, "nan" if i == 25 else f"{row['loss']:.4f}")
    write("composer/oddities.log", odd)


PRINTED = [maxtext, nemo, olmo, composer]
for each in PRINTED:
    each()
