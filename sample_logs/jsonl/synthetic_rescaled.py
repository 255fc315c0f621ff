"""Make ``synthetic_rescaled.jsonl``: from step 301 on the loss is summed over eight steps."""

import json
from pathlib import Path

import numpy as np

STEPS, FROM, TIMES = 600, 300, 8


def rows():
    """Yield the rows of a loss that falls; what changes is how it is counted."""
    random = np.random.default_rng(20)
    for i in range(STEPS):
        loss = 1.9 + 8.5 * (i + 21.0) ** -0.42 + random.normal(0, 0.035)
        norm = random.lognormal(np.log(0.35), 0.18) * (1 + 4 * np.exp(-i / 80))
        times = TIMES if i >= FROM else 1
        yield {"step": i + 1, "loss": round(loss * times, 4), "grad_norm": round(norm, 4)}


if __name__ == "__main__":
    text = "".join(json.dumps(row) + "\n" for row in rows())
    Path(__file__).with_suffix(".jsonl").write_text(text)
