# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.4", "numpy>=1.26"]
# ///
"""A run that is killed at step 620 and goes on from the checkpoint of step 500.

Two processes append to one log, as a job that the scheduler starts again does. The first kills
itself without warning after logging step 620; the second loads the checkpoint of step 500, says
so in a second config line and trains to 1,000. Nobody waits between the two: the clock of the
second process is set seven minutes later.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from places import dump, out_path
from tiny_gpt import Clock, Training

KILLED, SAVE_EVERY, PAUSE = 620, 250, 420.0


def train(log: Path, saved: Path, *, killed: int | None) -> None:
    """Train until killed, or to the end; go on from a checkpoint where there is one."""
    training = Training(total=1000)
    first, more = 1, {}
    if saved.exists():
        state = torch.load(saved)
        training.model.load_state_dict(state["model"])
        training.optimizer.load_state_dict(state["optimizer"])
        first, more = state["step"] + 1, {"resumed_from": state["step"]}
        last = json.loads(log.read_text().splitlines()[-1])
        training.clock = Clock(last["timestamp"] + PAUSE)
    with log.open("a", buffering=1) as out:
        out.write(dump(training.config(save_every=SAVE_EVERY, **more)))
        for row in training.rows(first):
            out.write(dump(row))
            if row["step"] % SAVE_EVERY == 0 and "loss" in row:
                state = {"step": row["step"], "model": training.model.state_dict()}
                torch.save({**state, "optimizer": training.optimizer.state_dict()}, saved)
            if row["step"] == killed:
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    path = out_path("jsonl/restart.jsonl", __doc__)
    if "--saved" in sys.argv:
        at = Path(sys.argv[sys.argv.index("--saved") + 1])
        train(path, at, killed=None if at.exists() else KILLED)
    else:
        path.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            command = [
                sys.executable,
                __file__,
                "--out",
                str(path),
                "--saved",
                f"{folder}/saved.pt",
            ]
            ended = [subprocess.run(command, check=False).returncode for _ in range(2)]
        if ended != [-signal.SIGKILL, 0]:
            raise SystemExit(f"restart.py: the two processes ended with {ended}")
