"""Clean runs: made ones like those of language models, and real ones with hand labels.

A made run is drawn from its seed alone: noise, logging interval, number format, schedule, length,
and the harmless events that real runs have (epochs, easier data, checkpoints, restarts).
"""

import collections
import csv
import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import polars as pl

from stabcli.assembly import Options, Reading, assemble
from stabcli.attempts import summaries
from stabcli.readers import read_runs
from stabcli.run import Run
from stabcli.sources import Source


@dataclass
class Log:
    """A run without a fault, or with stretches in which faults are known."""

    name: str
    run: Run
    round: object
    """Function from values to values as this log would have written them."""
    rows: int
    known: list = field(default_factory=list)
    """Stretches (first step, last step) that are labelled, whatever as."""
    facts: dict = field(default_factory=dict)

    def at(self, metric):
        """Rows in which a metric was logged, with a finite value."""
        if not self.run.has(metric):
            return np.empty(0, np.int64)
        return np.flatnonzero(np.isfinite(self.run.array(metric)))

    def changed(self, columns):
        """The run with other values in some columns: metric -> values of all rows, NaN = the trainer's."""
        frame = self.run.frame
        for metric, values in columns.items():
            logged = self.run.logged(metric)
            cells = pl.DataFrame({"value": self.round(values), "logged": logged})
            kept = cells.select(pl.when("logged").then("value").alias(metric))
            frame = frame.with_columns(kept[metric])
        return replace(self.run, frame=frame)


def cut(run, row):
    """The run as it was when ``row`` rows had been logged."""
    frame = run.frame.head(row)
    return replace(run, frame=frame, attempts=summaries(frame))


def assembled(name, columns, facts=None):
    """A run from arrays, as a reader's reading becomes one."""
    from stabcli.run import Fact

    known = {k: Fact(value=v, source="made") for k, v in (facts or {}).items()}
    source = Source(shown=f"{name}.jsonl", path=Path(f"{name}.jsonl"), head=b"")
    reading = Reading(name=name, table=pl.DataFrame(columns), facts=known)
    return assemble(reading, source, "jsonl", Options())


# --- made -----------------------------------------------------------------------------------


