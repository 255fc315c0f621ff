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


LN2 = 0.6931471805599453


def fairseq():
    text = (
        "2026-01-01 08:00:00 | INFO | metaseq.cli.train | {'clip_norm': 1.0, 'seed': 1,"
        " 'max_update': 1000, 'lr': [0.003], 'warmup_updates': 100, 'weight_decay': 0.1}\n"
        "2026-01-01 08:00:00 | INFO | metaseq.cli.train | num. model params: 120,576 (num. trained:"
        " 120,576)\n2026-01-01 08:00:01 | INFO | metaseq.cli.train | training on 8 devices (GPUs)\n"
    )
    plain = ""
    for i, row in enumerate(STEPS):
        stamp = when(row, "%Y-%m-%d %H:%M:%S")
        values = {
            "loss": f"{row['loss'] / LN2:.3f}",
            "ppl": f"{2.718281828459045 ** row['loss']:.2f}",
            "wps": f"{0 if i == 0 else row['tokens_per_sec']:g}",
            "ups": f"{1 / row['step_time']:.2f}",
            "wpb": f"{TOKENS:g}",
            "bsz": f"{SEQUENCES:g}",
            "num_updates": str(row["step"]),
            "lr": f"{row['lr']:g}",
            "gnorm": f"{row['grad_norm']:.3f}",
            "clip": "100",
            "loss_scale": "8",
            "train_wall": "0",
            "wall": f"{(row['timestamp'] - STEPS[0]['timestamp']):.0f}",
        }
        if i == 150:  # every gradient of the window overflowed
            values = {k: v for k, v in values.items() if k not in ("gnorm", "ups", "clip")}
            text += f"{stamp} | INFO | metaseq.trainer | NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: 4.0\n"
        shown = json.dumps({"epoch": 1, "update": round(row["step"] / 1e6, 3), **values})
        text += f"slurm_procid 0 : {stamp} | INFO | train_inner | {shown}\n"
        if row["step"] in EVALUATIONS:
            loss = EVALUATIONS[row["step"]]
            shown = json.dumps(
                {
                    "epoch": 1,
                    "valid_loss": f"{loss / LN2:.3f}",
                    "valid_ppl": f"{2.718281828459045**loss:.2f}",
                    "valid_num_updates": str(row["step"]),
                }
            )
            text += f"{stamp} | INFO | valid | {shown}\n"
        if 80 <= i < 130:
            listed = ", ".join(f"{k}={v}" for k, v in values.items())
            plain += f"{stamp} | INFO | train_inner | epoch 001: {row['step']:6d} / 5000 {listed}\n"
            if row["step"] in EVALUATIONS:
                plain += (
                    f"{stamp} | INFO | valid | epoch 001 | valid on 'valid' subset | loss"
                    f" {EVALUATIONS[row['step']] / LN2:.3f} | ppl 5.57 | wps 0 | num_updates {row['step']}\n"
                )
    write("fairseq/bad_batch.log", text)
    write("fairseq/simple.log", plain)


def human(value):
    for size, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if value >= size:
            return f"{value / size:.3g}{suffix}"
    return f"{value:.3g}"


def nanotron():
    head = "\x1b[2;3m{} [INFO|DP=0|PP=0|TP=0|node1]\x1b[0m: "
    text = "".join(
        head.format("01/01 08:00:00") + line + "\n"
        for line in (
            "Config(general=GeneralArgs(project='toy', seed=42,",
            "       checkpoints=CheckpointsArgs(checkpoint_interval=100,",
            "       parallelism=ParallelismArgs(dp=4, pp=1, tp=2,",
            "       optimizer=OptimizerArgs(weight_decay=0.1, clip_grad=1.0, learning_rate=0.003,",
            "       lr_warmup_steps=100, sequence_length=64,",
            "Total number of parameters: 121K (0.23MiB)",
        )
    )
    for row in STEPS:
        text += (
            head.format(when(row, "%m/%d %H:%M:%S"))
            + f"iteration: {row['step']} / {TOTAL} | consumed_tokens: {human(row['step'] * TOKENS)} |"
            f" time_per_iteration_ms: {human(row['step_time'] * 1000)} | tokens_per_sec:"
            f" {human(row['tokens_per_sec'])} | tokens_per_sec_per_gpu:"
            f" {human(row['tokens_per_sec'] / 8)} | global_batch_size: {human(TOKENS)} | grad_norm:"
            f" {human(row['grad_norm'])} | lm_loss: {human(row['loss'])} | lr: {human(row['lr'])} |"
            " model_tflops_per_gpu: 0.011 | eta: 17:20:00\n"
        )
    write("nanotron/bad_batch.log", text)


