"""Ends: what the default rules say of a log that ends with what ended its process."""

from dataclasses import replace

import numpy as np
import pytest

from stabcli.diagnosis import diagnose
from stabcli.readers import read_runs
from tests.rules.cases import said
from tests.rules.runs import findings, healthy, make_run, skipped

RULE = "fatal-end"
MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1"
TIMEOUT = "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8)"
CANCELLED = "slurmstepd: error: *** STEP 12.0 ON node17 CANCELLED AT 2026-11-29T12:00:00 {} ***"


def judged(run):
    """What the rules on lines of text say together."""
    return diagnose(run, only=(RULE, "hardware-fault"))


def told(*lines, planned=None, columns=None):
    """A healthy run whose text says this after its rows, and of which so many were planned."""
    facts = {} if planned is None else {"total_steps": planned}
    run = make_run(**(columns or healthy(900)), facts=facts)
    return replace(run, troubles=lines, searched=("run.jsonl",))


FATAL = [
    ("out-of-memory", MEMORY),
    ("host-out-of-memory", "[123.4] Out of memory: Killed process 412 (python)"),
    ("host-out-of-memory", "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0."),
    ("exception", "ValueError: x"),
    ("gpu-fault", "RuntimeError: CUDA error: device-side assert triggered"),
    ("gpu-fault", "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"),
    ("ended-from-outside", "Segmentation fault (core dumped)"),
    ("ended-from-outside", "Bus error (core dumped)"),
    ("ended-from-outside", "srun: error: node3: task 0: Killed by signal 9"),
    ("ended-from-outside", CANCELLED.format("DUE TO NODE FAILURE")),
]
ON_PURPOSE = [
    ("ended-from-outside", CANCELLED.format("DUE TO TIME LIMIT")),
    ("ended-from-outside", CANCELLED.format("DUE TO PREEMPTION")),
    ("ended-from-outside", CANCELLED.format("")),
    ("ended-from-outside", "KeyboardInterrupt"),
    ("ended-from-outside", "SIGTERM"),
]


@pytest.mark.parametrize(("kind", "text"), FATAL)
def test_a_run_that_ended_before_its_last_step_is_an_error(kind, text):
    """Every figure is healthy; of 1,500 steps 900 were done."""
    line = said(kind, 900, text)
    for planned, severity, tags in ((1500, "error", ("unfinished",)), (None, "warning", ())):
        (found,) = findings(told(line, planned=planned), RULE)
        assert (found.severity, found.tags, found.first, found.line) == (severity, tags, 900, 7)
        assert found.text == text


@pytest.mark.parametrize(("kind", "text"), ON_PURPOSE)
def test_an_end_on_purpose_is_a_warning_where_steps_are_left(kind, text):
    """Schedulers and people end jobs every day."""
    line = said(kind, 900, text)
    for planned, severity in ((1500, "warning"), (None, "notice")):
        (found,) = findings(told(line, planned=planned), RULE)
        assert found.severity == severity


@pytest.mark.parametrize(("kind", "text"), [*FATAL, *ON_PURPOSE])
def test_what_ends_nothing_is_silent(kind, text):
    """After the last step that was planned; with rows after it; in an attempt that went on."""
    assert findings(told(said(kind, 900, text), planned=900), RULE) == []
    assert findings(told(said(kind, 899, text), planned=1500), RULE) == []
    columns = healthy(1600)
    columns["step"] = np.concatenate([np.arange(1, 901), np.arange(801, 1501)])
    run = told(said(kind, 900, text), planned=2000, columns=columns)
    assert findings(run, RULE) == []


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("out-of-memory", "the guard against CUDA out of memory"),
        ("ended-from-outside", "handlers for SIGTERM"),
        ("exception", "SystemExit: 0"),
        ("communication", "Connection reset by peer: api.example.org"),
        ("straggler", "STRAGGLER DETECTION WARNING: x"),
    ],
)
def test_sentences_and_what_no_process_ends_of_are_silent(kind, text):
    assert findings(told(said(kind, 900, text), planned=1500), RULE) == []


def test_without_a_text_nobody_looked():
    assert findings(told(planned=1500), RULE) == []
    assert "no text" in skipped(make_run(**healthy(900)), RULE)


def test_the_first_line_is_told_and_not_its_echo():
    """Collectives time out after memory ran out; a scheduler cleans up after an exception."""
    lines = [
        said("out-of-memory", 900, MEMORY, line=905),
        said("exception", 900, "RuntimeError: x", line=907),
        said("communication", 900, TIMEOUT, line=909),
        said("ended-from-outside", 900, CANCELLED.format(""), line=901),
    ]
    d = judged(told(*lines, planned=1500))
    assert [(i.rule, i.worst.text) for i in d.incidents] == [(RULE, MEMORY)]


@pytest.mark.parametrize(("kind", "text"), [("gpu-fault", XID), ("communication", TIMEOUT)])
def test_what_hardware_did_is_told_once(kind, text):
    """A fault of a device, and the exception that it made."""
    lines = [said(kind, 900, text, line=905), said("exception", 900, "ValueError: x", line=907)]
    d = judged(told(*lines, planned=1500))
    assert [(i.rule, i.severity) for i in d.incidents] == [("hardware-fault", "error")]


def test_standard_error_of_its_own_tells_of_a_run_that_is_not_done():
    """It says after no step, but only one attempt can be meant."""
    line = said("out-of-memory", None, MEMORY)
    (found,) = findings(told(line, planned=1500), RULE)
    assert (found.first, found.severity) == (900, "error")
    assert findings(told(line), RULE) == []


def test_it_costs_nothing_and_blames_no_batch():
    d = judged(told(said("out-of-memory", 900, MEMORY), planned=1500))
    (incident,), ((plan,),) = d.incidents, d.plans
    assert (incident.family, incident.tags) == ("process", ("unfinished",))
    assert (plan.name, plan.skip_first, plan.roll_back_to) == ("mend-and-go-on", None, None)
    assert (d.cost.incidents[0].steps, d.causes) == (0, ((),))


def test_a_log_whose_last_line_is_fatal_is_not_fine(tmp_path):
    """As printed: the step of how many, and the end."""
    rows = [f"Step {s}/1500 | Loss: {3 - s / 2000:.4f} | LR 3e-4\n" for s in range(1, 901)]
    path = tmp_path / "train.log"
    path.write_text("".join([*rows, "Traceback (most recent call last):\n", f"{MEMORY}\n"]))
    (run,), _ = read_runs([str(path)])
    assert [(i.rule, i.severity) for i in diagnose(run).incidents] == [(RULE, "error")]
