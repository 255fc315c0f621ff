"""One run, written as several tools write it."""

import json
import math

import numpy as np
import polars as pl

from stabcli.readers import read_runs
from tests.event_writing import log_of
from tests.event_writing import write as write_events
from tests.wandb_writing import exit_record, history, run_record
from tests.wandb_writing import write as write_wandb

NAN = float("nan")


def truth(steps, seed=0, **more):
    """Rows of a run: its step, loss, gradient norm and learning rate; nobody else has these."""
    made = np.random.default_rng(seed)
    rows = []
    for step in steps:
        noise, norm = made.normal(0, 0.02), made.lognormal(-1, 0.2)
        rows.append(
            {
                "step": step,
                "loss": 2.0 + 8.0 / (step + 10) + noise,
                "grad_norm": norm,
                "lr": 1e-4 * min(1.0, (step + 1) / 100),
                **{k: v(step) for k, v in more.items()},
            }
        )
    return rows


def jsonl(path, rows, *, keys=("step", "loss", "grad_norm", "lr"), shift=0):
    """A line a row, all digits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps({k: r[k] + (shift if k == "step" else 0) for k in keys if r.get(k) is not None})
        for r in rows
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def text(path, rows, *, digits=4, keys=("loss", "grad_norm"), shift=0, head="", tail=""):
    """What a loop prints: a step, and values rounded."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for r in rows:
        said = ", ".join(f"{k}: {r[k]:.{digits}f}" for k in keys if r.get(k) is not None)
        lines.append(f"step {r['step'] + shift}, {said}")
    path.write_text(head + "\n".join(lines) + "\n" + tail)
    return path


def events(
    folder, rows, *, tags=None, shift=0, name="events.out.tfevents.1700000000.host.1.0", wall=0
):
    """An event file, float32."""
    tags = tags or {"train/loss": "loss", "train/grad_norm": "grad_norm"}
    made = [
        (r["step"] + shift, {t: r[k] for t, k in tags.items() if r.get(k) is not None})
        for r in rows
    ]
    return write_events(folder, name, log_of(made, wall=wall), wall=1.7e9 + wall)


def state(path, rows, every=1):
    """What transformers' Trainer keeps; losses of four digits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = [
        {
            "epoch": r["step"] / 100,
            "grad_norm": r["grad_norm"],
            "learning_rate": r["lr"],
            "loss": round(r["loss"], 4) if math.isfinite(r["loss"]) else r["loss"],
            "step": r["step"],
        }
        for r in rows
        if r["step"] % every == 0
    ]
    path.write_text(json.dumps({"log_history": kept, "global_step": rows[-1]["step"]}, indent=2))
    return path


def wandb(
    folder, rows, *, run_id="abcd1234", begun="20260101_080000", started=1_700_000_000, name="nice"
):
    """The folder of a run of W&B, with the trainer's own step."""
    records = [run_record(run_id, name=name, started=started)]
    for i, r in enumerate(rows):
        values = {"train/loss": r["loss"], "train/grad_norm": r["grad_norm"]}
        values |= {"train/global_step": r["step"], "_step": i, "_timestamp": 1.7e9 + r["step"]}
        records.append(history(values, step=i))
    path = folder / "wandb" / f"run-{begun}-{run_id}" / f"run-{run_id}.wandb"
    write_wandb(path, [*records, exit_record()])
    return path.parent


def only(path):
    """The one run in a folder."""
    (run,), _ = read_runs([str(path)])
    return run


def values(run, column, attempt=None):
    """Step -> value of a column, where it was logged."""
    frame = run.frame if attempt is None else run.frame.filter(pl.col("attempt") == attempt)
    frame = frame.filter(pl.col(column).is_not_null())
    return dict(zip(frame["step"].to_list(), frame[column].to_list(), strict=True))


def spans(run):
    return [(a.first_step, a.last_step) for a in run.attempts]


def said(run, *words):
    """Whether some note holds all of these words."""
    return any(all(word in note for word in words) for note in run.notes)
