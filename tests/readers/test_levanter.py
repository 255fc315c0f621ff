"""Reader ``levanter``: events of the json_logger among other lines of the console."""

import json
import math
from pathlib import Path

import pytest

from stabcli.readers import read_runs
from tests.textlogs import column, read, sample, truth


def test_values_are_those_of_the_run():
    """All digits; throughput is that of all devices; the last loss is NaN, which JSON writes bare."""
    run = sample("levanter/bad_batch.log")
    loss = column(run, "loss")

    assert math.isnan(loss.pop(700))
    assert loss == {s: x for s, x in truth("loss").items() if s < 700}
    assert column(run, "grad_norm") == truth("grad_norm")
    assert column(run, "learning_rate") == truth("lr")
    assert column(run, "tokens_per_second") == truth("tokens_per_sec")
    assert column(run, "step_seconds") == truth("step_time")
    assert column(run, "val_loss") == truth("val_loss")
    assert column(run, "wall_time") == pytest.approx(truth("timestamp"), abs=1.0)
    assert column(run, "mfu")[501] == pytest.approx(0.4125)


def test_configuration_and_summary_are_facts():
    """They are events of the same logger."""
    facts = sample("levanter/bad_batch.log").facts
    wanted = {
        "parameters": 120576,
        "gpus": 4,
        "gpu": "TPU v4",
        "batch_sequences": 32,
        "sequence_length": 64,
        "total_steps": 1000,
        "peak_lr": 0.003,
        "weight_decay": 0.1,
        "grad_clip": 1.0,
        "seed": 7,
    }

    assert {name: facts[name].value for name in wanted} == wanted


def test_values_as_text_and_another_event(tmp_path: Path):
    """NaN may be text, a run may be named, and blanks may be missing; others' JSON is none."""
    text = "INFO :: start\n"
    for s, loss in ((1, 2.5), (2, "NaN"), (3, 2.4)):
        event = {"tracker": "json_logger", "event": "log", "run_id": "a", "step": s}
        shown = json.dumps(event | {"metrics": {"train/loss": loss}}, separators=(",", ":"))
        text += f"INFO :: {shown}\n"
    text += 'INFO :: {"tracker":"other","event":"log","step":9,"metrics":{"train/loss":9.0}}\n'
    run = read(tmp_path / "log", text)

    assert run.frame["step"].to_list() == [1, 2, 3]
    assert math.isnan(column(run, "loss")[2])


def test_nothing_but_events_is_jsonl(tmp_path: Path):
    """A file of JSON alone has its reader already, and reads to the same."""
    lines = (tmp_path / "log.jsonl", tmp_path / "log.txt")
    events = [
        json.dumps(
            {"tracker": "json_logger", "event": "log", "step": s, "metrics": {"train/loss": 2.5}}
        )
        for s in range(1, 5)
    ]
    lines[0].write_text("\n".join(events) + "\n", encoding="utf-8")
    lines[1].write_text("".join(f"INFO :: {e}\n" for e in events), encoding="utf-8")
    (alone,), _ = read_runs([str(lines[0])])
    (among,), _ = read_runs([str(lines[1])])

    assert (alone.reader, among.reader) == ("jsonl", "levanter")
    assert column(alone, "loss") == column(among, "loss")
