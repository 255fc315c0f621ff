"""The samples of known history: what truth.json says of them is in the logs, and is found."""

import csv
import gzip
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from stabcli.diagnosis import Diagnosis, diagnose
from stabcli.readers import read_runs
from stabcli.rules import SEVERITIES
from tests.conftest import SAMPLES
from tests.samples import name, samples

TRUTH: dict[str, Any] = json.loads((SAMPLES / "truth.json").read_text(encoding="utf-8"))
HEALTHY = [entry for entry, said in TRUTH.items() if said["healthy"]]
EVENTS = [(entry, event) for entry, said in TRUTH.items() for event in said["events"]]
SCRIPTS = sorted((SAMPLES / "scripts").glob("*.py"))
SHARED = {"places.py", "stories.py", "tiny_gpt.py"}
"""Modules that the scripts import, which make no log of their own."""
SLACK = 20
"""Steps by which a finding may begin before what it finds: medians look to both sides."""
SUDDEN = {"loss-spike", "nonfinite", "hidden-nonfinite", "discarded-steps", "throughput-drop"}
"""Events that begin from one row to the next; others creep, and may be found later."""


def diagnosis(entry: str) -> Diagnosis:
    """Return what the default rules make of a sample."""
    runs, unread = read_runs([str(SAMPLES / entry)])
    assert not unread
    (run,) = runs
    return diagnose(run)


def rows(path: Path) -> list[dict[str, Any]]:
    """Read a log with nothing of stabcli: its rows as they stand there."""
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            table = list(csv.DictReader(file))
        return [{k: float(v) for k, v in row.items() if v} for row in table]
    if path.is_dir():
        state = json.loads((path / "trainer_state.json").read_text(encoding="utf-8"))
        return list(state["log_history"])
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    return [row for row in map(json.loads, text.splitlines()) if "step" in row]


def column(entry: str, metric: str) -> dict[int, float]:
    """Return step -> value of a metric of a log, the last where a step comes twice."""
    return {int(r["step"]): r[metric] for r in rows(SAMPLES / entry) if metric in r}


def test_truth_is_about_logs_that_are_there():
    """Every entry is a sample, says whether it is healthy, and names its events."""
    assert set(TRUTH) <= {name(s) for s in samples()}
    for entry, said in TRUTH.items():
        assert said.keys() == {"healthy", "events", "note"}, entry
        assert said["healthy"] == (not said["events"]), entry
        assert all(e["first"] <= e["last"] for e in said["events"]), entry


def test_samples_are_small():
    """A clone does not pay for them: under 10 MB in all."""
    assert sum(p.stat().st_size for p in SAMPLES.rglob("*") if p.is_file()) < 10_000_000


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.name)
def test_script_says_what_it_needs(script: Path):
    """Each script carries its requirements (PEP 723) and is in the README with what it makes."""
    readme = (SAMPLES / "README.md").read_text(encoding="utf-8")

    assert f"`{script.name}`" in readme
    if script.name not in SHARED:
        text = script.read_text(encoding="utf-8")
        assert re.match(r"# /// script\n(# .*\n)+# ///\n", text)
        assert "out_path(" in text or '"--out"' in text, "--out says where to write"


def test_readme_lists_every_log_of_known_history():
    """A log without a line on where it comes from is not a sample."""
    readme = (SAMPLES / "README.md").read_text(encoding="utf-8")

    assert not [entry for entry in TRUTH if f"`{entry}`" not in readme]


def test_event_files_name_no_machine():
    """TensorBoard puts the host into file names; it was taken out."""
    files = [p.name for p in SAMPLES.rglob("*tfevents*")]

    assert files
    assert not [
        f for f in files if not re.fullmatch(r"events\.out\.tfevents\.\d+\.host\.\d+\.\d+", f)
    ]


def test_bad_batches_stand_where_truth_says():
    """The loss more than triples at the corrupted batches alone."""
    loss = column("jsonl/bad_batch.jsonl", "loss")

    assert [s for s, x in loss.items() if s > 300 and x > 3 * 1.9] == [600, 601, 602, 603]


def test_divergence_ends_in_nan():
    """From the step in truth.json to the end every loss is NaN, and none before."""
    loss = column("csv/diverged_metrics.csv", "train_loss")
    (event,) = (e for e in TRUTH["csv/diverged_metrics.csv"]["events"] if e["kind"] == "nonfinite")

    bad = [s for s, x in loss.items() if math.isnan(x)]
    assert bad == list(range(event["first"], event["last"] + 1))
    assert max(loss) == event["last"]


def test_trainer_hides_nan():
    """Trainer wrote 0.0 for every NaN loss; only the gradient norm tells."""
    loss = column("hf-trainer/lora_nan", "loss")
    norm = column("hf-trainer/lora_nan", "grad_norm")
    (event,) = TRUTH["hf-trainer/lora_nan"]["events"]

    assert not any(math.isnan(x) for x in loss.values())
    assert [s for s, x in norm.items() if math.isnan(x)] == [
        *range(event["first"], event["last"] + 1)
    ]
    assert all(loss[s] == 0.0 for s in range(event["first"] + 1, event["last"] + 1))


def test_restart_goes_back():
    """The log goes from 620 back to 501, and the repeated steps have the same losses."""
    all_rows = [r for r in rows(SAMPLES / "jsonl/restart.jsonl") if "loss" in r]
    steps = [r["step"] for r in all_rows]
    cut = next(i for i in range(1, len(steps)) if steps[i] <= steps[i - 1])

    assert (steps[cut - 1], steps[cut], steps[-1]) == (620, 501, 1000)
    first, second = (
        {r["step"]: r["loss"] for r in part} for part in (all_rows[:cut], all_rows[cut:])
    )
    assert all(first[s] == second[s] for s in range(501, 621))
    assert all_rows[cut]["timestamp"] - all_rows[cut - 1]["timestamp"] > 400


def test_synthetic_run_costs_what_it_says():
    """Its pace is that of 40,400 GPU-hours per 1e12 tokens, within 1 %, by both of its clocks."""
    table = rows(SAMPLES / "jsonl/synthetic_7b_spike.jsonl")
    seconds = table[-1]["timestamp"] - table[0]["timestamp"]
    tokens = (table[-1]["step"] - table[0]["step"]) * 4_000_000
    rate = sum(r["tokens_per_sec"] for r in table) / len(table)

    assert 512 * seconds / 3600 / tokens * 1e12 == pytest.approx(40_400, rel=0.01)
    assert 512 / 3600 / rate * 1e12 == pytest.approx(40_400, rel=0.01)


@pytest.mark.parametrize("entry", HEALTHY)
def test_healthy_run_is_called_healthy(entry: str):
    """The loss is looked at, and nothing above a notice is found where nothing happened."""
    found = diagnosis(entry)

    assert "loss-spike" in found.checked
    assert [i for i in found.incidents if SEVERITIES.index(i.severity) > 0] == []


@pytest.mark.parametrize(
    ("entry", "event"), [pytest.param(n, e, id=f"{n}-{e['kind']}") for n, e in EVENTS]
)
def test_event_is_found(entry: str, event: dict[str, Any]):
    """The rule of the event's name finds it, and begins where it began."""
    findings = [f for i in diagnosis(entry).incidents for f in i.findings]
    firsts = [f.first for f in findings if f.rule == event["kind"]]
    latest = event["first"] + SLACK if event["kind"] in SUDDEN else event["last"]

    assert [f for f in firsts if event["first"] - SLACK <= f <= latest], firsts
