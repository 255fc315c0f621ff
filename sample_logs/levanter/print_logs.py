"""Prints two real small runs in the grammars of levanter and OpenRLHF.

python sample_logs/levanter/print_logs.py

The numbers are those of jsonl/bad_batch.jsonl from step 501 on, and of
jsonl/entropy_collapse.jsonl; the lines are what each framework's own format strings make of
them. What those runs did not log is made up, and so is a NaN in either.
"""

import json
from datetime import UTC, datetime
from pathlib import Path

LOGS = Path(__file__).parents[1]
FIRST, LAST, TOTAL = 501, 700, 1000
TOKENS, SEQUENCES = 2048, 32

with (LOGS / "jsonl/bad_batch.jsonl").open() as lines:
    RUN = [r for r in map(json.loads, lines) if FIRST <= r.get("step", 0) <= LAST]
STEPS = [r for r in RUN if "loss" in r]
EVALUATIONS = {r["step"]: r["val_loss"] for r in RUN if "val_loss" in r}


def when(row, form="%Y-%m-%d %H:%M:%S.%f"):
    return datetime.fromtimestamp(row["timestamp"], UTC).strftime(form)


def write(path, text):
    path = LOGS / path
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="")


def levanter():
    text = ""

    def event(row, kind, **more):
        shown = json.dumps({"tracker": "json_logger", "event": kind, **more})
        return (
            f"{when(row, '%Y-%m-%dT%H:%M:%S')} - 0 - levanter.json_logger - json_logger.py:25 - INFO ::"
            f" {shown}\n"
        )

    hparams = {
        "trainer": {"seed": 7, "train_batch_size": SEQUENCES, "num_train_steps": TOTAL},
        "train_seq_len": 64,
        "optimizer": {"learning_rate": 0.003, "weight_decay": 0.1, "max_grad_norm": 1.0},
    }
    summary = {"parameter_count": 120576, "num_devices": 4, "throughput/device_kind": "TPU v4"}
    text += event(STEPS[0], "hparams", hparams=hparams)
    text += event(STEPS[0], "summary", metrics=summary)
    for i, row in enumerate(STEPS):
        text += event(
            row,
            "log",
            step=row["step"],
            metrics={
                "global_step": row["step"],
                "train/loss": float("nan") if i == 199 else row["loss"],
                "optim/learning_rate": row["lr"],
                "grad/norm/total": row["grad_norm"],
                "throughput/tokens_per_second": row["tokens_per_sec"],
                "throughput/duration": row["step_time"],
                "throughput/mfu": 41.25,
                "throughput/total_tokens": row["step"] * TOKENS,
            },
        )
        if row["step"] in EVALUATIONS:
            text += event(
                row, "log", step=row["step"], metrics={"eval/loss": EVALUATIONS[row["step"]]}
            )
        if i % 20 == 0:
            text += (
                f"{when(row, '%Y-%m-%dT%H:%M:%S')} - 0 - tqdm_loggable.tqdm_logging - tqdm_logging.py:145"
                f" - INFO :: Progress on:train {row['step']}it/1.00kit rate:31.1it/s remaining:00:16"
                f" elapsed:00:16 postfix:loss={row['loss']:.3f}\n"
            )
    write("levanter/bad_batch.log", text)


def openrlhf():
    with (LOGS / "jsonl/entropy_collapse.jsonl").open() as policy:
        rows = [r for r in map(json.loads, policy) if "step" in r][:120]
    text = ""
    for row in rows:
        status = {
            "policy_loss": row["loss"],
            "actor_grad_norm": float("nan") if row["step"] == 100 else row["grad_norm"],
            "actor_lr": row["lr"],
            "entropy_loss": row["entropy"],
            "kl": 0.001,
            "ppo_kl": 0.0,
            "reward": row["reward"],
            "group_reward_std": 0.25,
            "response_length": row["response_length/mean"],
            "timing/ppo_train": 5.04,
            "timing/step_total": 8.5,
        }
        bar = f"Train epoch [1/1]: 100%|██████████| 16/16 [00:05<00:00, 3.17it/s, act_loss={row['loss']:.3g}]"
        text += f"\x1b[36m(PolicyModelActor pid=77)\x1b[0m {bar}\n"
        text += (
            "\x1b[36m(PPOTrainer pid=42)\x1b[0m INFO 01-01 08:00:00 [ppo_trainer.py:547] \u2728 Global step"
            f" {row['step']}: {status}\r\n"
        )
    write("openrlhf/policy.log", text)


for each in (levanter, openrlhf):
    each()
