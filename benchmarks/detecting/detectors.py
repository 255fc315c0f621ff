"""Detectors: stabcli's presets, published rules written out here, and rivals as processes.

Every detector maps a run to hits. Those written out here are re-implementations of the published
formulas, as their systems run them on the logged loss; none is the system itself.
"""

import json
import subprocess
import tempfile
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stabcli.diagnosis import diagnose
from stabcli.incidents import group
from stabcli.rules import SEVERITIES, run_rules, select


@dataclass(frozen=True)
class Hit:
    """One thing a detector objects to, warning or worse."""

    first: float | None
    """First step; None where the detector does not say."""
    last: float | None
    what: str
    grave: bool = False
    """Error or worse, where the detector grades."""
    ending: str | None = None


class Stabcli:
    """A preset of this project, in this process."""

    slow = False

    def __init__(self, preset):
        self.preset = preset
        self.name = f"stabcli {preset}"
        self.chosen = select((preset,), ())

    def look(self, run, least="warning"):
        with np.errstate(all="ignore"):
            found, _ = run_rules(run, self.chosen)
            grave = [f for f in found if SEVERITIES.index(f.severity) >= SEVERITIES.index(least)]
            incidents = group(run, grave)
        return [
            Hit(
                f.first,
                f.last,
                f"{f.rule} {f.metric}",
                f.severity in ("error", "critical"),
                i.ending,
            )
            for i in incidents
            for f in i.findings
        ]


class Published:
    """A published rule over the finite losses of a run, in order."""

    slow = False

    def __init__(self, name, rule, metrics=("loss",)):
        self.name = name
        self.rule = rule
        self.metrics = metrics

    def look(self, run):
        hits = []
        for metric in self.metrics:
            if not run.has(metric):
                continue
            frame = run.frame
            rows = np.flatnonzero(run.logged(metric))
            steps, x = frame["step"].to_numpy()[rows], run.array(metric)[rows]
            fired = self.rule(x)
            at = np.flatnonzero(fired)
            if not len(at):
                continue
            cuts = np.flatnonzero(np.diff(at) > 10)  # ten rows apart: another event
            for a, b in zip(at[np.r_[0, cuts + 1]], at[np.r_[cuts, len(at) - 1]]):
                hits.append(Hit(float(steps[a]), float(steps[b]), metric))
        return hits


def windowed(x, width, least):
    """For each row the rows before it: mean, population deviation and count, NaN kept as in the systems."""
    filled = np.concatenate([[0.0], np.cumsum(x)])
    squares = np.concatenate([[0.0], np.cumsum(x * x)])
    at = np.arange(len(x))
    start = np.maximum(0, at - width)
    count = at - start
    with np.errstate(all="ignore"):
        mean = (filled[at] - filled[start]) / count
        variance = (squares[at] - squares[start]) / count - mean * mean
    mean[count < least] = np.nan
    return mean, np.sqrt(np.maximum(variance, 0)), count


def nan_safe(rule):
    """A rule that sees non-finite values itself, and the finite ones as if those were not there."""

    def wrapped(x):
        bad = ~np.isfinite(x)
        fired = bad.copy()
        if (~bad).any():
            fired[~bad] = rule(x[~bad])
        return fired

    return wrapped


def twice_the_mean(x):
    mean, _, _ = windowed(x, 100, 20)
    with np.errstate(invalid="ignore"):
        return x > 2 * mean


def olmo(x):
    mean, sigma, _ = windowed(x, 128, 128)
    with np.errstate(invalid="ignore"):
        return (sigma > 1e-10) & (x > mean + 6 * sigma)


