# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.4", "numpy>=1.26", "tensorboard>=2.17"]
# ///
"""Four corrupted batches in a run of 1,000 steps: the loss spikes and comes back.

The batches of steps 600 to 603 are bytes drawn at random. Writes jsonl/bad_batch.jsonl and, of
the same run and with torch's SummaryWriter, tensorboard/bad_batch/.
"""

import json
import shutil

from places import EPOCH, SAMPLES, dump, out_path
from tiny_gpt import Training
from torch.utils.tensorboard import SummaryWriter

BAD = range(600, 604)
TAGS = {
    "loss": "train/loss",
    "grad_norm": "train/grad_norm",
    "lr": "train/lr",
    "tokens_per_sec": "perf/tokens_per_sec",
    "val_loss": "eval/loss",
}

if __name__ == "__main__":
    path = out_path("jsonl/bad_batch.jsonl", __doc__)
    board = SAMPLES / "tensorboard/bad_batch"
    if path.parent != SAMPLES / "jsonl":
        board = path.with_name("bad_batch_tensorboard")
    shutil.rmtree(board, ignore_errors=True)
    training = Training(total=1000, bad=BAD)
    config = training.config(save_every=100)
    writer = SummaryWriter(str(board))
    writer.add_text("config", json.dumps(config["config"]), walltime=EPOCH)
    with path.open("w") as out:
        out.write(dump(config))
        for row in training.rows():
            out.write(dump(row))
            for key, tag in TAGS.items():
                if key in row:
                    writer.add_scalar(tag, row[key], row["step"], walltime=row["timestamp"])
    writer.close()
    (events,) = board.iterdir()
    events.rename(board / f"events.out.tfevents.{EPOCH:.0f}.host.1.0")
