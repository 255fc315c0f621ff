# /// script
# requires-python = ">=3.11"
# dependencies = ["wandb==0.31.0"]
# ///
"""Stretches of two runs, logged again through W&B itself, without a network.

``bad_batch.wandb`` holds steps 501..700 of jsonl/bad_batch.jsonl. ``restart`` is a folder of runs:
steps 541..620 of jsonl/restart.jsonl in one attempt whose process is killed, so that no exit
record is written, then 501..600 in another under the same id. W&B counts ``_step`` from 0 in each.
What it records of the machine is switched off; the times logged are those of the samples.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from places import SAMPLES, out_path

NAMES = {
    "loss": "train/loss",
    "grad_norm": "train/grad_norm",
    "lr": "train/learning_rate",
    "val_loss": "eval/loss",
    "step": "train/global_step",
    "timestamp": "_timestamp",
}
PARTS = (
    ("bad_batch", "badbatch", "jsonl/bad_batch.jsonl", (501, 700), "finish"),
    ("restart", "restarts", "jsonl/restart.jsonl", (541, 620), "kill"),
    ("restart", "restarts", "jsonl/restart.jsonl", (501, 600), "finish"),
)


def rows(log, first, last, attempt):
    """The configuration of a log, and its rows in a stretch of steps of one attempt."""
    config, *lines = [json.loads(line) for line in (SAMPLES / log).read_text().splitlines()]
    lines = [row for row in lines if "step" in row]
    steps = [row["step"] for row in lines]
    back = next((i for i in range(1, len(steps)) if steps[i] < steps[i - 1]), len(steps))
    part = lines[back:] if attempt else lines[:back]
    return config.get("config", {}), [row for row in part if first <= row["step"] <= last]


def write(number, folder):
    """Log one part; runs in a process of its own."""
    import wandb

    name, run_id, log, (first, last), end = PARTS[number]
    config, kept = rows(log, first, last, attempt=number == 2)
    settings = wandb.Settings(
        mode="offline",
        silent=True,
        host="host",
        username="user",
        disable_git=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_disable_machine_info=True,
        console="off",
        program="train.py",
        program_relpath="train.py",
        save_code=False,
    )
    run = wandb.init(
        project="samples", id=run_id, name=name, dir=folder, config=config, settings=settings
    )
    for row in kept:
        run.log({NAMES[key]: value for key, value in row.items() if key in NAMES})
    if end == "kill":
        time.sleep(3)  # W&B writes what it was given, a little later
        os.kill(os.getpid(), signal.SIGKILL)
    run.finish()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--part"]:
        write(int(sys.argv[2]), sys.argv[3])
        sys.exit()
    target = out_path("wandb/bad_batch.wandb", __doc__)
    for number, (name, run_id, *_) in enumerate(PARTS):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, __file__, "--part", str(number), folder], check=False)
            time.sleep(3)  # until the process that writes has seen that the other is gone
            (made,) = Path(folder, "wandb").glob("offline-run-*/*.wandb")
            if name == "bad_batch":
                shutil.copyfile(made, target)
            else:
                place = target.parent / name / f"offline-run-20260101_08000{number}-{run_id}"
                place.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(made, place / made.name)