def kill_loss_spike(x):
    width = max(100, len(x) // 20)
    mean, _, _ = windowed(x, width, width)
    with np.errstate(invalid="ignore"):
        outlier = x >= 2 * mean
    fired = np.zeros(len(x), bool)
    streak = 0
    for i, o in enumerate(outlier):
        streak = streak + 1 if o else 0
        fired[i] = streak > 4
    return fired


def lightning(x):
    mean, _, _ = windowed(x, 10, 1)
    with np.errstate(invalid="ignore"):
        return (x > np.r_[np.inf, x[:-1]]) & (np.abs(x - mean) >= 2 * np.abs(mean))


def cusum(x):
    """Page's sum, 1 and 6, over median and deviation of the last 200; both ways, as published."""
    fired = np.zeros(len(x), bool)
    history = deque(x[:30], maxlen=200)
    up = down = 0.0
    for i in range(30, len(x)):
        if i % 4 == 0 or i < 40:  # the window barely moves in four rows
            h = np.array(history)
            middle = np.median(h)
            sigma = max(1.4826 * np.median(np.abs(h - middle)), 1e-12)
        z = (x[i] - middle) / sigma
        up, down = max(0.0, up + z - 1), min(0.0, down + z + 1)
        history.append(x[i])
        if up >= 6 or down <= -6:
            fired[i] = True
            up = down = 0.0
    return fired


def watcher(x):
    """Median and deviation of the last 100 in log space, 8 of them, both ways."""
    fired = np.zeros(len(x), bool)
    u = np.log(np.maximum(x, 1e-12))
    if len(x) <= 100:
        return fired
    for a in range(100, len(x), 20_000):
        b = min(len(x), a + 20_000)
        w = np.lib.stride_tricks.sliding_window_view(u[a - 100 : b - 1], 100)
        middle = np.median(w, axis=1)
        spread = np.median(np.abs(w - middle[:, None]), axis=1)
        with np.errstate(all="ignore"):
            fired[a:b] = 0.6745 * np.abs(u[a:b] - middle) / spread > 8
    return fired


PUBLISHED = (
    Published("twice the mean of 100*", nan_safe(twice_the_mean)),
    Published("OLMo-core 128 / 6 sigma*", nan_safe(olmo), ("loss", "grad_norm")),
    Published("llm-foundry KillLossSpike*", nan_safe(kill_loss_spike)),
    Published("Lightning SpikeDetection*", nan_safe(lightning)),
    Published("trainscope CUSUM*", nan_safe(cusum)),
    Published("W&B watcher, MAD 8*", nan_safe(watcher)),
)

NAMES = {
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "tokens_per_second": "tokens_per_sec",
    "loss": "loss",
}


class Rival:
    """A tool from PyPI, started on a file: (trainer_state.json or JSONL) in, JSON out."""

    slow = True

    def __init__(self, name, command, as_jsonl, parse):
        self.name = name
        self.command = command
        self.as_jsonl = as_jsonl
        self.parse = parse

    def look(self, run):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / ("run.jsonl" if self.as_jsonl else "trainer_state.json")
            rows = list(objects(run))
            if self.as_jsonl:
                path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            else:
                last = rows[-1]["step"]
                rows = [{**row, "epoch": row["step"] / max(1, last)} for row in rows]
                state = {"global_step": last, "max_steps": last, "log_history": rows}
                path.write_text(json.dumps(state))
            done = subprocess.run(
                [*self.command, str(path)], capture_output=True, text=True, timeout=120, check=False
            )
            return self.parse(json.loads(done.stdout))


def objects(run):
    """The rows of a run in the names that trainers use, with NaN as Python writes it."""
    kept = [c for c in NAMES if run.has(c)]
    frame = run.frame.select("step", *kept)
    for row in frame.iter_rows(named=True):
        out = {"step": row["step"]}
        for c in kept:
            if row[c] is not None:
                out[NAMES[c]] = row[c]
        speed = out.get("tokens_per_sec")
        if speed:
            out["step_time"] = 4.2e6 / speed
        yield out


def _trainspotter(out):
    return [
        Hit(f.get("step_start"), f.get("step_end"), f["detector"], f["severity"] == "error")
        for f in out["findings"]
        if f.get("severity") in ("warning", "error")
    ]


def _trainproof(out):
    return [
        Hit(None, None, f["id"], f["level"] == "FAIL")
        for report in out["reports"]
        for f in report["findings"]
        if f["level"] in ("WARN", "FAIL")
    ]


def _runmedic(out):
    hits = []
    for run in out:
        for f in run["findings"]:
            if f["severity"] in ("warning", "critical"):
                step = f.get("step")
                hits.append(Hit(step, step, f["check"], f["severity"] == "critical"))
    return hits


def _losslint(out):
    hits = []
    for f in out["findings"]:
        if f["severity"] in ("warning", "error"):
            details = f.get("details") or {}
            step = details.get("step", next(iter(details.get("steps", [])), None))
            hits.append(Hit(step, step, f["check"], f["severity"] == "error"))
    return hits


def rivals(environment):
    """The tools installed in a virtual environment, and those that are not."""
    scripts = Path(environment) / "bin"
    known = (
        ("trainspotter", ["analyze", "--output", "json"], False, _trainspotter),
        ("trainproof", ["doctor", "--json"], False, _trainproof),
        ("runmedic", ["diagnose", "--json"], True, _runmedic),
        ("losslint", ["check", "--format", "json"], False, _losslint),
    )
    found, absent = [], []
    for name, arguments, as_jsonl, parse in known:
        if (scripts / name).exists():
            found.append(Rival(name, [str(scripts / name), *arguments], as_jsonl, parse))
        else:
            absent.append(name)
    return found, absent
