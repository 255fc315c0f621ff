# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.4", "numpy>=1.26"]
# ///
"""A healthy run of 1,000 steps as JSON lines; the first 200 lines once more, compressed.

Writes jsonl/clean.jsonl and beside it clean_head.jsonl.gz.
"""

import gzip

from places import dump, out_path
from tiny_gpt import Training

if __name__ == "__main__":
    path = out_path("jsonl/clean.jsonl", __doc__)
    training = Training(total=1000)
    lines = [dump(training.config(save_every=100))]
    lines += [dump(row) for row in training.rows()]
    path.write_text("".join(lines))
    head = path.with_name(path.stem + "_head.jsonl.gz")
    head.write_bytes(gzip.compress("".join(lines[:200]).encode(), mtime=0))
