"""Outcomes with verdicts, for the tests of reports: everything that a report may have to tell."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from stabcli.criteria import Criterion
from stabcli.ignores import Ignore
from stabcli.report import Outcome
from stabcli.rules import Skipped
from stabcli.verdicts import Verdict
from tests.report.diagnoses import PLAN, diagnosis, finding, incident
from tests.rules.runs import make_run

NASTY = (
    "a|b`c` <script>alert('x')</script> [x](http://e.vil) @team %0A::error:: \x1b[31m]]>&amp; é😀,:"
)
"""A name that tries to be Markdown, HTML, XML, a mention, a command and a colour."""
IGNORE = Ignore(
    rules=("grad-norm-spike",),
    first=100,
    last=100,
    runs=None,
    reason=f"known {NASTY}",
    until=dt.date(2099, 1, 1),
    source="stabcli.toml",
)
CRITERIA = (
    Criterion(name="fail-on error", status="fail", text="loss-spike at step 300 (critical)"),
    Criterion(name="require loss", status="pass", text="500 of 500 rows have it"),
    Criterion(
        name="max-final-loss", status="fail", text=f"loss 2 {NASTY}", value=2.0, limit=float("inf")
    ),
    Criterion(name="baseline mfu", status="skipped", text="neither log tells the MFU"),
)
UNKNOWN = Criterion(name="min-mfu", status="unknown", text="MFU is unknown: add --params N")


def log(folder: Path, name: str = "run.jsonl") -> Path:
    """A text file of 500 lines, which a run may claim to be read from."""
    path = folder / name
    path.write_text("{}\n" * 500)
    return path


def decided(folder: Path, *, unknown: bool = False, unread: tuple[str, ...] = ()) -> Outcome:
    """An outcome of one run of a log in ``folder`` with whatever can be told.

    A critical spike led by the gradient norm at line 302, an ignored spike at step 100, a
    notice; a plan; rules that looked, found nothing, and could not look.
    """
    run = make_run(loss=np.full(500, 2.0), name=NASTY)
    run = replace(run, source=str(log(folder)))
    ignored = finding("grad-norm-spike", metric=NASTY, first=100, last=100, peak=100, line=101)
    incidents = [
        incident(ignored),
        incident(
            finding("grad-norm-spike", metric="grad_norm", first=298, last=301, line=299),
            finding(severity="critical"),
        ),
        incident(finding("grad-norm-high", severity="notice", first=400, line=401)),
    ]
    d = diagnosis(
        *incidents,
        run=run,
        skipped=[Skipped(rule="mfu-low", why=f"the log has no mfu {NASTY}")],
        checked=("loss-spike", "grad-norm-spike", "grad-norm-high", "nonfinite"),
        plans=[(), (PLAN,), ()],
    )
    verdict = Verdict(
        fail_on="error",
        criteria=CRITERIA + ((UNKNOWN,) if unknown else ()),
        ignored={ignored: IGNORE},
    )
    return Outcome(
        diagnoses=(d,),
        exit_status=2 if unknown or unread else 1,
        verdicts=(verdict,),
        unread=unread,
        base=str(folder),
    )


def many(folder: Path, n: int, **changes: Any) -> Outcome:
    """An outcome of one run with ``n`` warnings and, after them, one error."""
    run = replace(make_run(loss=np.full(500, 2.0)), source=str(log(folder)))
    found = [finding(first=i, last=i, peak=i, severity="warning", line=i + 1) for i in range(n)]
    last = finding(first=n, last=n, peak=n, line=n + 1)
    d = diagnosis(*(incident(f) for f in [*found, last]), run=run, **changes)
    return Outcome(diagnoses=(d,), exit_status=0, base=str(folder))