def bf16(x):
    """Values as bf16 keeps them: 8 bits of significand."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x8000)) & np.uint32(0xFFFF0000)).view(np.float32).astype(float)


def significant(digits):
    """Values cut to a number of significant digits."""

    def cut_to(x):
        x = np.asarray(x, float)
        with np.errstate(all="ignore"):
            scale = 10.0 ** (digits - 1 - np.floor(np.log10(np.abs(x))))
            out = np.round(x * scale) / scale
        return np.where(np.isfinite(out), out, x)

    return cut_to


FORMATS = {
    "full": lambda x: np.asarray(x, float),
    "4-digit": significant(4),
    "bf16": bf16,
    "3-decimals": lambda x: np.round(np.asarray(x, float), 3),
}


def schedule(name, s, n, warm):
    """Learning rate relative to its peak."""
    done = np.clip((s - warm) / max(1, n - warm), 0, 1)
    if name == "cosine":
        shape = 0.1 + 0.45 * (1 + np.cos(np.pi * done))
    elif name == "linear":
        shape = 1 - done
    elif name == "wsd":
        shape = np.clip((1 - done) / 0.15, 0, 1)
    else:
        shape = np.ones(len(s))
    return np.where(s < warm, s / warm, shape)


def made(seed, longest=20_000):
    """Draw a clean run; the name tells what was drawn."""
    r = np.random.default_rng(seed)
    n = int(np.exp(r.uniform(np.log(500), np.log(longest)))) if longest < 10**6 else longest
    interval = int(r.choice([1, 1, 1, 1, 10, 10, 50, 100]))
    kind = r.choice(["pretraining", "pretraining", "pretraining", "fine-tune"])
    plan = str(r.choice(["cosine", "linear", "wsd", "constant"]))
    form = str(r.choice(["full", "full", "4-digit", "bf16", "3-decimals"]))
    i = np.arange(1, n + 1)
    s = i * interval
    total = n * interval
    warm = int(max(5, r.choice([0.01, 0.03, 0.1]) * total))
    rate = schedule(plan, s, total, warm)
    per_step = float(np.exp(r.uniform(np.log(0.01), np.log(0.12))))
    if kind == "fine-tune":
        per_step = float(np.exp(r.uniform(np.log(0.03), np.log(0.25))))
        start, end = r.uniform(1.2, 2.5), r.uniform(0.5, 1.1)
        level = end + (start - end) * np.exp(-i / max(20, n * r.uniform(0.02, 0.2)))
        epochs = int(r.choice([1, 2, 3, 4]))
        level = level * (0.85 ** ((i - 1) * epochs // n))
    else:
        start, exponent = r.uniform(15, 60), r.uniform(0.25, 0.5)
        floor = r.uniform(1.5, 2.8)
        level = floor + (10.9 - floor) * ((i * min(interval, 10) + start) / start) ** -exponent
        if plan == "wsd":
            level = level - 0.12 * np.clip((np.arange(n) / n - 0.85) / 0.15, 0, 1)
        epochs = 1
    noise = per_step / math.sqrt(interval)
    draw = str(r.choice(["normal", "normal", "t5", "correlated"]))
    df, rho = None, 0.0
    if draw == "t5":
        # The mean of k draws has a k-th of their excess: 6 / (df - 4).
        df = 4 + interval
        error = r.standard_t(df, n) * noise / math.sqrt(df / (df - 2))
    elif draw == "correlated":
        rho = r.uniform(0.2, 0.7)
        white = r.normal(0, noise * math.sqrt(1 - rho * rho), n + 100)
        error = np.empty(n + 100)
        error[0] = white[0]
        for k in range(1, n + 100):
            error[k] = rho * error[k - 1] + white[k]
        error = error[100:]
    else:
        error = r.normal(0, noise, n)
    loss = level * np.exp(error)
    if r.random() < 0.15 and n > 800:  # an easier data mix, on purpose
        at = int(r.uniform(0.3, 0.9) * n)
        loss[at:] *= r.uniform(0.9, 0.97)
    spread = r.uniform(0.08, 0.35)
    norm_level = float(np.exp(r.uniform(np.log(0.1), np.log(3.0))))
    drift = (i / n + 0.05) ** r.uniform(-0.15, 0.25)
    norm = norm_level * drift * r.lognormal(0, spread, n) * (1 + 6 * np.exp(-i / max(10, n / 60)))
    jitter = float(np.exp(r.uniform(np.log(0.002), np.log(0.03))))
    speed = 3.5e6 * (1 + r.normal(0, jitter, n))
    every = int(r.choice([0, 100, 250, 1000])) if interval == 1 else 0
    if every:  # checkpoints
        speed[every - 1 :: every] *= r.uniform(0.3, 0.8)
    columns = {
        "step": s,
        "loss": loss,
        "grad_norm": norm,
        "learning_rate": 3e-4 * rate,
        "tokens_per_second": speed,
    }
    resumed = ""
    if r.random() < 0.1 and n > 800:  # killed and resumed as it should be
        back, at = sorted(int(v) for v in r.uniform(0.4, 0.8, 2) * n)
        order = np.r_[0:at, back:n]
        columns = {k: v[order] for k, v in columns.items()}
        if r.random() < 0.5:  # not bit for bit
            columns["loss"][at:] *= np.exp(r.normal(0, noise / 3, len(order) - at))
        resumed = ", resumed"
    name = (
        f"{seed}: {kind}, {n} rows every {interval}, {plan}, {form}, {draw} noise"
        f" {100 * noise:.1f} %{resumed}"
    )
    to = FORMATS[form]
    columns = {k: v if k in ("step", "learning_rate") else to(v) for k, v in columns.items()}
    run = assembled(f"made-{seed}", columns)
    facts = {"interval": interval, "noise": noise, "format": form, "kind": str(kind)}
    facts["law"] = (noise, df, rho)
    return Log(name=name, run=run, round=to, rows=run.frame.height, facts=facts)


# --- real -----------------------------------------------------------------------------------


def real(folder):
    """Read the labelled logs of a folder (INDEX.tsv, LABELS.jsonl): a log and its labels each.

    A file that no reader claims is left out and named.
    """
    folder = Path(folder)
    labels = collections.defaultdict(list)
    for line in (folder / "LABELS.jsonl").open(encoding="utf-8"):
        entry = json.loads(line)
        labels[entry["file"]] += entry["events"]
    logs, refused = [], []
    for row in csv.DictReader((folder / "INDEX.tsv").open(encoding="utf-8"), delimiter="\t"):
        path = folder / row["file"]
        if not path.exists():
            refused.append((row["file"], "absent"))
            continue
        try:
            runs, _ = read_runs([str(path)])
        except Exception as why:
            refused.append((row["file"], str(why)[-80:]))
            continue
        events = labels[row["file"]]
        for run in runs:
            logs.append((row["file"], run, events))
    return logs, refused


def real_clean(logs, least=200):
    """Real runs long enough to plant a fault in; where they are labelled, nothing is planted."""
    out = []
    for file, run, events in logs:
        # Logs whose loss is 0 throughout are broken, whatever their labels say.
        if not run.has("loss") or int((run.array("loss") > 0).sum()) < least:
            continue
        known = [
            (min(e["first"], e["last"]), max(e["first"], e["last"]))
            for e in events
            if e["severity"] != "benign"
        ]
        span = run.frame["step"].max() - run.frame["step"].min()
        if sum(b - a for a, b in known) > 0.5 * span or len(run.attempts) > 1:
            continue
        same = FORMATS["full"]
        name = "/".join(file.split("/")[-2:])
        out.append(Log(name=name, run=run, round=same, rows=run.frame.height, known=known))
    return out
