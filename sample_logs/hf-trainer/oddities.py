"""Writes the trainer states beside it that show how such files go wrong; their numbers are made up.

python sample_logs/hf-trainer/oddities.py
"""

import json
import math
import random
from pathlib import Path

HERE = Path(__file__).parent
draw = random.Random(7)


def state(rows: list[dict], **more: object) -> str:
    last = rows[-1]["step"]
    whole = {
        "best_metric": None,
        "epoch": rows[-1]["epoch"],
        "global_step": last,
        "log_history": rows,
    }
    whole |= {
        "logging_steps": 5,
        "max_steps": 500,
        "save_steps": 100,
        "train_batch_size": 8,
        **more,
    }
    return json.dumps(whole, indent=2, sort_keys=True) + "\n"


def row(step: int, **more: object) -> dict:
    loss = round(1.5 + 3 * math.exp(-step / 60) + draw.gauss(0, 0.01), 4)
    norm = draw.uniform(0.9, 1.1)
    rate = 2e-5 * (1 - step / 500)
    return {
        "epoch": step / 250,
        "grad_norm": norm,
        "learning_rate": rate,
        "loss": loss,
        "step": step,
        **more,
    }


def hidden_nan() -> str:
    """The default logging_nan_inf_filter: the loss goes to exactly 0, only the norm tells."""
    rows = [row(s) if s <= 300 else row(s, loss=0.0, grad_norm=math.nan) for s in range(5, 505, 5)]
    rows.append({"epoch": 2.0, "step": 500, "total_flos": 1.2e15, "train_loss": 1.21})
    rows[-1] |= {
        "train_runtime": 812.4,
        "train_samples_per_second": 4.9,
        "train_steps_per_second": 0.6,
    }
    return state(rows)


def with_evaluations(last: int) -> list[dict]:
    rows = []
    for step in range(5, last + 1, 5):
        rows.append(row(step))
        if step % 100 == 0:
            rows.append(
                {"epoch": step / 250, "eval_loss": 1.6 + 3 * math.exp(-step / 60), "step": step}
            )
    return rows


def grpo() -> str:
    """TRL's GRPO: the loss sits near 0 by construction, the reward is what counts."""
    rows = []
    for step in range(5, 305, 5):
        reward = 0.8 - 0.6 * math.exp(-step / 90) + draw.gauss(0, 0.02)
        rows.append(row(step, loss=round(draw.gauss(0, 0.002), 4), reward=reward, kl=step * 1e-5))
        rows[-1] |= {"completions/mean_length": 180 + draw.gauss(0, 5), "reward_std": 0.2}
    return state(rows)


if __name__ == "__main__":
    (HERE / "hidden_nan.json").write_text(hidden_nan())
    (HERE / "grpo.json").write_text(grpo())
    (HERE / "cut_short.json").write_text(state(with_evaluations(400))[:9_000])
    rows = with_evaluations(200)
    for last in (100, 200):
        folder = HERE / "output" / f"checkpoint-{last}"
        folder.mkdir(parents=True, exist_ok=True)
        kept = [r for r in rows if r["step"] <= last]
        (folder / "trainer_state.json").write_text(state(kept, num_input_tokens_seen=last * 16384))
