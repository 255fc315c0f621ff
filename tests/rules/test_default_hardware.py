"""Hardware: what the default rules say of lines on GPUs and networks that failed."""

from dataclasses import replace

import numpy as np
import pytest

from stabcli.diagnosis import diagnose
from stabcli.readers import read_runs
from tests.rules.cases import said
from tests.rules.runs import findings, healthy, make_run, skipped

XID = "NVRM: Xid (PCI:0000:3b:00): {}, pid='<unknown>', name=<unknown>"
TIMEOUT = "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8)"
RULE = "hardware-fault"


def told(*lines, columns=None, facts=None):
    """A healthy run whose text says this."""
    run = make_run(**(columns or healthy(1000)), facts=facts or {})
    return replace(run, troubles=lines, searched=("run.jsonl",))


def test_a_text_without_such_lines_is_silent_and_no_text_is_not_looked_at():
    """Nothing searched is not the same as nothing said."""
    assert findings(told(), RULE) == []
    assert "no text" in skipped(make_run(**healthy(1000)), RULE)


@pytest.mark.parametrize(
    ("line", "severity", "tags"),
    [
        (said("gpu-fault", 500, XID.format(79)), "warning", ("went-on",)),
        (said("gpu-fault", 901, XID.format(79)), "error", ()),
        (said("gpu-fault", 500, XID.format(63)), "warning", ()),
        (said("gpu-fault", 500, XID.format(13)), "notice", ()),
        (said("gpu-fault", 1000, XID.format(63)), "error", ("died",)),
        (said("gpu-fault", 1000, XID.format(13)), "notice", ()),
        (said("communication", 500, TIMEOUT), "warning", ()),
        (said("communication", 1000, TIMEOUT), "error", ("died",)),
        (said("wrong-result", 500, "Possible transient error!"), "warning", ()),
        (said("wrong-result", 500, "Possible persistent error!"), "error", ()),
        (said("straggler", 500, "STRAGGLER DETECTION WARNING: x"), "warning", ()),
    ],
)
def test_severity_is_that_of_the_line_and_of_what_came_after(line, severity, tags):
    """A device of no more use, or a run that logged nothing after it, is an error."""
    (found,) = findings(told(line), RULE)
    assert (found.severity, found.tags, found.metric) == (severity, tags, line.kind)
    assert (found.first, found.last, found.line, found.text) == (
        line.step, line.step, line.line, line.text)  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        said("gpu-fault", 500, "CUDA error: device-side assert triggered"),
        said("communication", 500, "Connection reset by peer: api.example.org"),
        said("out-of-memory", 500, "CUDA out of memory"),
        said("exception", 1000, "ValueError: x"),
        said("ended-from-outside", 1000, "slurmstepd: error: *** JOB 1 CANCELLED"),
    ],
)
def test_what_programs_users_and_servers_do_is_no_hardware(line):
    """A program's own error, a server that hangs up, memory that ran out, a scheduler."""
    assert findings(told(line), RULE) == []


@pytest.mark.parametrize("kind", ["out-of-memory", "exception", "ended-from-outside"])
def test_a_collective_that_fails_after_another_process_did_is_an_echo(kind):
    """The first line of a stretch says more than the last."""
    root, echo = said(kind, 1000, "x", line=7), said("communication", 1000, TIMEOUT, line=9)
    assert findings(told(root, echo), RULE) == []
    assert findings(told(replace(root, line=11), echo), RULE)
    assert findings(told(replace(root, step=500), echo), RULE)


def test_a_run_that_had_reached_its_end_did_not_die():
    """Processes that part at the end of a job do not always part in peace."""
    line = said("communication", 1000, TIMEOUT)
    (found,) = findings(told(line, facts={"total_steps": 1000}), RULE)
    assert found.severity == "warning"


