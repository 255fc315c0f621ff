"""Prints a real small run as the consoles of more trainers do, into the folders of their readers.

python sample_logs/keras/print_logs.py

The numbers are those of jsonl/bad_batch.jsonl from step 501 on, of jsonl/clean.jsonl where epochs
are evaluated, and of jsonl/entropy_collapse.jsonl for policies; the lines are what each framework's own format strings make of them.
"""

import json
from datetime import UTC, datetime
from pathlib import Path

LOGS = Path(__file__).parents[1]
FIRST, LAST, TOTAL, EPOCH = 501, 700, 1000, 100
SEQUENCES = 32


def rows(name):
    with (LOGS / "jsonl" / name).open() as file:
        return [row for row in map(json.loads, file) if "step" in row]


RUN = [r for r in rows("bad_batch.jsonl") if FIRST <= r["step"] <= LAST]
STEPS = [r for r in RUN if "loss" in r]
EVALUATIONS = {r["step"]: r["val_loss"] for r in RUN if "val_loss" in r}
CLEAN = rows("clean.jsonl")
POLICY = rows("entropy_collapse.jsonl")[:120]


def write(path, text):
    path = LOGS / path
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="")


def keras():
    text = ""
    for row in STEPS:
        epoch, at = (row["step"] - 1) // EPOCH + 1, (row["step"] - 1) % EPOCH + 1
        if at == 1:
            text += f"Epoch {epoch}/{TOTAL // EPOCH}\n"
        done = "=" * (30 * at // EPOCH)
        text += f"\r{at:3d}/{EPOCH} [{done + '>' if at < EPOCH else done:.<30}]"
        text += " - ETA: 3s" if at < EPOCH else " - 3s 32ms/step"
        text += f" - loss: {row['loss']:.4f} - lr: {row['lr']:.4e}"
        if at == EPOCH:
            text += f" - val_loss: {EVALUATIONS[row['step']]:.4f}\n"
    text += "25/25 [==============================] - 0s 8ms/step - loss: 1.7000\n"
    write("keras/fit.log", text)
    text = ""
    for first in range(0, len(STEPS), 10):
        part = STEPS[first : first + 10]
        mean = sum(row["loss"] for row in part) / len(part)
        last = part[-1]
        text += f"Epoch {last['step'] // 10}/{TOTAL // 10}\n10/10 - 0s - loss: {mean:.4f}"
        if last["step"] in EVALUATIONS:
            text += f" - val_loss: {EVALUATIONS[last['step']]:.4f}"
        text += f" - lr: {last['lr']:.4e} - 320ms/epoch - 32ms/step\n"
    text += "25/25 - 0s - loss: 1.7000 - 200ms/epoch - 8ms/step\n"
    write("keras/fit_lines.log", text)


def pytorch_examples():
    quick, example = "", f"python main.py --batch-size {SEQUENCES} --epochs 10\n"
    size = EPOCH * SEQUENCES
    for row in STEPS:
        epoch, batch = divmod(row["step"] - 1, EPOCH)
        if not batch:
            quick += f"Epoch {epoch + 1}\n-------------------------------\n"
        quick += f"loss: {row['loss']:>7f}  [{(batch + 1) * SEQUENCES:>5d}/{size:>5d}]\n"
        example += (
            f"Train Epoch: {epoch + 1} [{batch * SEQUENCES}/{size} ({batch:.0f}%)]"
            f"\tLoss: {row['loss']:.6f}\n"
        )
        if row["step"] in EVALUATIONS:
            loss = EVALUATIONS[row["step"]]
            quick += f"Test Error: \n Accuracy: {45.5:>0.1f}%, Avg loss: {loss:>8f} \n\n"
            example += f"\nTest set: Average loss: {loss:.4f}, Accuracy: 910/2000 (46%)\n\n"
    write("pytorch-examples/quickstart.log", quick + "Done!\n")
    write("pytorch-examples/mnist.log", example)


def epochs():
    """Return the mean loss of each hundred steps of the healthy run, and the loss held out."""
    losses = {row["step"]: row["loss"] for row in CLEAN if "loss" in row}
    held_out = {row["step"]: row["val_loss"] for row in CLEAN if "val_loss" in row}
    parts = {end: [losses[s] for s in range(end - 99, end + 1) if s in losses] for end in held_out}
    return [(end, sum(part) / len(part), held_out[end]) for end, part in parts.items() if part]


CARD = """\
---
library_name: transformers
tags:
- generated_from_trainer
---

# tiny

It achieves the following results on the evaluation set:
- Loss: {last:.4f}

### Training hyperparameters

The following hyperparameters were used during training:
- learning_rate: 0.003
- train_batch_size: 32
- seed: 1234
- lr_scheduler_warmup_steps: 100

### Training results

| Training Loss | Epoch | Step | Validation Loss |
|:-------------:|:-----:|:----:|:---------------:|
"""


def tables():
    parts = epochs()
    text = CARD.format(last=parts[-1][2])
    for i, (step, loss, held_out) in enumerate(parts):
        train = f"{loss:.4f}" if i else "No log"
        text += f"| {train:<13} | {step / 1000:<5} | {step:<4} | {held_out:<15.4f} |\n"
    text += "\n\n### Framework versions\n\n- Transformers 5.24.0\n"
    write("console-table/card.markdown", text)
    text = f" [{LAST - FIRST + 1}/{TOTAL} 02:02, Epoch 0/1]\nStep\tTraining Loss\n"
    text += "".join(f"{row['step']}\t{row['loss']:.6f}\n" for row in STEPS)
    last = sum(row["loss"] for row in STEPS) / len(STEPS)
    text += (
        f"TrainOutput(global_step={LAST}, training_loss={last}, metrics={{'train_loss': {last}}})\n"
    )
    write("console-table/notebook.txt", text)
    text = "epoch     train_loss  valid_loss  time    \n"
    for epoch, (_, loss, held_out) in enumerate(parts):
        text += f"{epoch:<10}{loss:<12.6f}{held_out:<12.6f}{'00:03':<8}\n"
    write("console-table/fastai.log", text)


def metrics(row, policy):
    return {
        f"{policy}/entropy": row["entropy"],
        f"{policy}/pg_loss": row["loss"],
        f"{policy}/grad_norm": "nan" if row["step"] == 100 else row["grad_norm"],
        f"{policy}/lr": row["lr"],
        "critic/rewards/mean": row["reward"],
        "response_length/mean": row["response_length/mean"],
    }


def verl():
    text = ""
    for row in POLICY:
        text += f"\x1b[36m(TaskRunner pid=4242, ip=10.0.0.1)\x1b[0m step:{row['step']}\n"
        text += "".join(f" - {name}:{value}\n" for name, value in metrics(row, "actor").items())
    write("verl/ray_job.log", text)


def areal():
    """Four names and values stand side by side in a row of a table."""
    text, line = "", "├" + "┼".join(["─" * 34, "─" * 13] * 4) + "┤\n"
    for row in POLICY:
        when = datetime.fromtimestamp(row["timestamp"], UTC)
        logger = f"(AReaL) {when:%Y%m%d-%H:%M:%S}.{when.microsecond // 1000:03d} StatsLogger INFO:"
        said = {
            "ppo_actor/update/entropy/avg": row["entropy"],
            "ppo_actor/update/actor_loss/avg": row["loss"],
            "ppo_actor/update/grad_norm": float("nan") if row["step"] == 100 else row["grad_norm"],
            "ppo_actor/update/lr": row["lr"],
            "ppo_actor/task_reward/avg": row["reward"],
            "ppo_actor/seq_len/avg": row["response_length/mean"],
        }
        text += f"\x1b[92m{logger} Epoch 1/10 Step {row['step']}/400 Train step {row['step']}/4000"
        text += f" done.\x1b[0m\n{logger} Stats (1/1):\n{logger} \n"
        items = list(said.items())
        rows = -(-len(items) // 4)
        text += line
        for i in range(rows):
            cells = [f" {name:<32} │  {value:.4e} " for name, value in items[i::rows]]
            cells += [" " * 34 + "│" + " " * 13] * (4 - len(cells))
            text += "│" + "│".join(cells) + "│\n" + line
    write("areal/grpo.log", text)


def nemo_rl():
    text = ""
    for row in POLICY:
        text += f"\n{'=' * 25} Step {row['step']}/400 {'=' * 25}\n▶ Preparing batch...\n"
        if row["step"] % 40 == 0:
            text += f"\n📊 Validation Results:\n    • Accuracy: {row['reward']:.4f}\n"
        text += (
            f"\n📊 Training Results:\n  • Loss: {row['loss']:.4f}\n  • Generation KL Error: 0.0012\n"
            f"  • Avg Reward: {row['reward']:.4f}\n"
            f"  • Mean Generation Length: {row['response_length/mean']:.4f}\n"
            f"\n⏱️  Timing:\n  • Total step time: {30 + row['entropy']:.2f}s\n"
            "  • generation: 20.10s (66.4%)\n"
            "\n🔍 Performance Metrics:\n  • Mean Total Tokens per Sample: 40.00\n"
            "  • Throughputs (per GPU):\n    - E2E (Samples/sec/gpu): 2.12\n"
        )
    write("nemo-rl/grpo.log", text)


for each in (keras, pytorch_examples, tables, verl, areal, nemo_rl):
    each()
