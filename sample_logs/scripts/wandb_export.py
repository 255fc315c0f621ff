# /// script
# requires-python = ">=3.11"
# dependencies = ["pyarrow>=17"]
# ///
"""The run of bad_batch.py as Weights & Biases hands it out.

Made from jsonl/bad_batch.jsonl, not by W&B, in the layout of its history export: JSON lines as
``run.scan_history()`` gives them, and the same as a parquet file. Each call of ``wandb.log``
is a row: ``_step`` counts the calls, so it runs ahead of ``train/global_step``.
"""

import json

import pyarrow as pa
import pyarrow.parquet as pq
from places import EPOCH, SAMPLES, dump, out_path

NAMES = {
    "loss": "train/loss",
    "grad_norm": "train/grad_norm",
    "lr": "train/learning_rate",
    "tokens_per_sec": "perf/tokens_per_sec",
    "val_loss": "eval/loss",
}

if __name__ == "__main__":
    path = out_path("wandb-export/bad_batch.jsonl", __doc__)
    lines = (SAMPLES / "jsonl/bad_batch.jsonl").read_text().splitlines()[1:]
    rows = []
    for call, row in enumerate(map(json.loads, lines)):
        out = {NAMES[key]: value for key, value in row.items() if key in NAMES}
        out["train/global_step"] = row["step"]
        out["_step"] = call
        out["_runtime"] = round(row["timestamp"] - EPOCH, 3)
        out["_timestamp"] = row["timestamp"]
        rows.append(dict(sorted(out.items())))
    path.write_text("".join(map(dump, rows)))
    columns = sorted({key for row in rows for key in row})
    table = pa.table({key: [row.get(key) for row in rows] for key in columns})
    pq.write_table(table, path.with_suffix(".parquet"))