def litgpt():
    text = "Seed set to 42\nTotal parameters: 120,576\n"
    held_out = "n/a"
    for row in STEPS:
        for half in (1, 2):  # two micro-batches a step
            text += (
                f"Epoch 1 | iter {2 * row['step'] - 2 + half} step {row['step'] - 2 + half} | loss train:"
                f" {row['loss']:.3f}, val: {held_out} | iter time: {row['step_time'] * 500:.2f} ms"
                f"{' (step)' if half == 2 else ''} remaining time: 1:02:03\n"
            )
        if row["step"] in EVALUATIONS:
            held_out = f"{EVALUATIONS[row['step']]:.3f}"
            text += f"iter {2 * row['step']}: val loss {EVALUATIONS[row['step']]:.4f}, val time: 1234.56 ms\n"
    write("litgpt/bad_batch.log", text)


def torchtune():
    text = ""
    for i, row in enumerate(STEPS):
        loss = "nan" if i == 199 else f"{row['loss']!r}"
        text += (
            f"Step {row['step']} | loss:{loss} lr:{row['lr']!r} tokens_per_second_per_gpu:"
            f"{row['tokens_per_sec']!r} grad_norm:tensor({row['grad_norm']!r}, device='cuda:0')\n"
        )
        if row["step"] in EVALUATIONS:
            text += f"Step {row['step']} | val_loss:{EVALUATIONS[row['step']]!r} \n"
    write("torchtune/log_1767254400.txt", text)


def mlx():
    text = "Trainable parameters: 100.000% (0.121M/0.121M)\nStarting training..., iters: 1000\n"
    for row in STEPS:
        if row["step"] in EVALUATIONS:
            text += (
                f"Iter {row['step']}: Val loss {EVALUATIONS[row['step']]:.3f}, Val took 12.345s\n"
            )
        text += (
            f"Iter {row['step']}: Train loss {row['loss']:.3f}, Learning Rate {row['lr']:.3e}, It/sec"
            f" {1 / row['step_time']:.3f}, Tokens/sec {row['tokens_per_sec']:.3f}, Trained Tokens"
            f" {row['step'] * TOKENS}, Peak mem 0.512 GB\n"
        )
        if row["step"] % 100 == 0:
            text += f"Iter {row['step']}: Saved adapter weights to adapters/adapters.safetensors.\n"
    write("mlx/bad_batch.log", text)


def prime_rl():
    with (LOGS / "jsonl/entropy_collapse.jsonl").open() as policy:
        rows = [r for r in map(json.loads, policy) if "step" in r][:120]
    text, orchestrator = "", ""
    for row in rows:
        norm = "nan" if row["step"] == 100 else f"{row['grad_norm']:.4f}"
        text += (
            f"03:04:05 SUCCESS Step {row['step']} |   1.23s | Loss {row['loss']:.4f} | Entropy"
            f" {row['entropy']:.4f} | Mismatch KL 0.0012 | Grad. Norm {norm} | LR {row['lr']:.2e} |"
            " Throughput 12345 tokens/s | MFU 31.2% | Peak Mem. 70.1 GiB\n"
        )
        orchestrator += (
            f"03:04:05 SUCCESS Step {row['step']} | Time: 5.20s | Reward: {row['reward']:.4f} |"
            f" Throughput: 2345.6 tokens/s | Seq. Length: {row['response_length/mean']:.1f} tokens/sample\n"
        )
    write("prime-rl/trainer.log", text)
    write("prime-rl/orchestrator.log", orchestrator)
    supervised = "".join(
        f"03:04:05 SUCCESS Step {r['step']} |   0.03s | Loss {r['loss']:.4f} | Grad. Norm"
        f" {r['grad_norm']:.4f} | LR {r['lr']:.2e} | Throughput {r['tokens_per_sec']:.0f} tokens/s | MFU"
        " 31.2% | Peak Mem. 0.5 GiB\n"
        for r in STEPS
    )
    write("prime-rl/supervised.log", supervised)


PRINTED = [maxtext, nemo, olmo, composer, fairseq, nanotron, litgpt, torchtune, mlx, prime_rl]
for each in PRINTED:
    each()
