"""Prints a real small run as the consoles of more trainers do, into the folders of their readers.

python sample_logs/keras/print_logs.py

The numbers are those of jsonl/bad_batch.jsonl (of jsonl/entropy_collapse.jsonl for policies), from
step 501 on; the lines are what each framework's own format strings make of them.
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


for each in (keras, pytorch_examples):
    each()
