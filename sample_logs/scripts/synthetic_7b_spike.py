# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy>=1.26"]
# ///
"""SYNTHETIC: a 7B model on 512 H100 whose loss jumps at step 120,000 and never comes back.

Nothing here was trained. A row every 25 steps from 100,000 to 125,000, 4 million tokens a step,
at the pace at which 1e12 tokens cost 40,400 GPU-hours: 512 * 1e12 / (40,400 * 3,600) = 3.52
million tokens/s. The gradient norm leaves its level at step 119,900 and the loss at 120,000,
itself the step of a checkpoint; the last one before both is 118,000. What was trained after
120,000, 5,000 steps, is 20e9 tokens or 808 GPU-hours.
"""

import math

import numpy as np
from places import EPOCH, dump, out_path

FIRST, LAST, EVERY = 100_000, 125_000, 25
MOVES, ONSET = 119_900, 120_000
GPUS, TOKENS, TOTAL = 512, 4_000_000, 250_000
WARMUP, PEAK = 2_000, 3e-4
TOKENS_PER_SECOND = GPUS * 1e12 / (40_400 * 3_600)

CONFIG = {
    "synthetic": True,
    "gpus": GPUS,
    "gpu": "H100",
    "params": 7e9,
    "precision": "bf16",
    "tokens_per_step": TOKENS,
    "seq_len": 4096,
    "total_steps": TOTAL,
    "peak_lr": PEAK,
    "warmup_steps": WARMUP,
    "grad_clip": 1.0,
    "weight_decay": 0.1,
    "checkpoint_every": 2000,
    "seed": 7,
}


def loss_level(step: int) -> float:
    """Return the loss without noise: a slow power law, then the jump and where it settles."""
    healthy = 1.62 + 3.1 * (step / 1e3) ** -0.5 * 0.9
    if step < ONSET:
        return healthy
    return healthy + 0.42 + 1.1 * math.exp(-(step - ONSET) / 250)


def norm_level(step: int) -> float:
    """Return the gradient norm without noise: it moves four rows before the loss does."""
    if step < MOVES:
        return 0.21
    if step < ONSET:
        return 0.21 * 2.2 ** (1 + (step - MOVES) / EVERY)
    return 0.55 + 16.0 * math.exp(-(step - ONSET) / 120)


def main() -> None:
    """Write the log."""
    rng = np.random.default_rng(CONFIG["seed"])
    out = [dump(CONFIG)]
    now = EPOCH
    for step in range(FIRST, LAST + 1, EVERY):
        speed = TOKENS_PER_SECOND * math.exp(rng.normal(0, 0.003))
        now += EVERY * TOKENS / speed
        share = (step - WARMUP) / (TOTAL - WARMUP)
        row = {
            "step": step,
            "loss": round(loss_level(step) * math.exp(rng.normal(0, 0.0035)), 4),
            "grad_norm": round(norm_level(step) * math.exp(rng.normal(0, 0.06)), 4),
            "lr": float(f"{PEAK * (0.55 + 0.45 * math.cos(math.pi * share)):.5g}"),
            "tokens_per_sec": round(speed),
            "timestamp": round(now, 1),
        }
        out.append(dump(row))
    out_path("jsonl/synthetic_7b_spike.jsonl", __doc__).write_text("".join(out))


if __name__ == "__main__":
    main()
