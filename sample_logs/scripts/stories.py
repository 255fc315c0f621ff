"""Runs that lie in other samples, to be logged again through a tracker: rows with time, step and values."""

import csv
import json
import math

from places import EPOCH, SAMPLES

NAMES = {
    "loss": "train/loss",
    "grad_norm": "train/grad_norm",
    "lr": "train/learning_rate",
    "tokens_per_sec": "train/tokens_per_sec",
    "val_loss": "eval/loss",
}


def bad_batch(first=501, last=700):
    """Configuration and rows of a stretch of jsonl/bad_batch.jsonl."""
    return _lines("jsonl/bad_batch.jsonl", 0, first, last)


def restart():
    """Configuration, and the rows of the two attempts of jsonl/restart.jsonl around the restart."""
    config, before = _lines("jsonl/restart.jsonl", 0, 541, 620)
    _, after = _lines("jsonl/restart.jsonl", 1, 501, 640)
    return config, [*before, *after]


def diverged():
    """Configuration and rows of csv/diverged_metrics.csv, 0.03 s a step."""
    rows = {}
    with (SAMPLES / "csv/diverged_metrics.csv").open(newline="") as file:
        for line in csv.DictReader(file):
            values = rows.setdefault(int(line["step"]), {})
            for own, name in (
                ("train_loss", "train/loss"),
                ("grad_norm", "train/grad_norm"),
                ("lr-SGD", "train/learning_rate"),
                ("val_loss", "eval/loss"),
            ):
                if line[own]:
                    values[name] = float(line[own])
    config = {"optimizer": "SGD", "lr": 0.01, "seq_len": 64, "seed": 1234, "gpus": 1}
    return config, [(EPOCH + 0.03 * step, step, rows[step]) for step in sorted(rows)]


def _lines(log, attempt, first, last):
    config, *lines = [json.loads(line) for line in (SAMPLES / log).read_text().splitlines()]
    lines = [row for row in lines if "step" in row]
    steps = [row["step"] for row in lines]
    back = next((i for i in range(1, len(steps)) if steps[i] < steps[i - 1]), len(steps))
    part = lines[back:] if attempt else lines[:back]
    return config["config"], [
        (row["timestamp"], row["step"], {NAMES[k]: v for k, v in row.items() if k in NAMES})
        for row in part
        if first <= row["step"] <= last
    ]


def bare(value):
    """A value as JSON can hold it: NaN and infinities as text."""
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")
