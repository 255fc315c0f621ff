# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.4", "numpy>=1.26"]
# ///
"""SYNTHETIC TIMES: a healthy run whose data loader is slow from step 500 to 650.

The losses and norms are those of a real run with another seed. The times are made up: from step
500 to 650 loading takes two thirds of a step on top, so that throughput falls by 40 %. Writes
csv/slow_stretch.csv.
"""

import csv

from places import out_path
from tiny_gpt import B, T, Training

SLOW = range(500, 651)
COLUMNS = ("step", "loss", "grad_norm", "lr", "tokens_per_sec", "step_time", "data_time")
MORE = ("val_loss", "timestamp", "tokens_per_step", "world_size")

if __name__ == "__main__":
    path = out_path("csv/slow_stretch.csv", __doc__)
    training = Training(total=1000, seed=99)
    with path.open("w", newline="") as out:
        table = csv.DictWriter(out, [*COLUMNS, *MORE], lineterminator="\n")
        table.writeheader()
        late = 0.0
        for row in training.rows():
            if "loss" in row:
                loading = 0.001
                if row["step"] in SLOW:
                    wait = row["step_time"] * 2 / 3
                    loading += wait
                    late += wait
                    row["step_time"] = round(row["step_time"] + wait, 6)
                    row["tokens_per_sec"] = round(B * T / row["step_time"], 1)
                row["data_time"] = round(loading, 6)
            row["timestamp"] = round(row["timestamp"] + late, 3)
            table.writerow({**row, "tokens_per_step": B * T, "world_size": 1})