@pytest.mark.parametrize("counted_from", [0, 1])
@pytest.mark.parametrize("every", [1, 10])
def test_the_end_of_a_run_is_told_however_steps_are_counted(counted_from, every):
    """The last of 1,000 steps is 999 where they begin with 0, and may not be logged at all."""
    columns = healthy(1000 // every)
    columns["step"] = counted_from + every * np.arange(1000 // every)
    last = int(columns["step"][-1])
    line = said("communication", last, TIMEOUT)
    for planned, severity in ((1000, "warning"), (1500, "error")):
        (found,) = findings(told(line, columns=columns, facts={"total_steps": planned}), RULE)
        assert found.severity == severity


def test_a_device_is_of_no_use_where_what_follows_is_not_finite():
    """Rows go on after it, but they are no proof that the device still computes."""
    columns = healthy(1000)
    columns["loss"][570:] = float("nan")
    (found,) = findings(told(said("gpu-fault", 500, XID.format(79)), columns=columns), RULE)
    assert found.severity == "error"
    columns["loss"][570:] = 2.0
    (found,) = findings(told(said("gpu-fault", 500, XID.format(79)), columns=columns), RULE)
    assert found.severity == "warning"


def restarted(*lines, last=1500):
    """A run that ended after step 900 and went on from step 801, and whose text says this."""
    columns = healthy(900 + last - 800)
    columns["step"] = np.concatenate([np.arange(1, 901), np.arange(801, last + 1)])
    return told(*lines, columns=columns)


def test_what_a_restart_healed_needs_nothing_more():
    """Nothing is said to be the end of the log where 700 rows follow."""
    run = restarted(said("gpu-fault", 900, XID.format(79)))
    held = one(run, RULE)
    assert (held.severity, held.tags) == ("error", ("restarted",))
    d = diagnose(run)
    (plan,) = d.plans[d.incidents.index(held)]
    assert (plan.name, plan.roll_back_to) == ("restarted", None)
    assert plan.text.startswith(
        "Nothing more to do for the run: attempt 1 began at step 801, went on to step 1,500"
    )


def test_a_fault_that_came_again_after_the_restart_is_not_healed():
    """The first is no place to go on from; from before the second the run goes on."""
    run = restarted(
        said("gpu-fault", 900, XID.format(79)),
        said("gpu-fault", 1500, XID.format(79), attempt=1, line=99),
    )
    d = diagnose(run)
    plans = [p[0] for i, p in zip(d.incidents, d.plans, strict=True) if i.family == "hardware"]
    assert [p.name for p in plans] == ["drain-the-node"] * 2
    assert "came again at step 1,500" in plans[0].text
    assert "at or before step 1,500" in plans[1].text


def test_a_restart_that_did_not_come_as_far_has_not_healed_it():
    run = restarted(said("gpu-fault", 900, XID.format(79)), last=850)
    d = diagnose(run)
    (plan,) = next(p for i, p in zip(d.incidents, d.plans, strict=True) if i.family == "hardware")
    assert (plan.name, "at or before step 900" in plan.text) == ("drain-the-node", True)


def test_lines_after_one_row_are_one_finding_of_which_the_gravest_is_shown():
    """A watchdog, then the kernel: one event."""
    lines = [
        said("communication", 500, TIMEOUT, line=7),
        said("gpu-fault", 500, XID.format(79), line=9),
        said("gpu-fault", 700, XID.format(63), line=30),
    ]
    found = findings(told(*lines), RULE)
    assert [(f.first, f.severity, f.line, f.value) for f in found] == [
        (500, "warning", 9, 2),
        (700, "warning", 30, 1),
    ]


def test_a_line_of_a_text_without_steps_is_of_the_whole_run():
    """Standard error of its own: nobody knows after which step."""
    (found,) = findings(told(said("gpu-fault", None, XID.format(79))), RULE)
    assert (found.first, found.last, found.severity) == (1, 1000, "error")
    assert "unplaced" in found.tags


def test_a_line_after_a_row_that_is_not_there_is_not_lost():
    """Of an attempt that the run does not have, or before its first row."""
    for line in (
        said("gpu-fault", 500, XID.format(79), attempt=3),
        said("gpu-fault", 0, XID.format(79)),
    ):
        (found,) = findings(told(line), RULE)
        assert "unplaced" in found.tags


def one(run, rule):
    """The incident that holds a finding of this rule."""
    (held,) = [i for i in diagnose(run).incidents if rule in [f.rule for f in i.findings]]
    return held


def test_it_leads_the_incident_that_follows_and_is_its_cause():
    """A NaN, or a fall of the speed, a few rows after the line."""
    columns = healthy(1000)
    columns["loss"][503:] = float("nan")
    run = told(said("gpu-fault", 500, XID.format(48)), columns=columns)
    held = one(run, RULE)
    assert (held.lead.rule, held.rule, held.family) == (RULE, "nonfinite", "numerics")
    assert (held.first, held.ending) == (500, "diverged")

    columns = healthy(1000)
    columns["tokens_per_second"][503:600] *= 0.5
    run = told(said("gpu-fault", 500, XID.format(63)), columns=columns)
    held = one(run, RULE)
    assert (held.lead.rule, held.rule, held.family) == (RULE, "throughput-drop", "speed")
    d = diagnose(run)
    causes = next(c for i, c in zip(d.incidents, d.causes, strict=True) if i == held)
    assert (causes[0].name, causes[0].standing) == ("hardware", "supported")


def test_alone_it_is_an_incident_of_its_own():
    """Nothing else went wrong: no ending is claimed, no steps are called lost."""
    run = told(said("gpu-fault", 950, XID.format(79)))
    held = one(run, RULE)
    d = diagnose(run)
    at = d.incidents.index(held)
    assert (held.family, len(held.findings)) == ("hardware", 1)
    assert d.cost.incidents[at].steps == 0
    assert (d.causes[at][0].name, d.causes[at][0].standing) == ("hardware", "observed")
    assert [p.name for p in d.plans[at]] == ["drain-the-node"]


def test_far_from_what_went_wrong_it_stays_apart():
    columns = healthy(1000)
    columns["loss"][800:803] *= 3
    run = told(said("gpu-fault", 500, XID.format(63)), columns=columns)
    assert len(one(run, RULE).findings) == 1


def test_a_text_log_is_cited_by_its_own_line(tmp_path):
    """The line of the fault, not of the row before it."""
    rows = [f"step {s}, loss={3 - s / 200:.4f}, lr=1e-4\n" for s in range(1, 101)]
    path = tmp_path / "train.log"
    path.write_text("".join([*rows[:60], XID.format(79) + "\n", *rows[60:]]))
    (run,), _ = read_runs([str(path)])
    (found,) = findings(run, RULE)
    assert (found.first, found.line, found.file) == (60, 61, None)
    assert "Xid" in found.text


def test_standard_error_beside_a_log_is_cited_by_its_file(tmp_path):
    """And a clean one lets the rule say that it looked."""
    path = tmp_path / "train.log"
    path.write_text("".join(f"step {s}, loss={3 - s / 200:.4f}\n" for s in range(1, 101)))
    (tmp_path / "stderr.txt").write_text("warning: x\n" + XID.format(79) + "\n")
    (run,), _ = read_runs([str(tmp_path)])
    (found,) = findings(run, RULE)
    assert (found.line, (tmp_path / run.source / found.file).resolve()) == (
        2, (tmp_path / "stderr.txt").resolve())  # fmt: skip
