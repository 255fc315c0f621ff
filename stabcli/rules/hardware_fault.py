"""Rule ``hardware-fault``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from stabcli.rules import STATISTIC, CannotLook, Finding, Severity, cited, finding, rule
from stabcli.run import Run, Trouble
from stabcli.troubles import Gravity, gravity

ROOTS = ("out-of-memory", "host-out-of-memory", "ended-from-outside", "exception")
"""Kinds of lines after which collectives of the other processes fail too."""
WENT_ON = 100
"""Rows after a line which show that the device did not fail there for good.

A program prints its rows with a delay, but what it keeps back (8 KiB) holds fewer.
"""


@rule(presets=("default",), since="0.1.0", judges=False)
def hardware_fault(run: Run, *, near: int = 0) -> Iterator[Finding]:
    """The text of the log tells of a GPU, a link or a network that failed.

    ## What it finds
    Lines on Xid errors, on memory errors that cannot be corrected, on NCCL or Gloo that failed or
    timed out, on a result that did not come again when Megatron-LM computed it once more, and on
    GPUs slower than three quarters of the fastest. An error where the device is of no more use
    (Xid 48, 64, 79, 95, 119, 120 and 140, ECC errors, a persistent wrong result) or where the
    attempt logged nothing after it; else a warning, as where 100 rows or more of the attempt
    follow an Xid or ECC error: the device was still of use. It stands at the row that was logged last
    before the line; lines after the same row are one finding. An Xid that programs cause as well
    (13, 31, 43, 45 and others), or an illegal memory access, is a notice, and so is a line in
    which the words do not stand where kernel, NCCL or an exception put them. What denies, quotes,
    or only prepares for a fault is none.

    ## Why it matters
    What failed once fails again, and every restart on the same node costs the steps since the
    last checkpoint. A GPU that computes wrong spoils weights without a word.

    ## What to do
    Take the device or node that the line names out of service, have it tested, and go on from the
    newest checkpoint with the same data.

    ## When it errs
    A line is an observation: collectives time out as well where a program lets one process
    wait for another. Where the text tells before of memory that ran out, of an exception or of a
    signal, what it says of the network afterwards is taken for the echo. Of lines that are alike
    but for numbers each file tells the first only.

    ## Settings
    near: Rows between two such lines that still make one finding.

    ## Example
    $ stabcli scan sample_logs/generic-text/synthetic_hardware.log --rule hardware-fault --format brief
    warning   hardware-fault       attempt 0  step 200  straggler: MnRtt/Rnk: 501.30ms/0 | MxRtt/Rnk: 912.40ms/3 | MnPwr/Rnk: 401.10W/3 | MnEtpt/Rnk: 221.40TF/3 | MxEtpt/Rnk: 402.11TF/0
    error     hardware-fault       attempt 0  step 340  gpu-fault: [Mon Jan  5 11:02:17 2026] NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.

    ## Sources
    - Xid 48, 63, 64 and 79, and what the others mean: https://docs.nvidia.com/deploy/xid-errors/
    - Transient and persistent errors: rerun_state_machine.py of Megatron-LM.
    - 0.75 of the fastest: straggler/reporting.py of NVIDIA's resiliency extension; the line of
      speeds: README_STRAGGLER.md of Megatron-LM.
    - First line and echo: the attribution of NVIDIA's resiliency extension.
    """
    roots = _roots(run.troubles)
    told = [(t, how) for t in run.troubles if (how := _sure(t, roots)) is not None]
    if not told and not run.searched:
        raise CannotLook("the log has no text of a console that was searched to its end")
    rows = [(_row(run, t), t, how) for t, how in told]
    yield from (_unplaced(run, t, how) for row, t, how in rows if row is None)
    placed = sorted(((row, t, how) for row, t, how in rows if row is not None), key=_order)
    begun = 0
    for i in range(len(placed)):
        last = i + 1 == len(placed)
        if last or placed[i + 1][0] - placed[i][0] > near or _other(placed[i][1], placed[i + 1][1]):
            yield _found(run, placed[begun : i + 1])
            begun = i + 1


Placed = tuple[int, Trouble, Gravity]
"""The row logged last before a line, the line, and how sure it is."""


def _order(placed: Placed) -> tuple[int, str, int]:
    return placed[0], placed[1].file, placed[1].line


def _other(a: Trouble, b: Trouble) -> bool:
    return a.attempt != b.attempt


Place = tuple[str, int | None, int | None]
"""File, attempt and step of the row that was logged last."""


def _place(told: Trouble) -> Place:
    return told.file, told.attempt, told.step


def _roots(troubles: Sequence[Trouble]) -> dict[Place, int]:
    """Return for each place the first line after which collectives fail as an echo."""
    first: dict[Place, int] = {}
    for told in troubles:
        if told.kind in ROOTS:
            place = _place(told)
            first[place] = min(told.line, first.get(place, told.line))
    return first


def _sure(told: Trouble, roots: dict[Place, int]) -> Gravity | None:
    """Say how surely a line tells of hardware; None where it does not, or is but an echo."""
    how = gravity(told.kind, told.text)
    if how is None or told.kind != "communication":
        return how
    return None if roots.get(_place(told), told.line) < told.line else how


def _row(run: Run, told: Trouble) -> int | None:
    """Return the row that was logged last before a line; None where the text has no rows."""
    if told.step is None:
        return None
    attempts, steps = run.frame["attempt"].to_numpy(), run.frame["step"].to_numpy()
    at = np.flatnonzero((attempts == told.attempt) & (steps <= told.step))
    return int(at[-1]) if len(at) else None


def _severity(how: Gravity, *, died: bool, went_on: bool = False) -> Severity:
    if how == "unclear":
        return "notice"
    return "error" if died or (how == "fatal" and not went_on) else "warning"


def _found(run: Run, placed: Sequence[Placed]) -> Finding:
    """Make a finding of lines near one another: of the gravest the first is shown."""
    row, told, how = min(
        placed, key=lambda p: (("fatal", "fault", "unclear").index(p[2]), *_order(p))
    )
    attempts = run.frame["attempt"].to_numpy()
    ends = int(np.flatnonzero(attempts == attempts[row])[-1])
    last = ends == run.frame.height - 1
    died = placed[-1][0] == ends and not (last and run.finished)
    # A GPU that computes wrong lets the run go on all the same.
    went_on = told.kind != "wrong-result" and _healthy(run, placed[-1][0] + 1, ends) >= WENT_ON
    tags: tuple[str, ...] = ()
    if died and how != "unclear":
        tags = ("died",) if last else ("restarted",)
    elif how == "fatal" and went_on:
        tags = ("went-on",)
    return cited(
        run,
        told,
        finding(
            run,
            metric=told.kind,
            rows=(placed[0][0], placed[-1][0]),
            peak=row,
            severity=_severity(how, died=died, went_on=went_on),
            value=len(placed),
            tags=tags,
        ),
    )


def _healthy(run: Run, first: int, last: int) -> int:
    """Count the rows from one on, to the last or to where the loss is no longer finite."""
    rows = slice(first, last + 1)
    if not run.has("loss"):
        return last + 1 - first
    bad = np.flatnonzero(run.logged("loss")[rows] & ~np.isfinite(run.array("loss")[rows]))
    return int(bad[0]) if len(bad) else last + 1 - first


def _unplaced(run: Run, told: Trouble, how: Gravity) -> Finding:
    """Make a finding of a line in text without steps: it is of the whole run."""
    last = run.frame.height - 1
    attempts = run.frame["attempt"].to_numpy()
    first = int(np.flatnonzero(attempts == attempts[last])[0])
    return cited(
        run,
        told,
        finding(
            run,
            metric=told.kind,
            rows=(first, last),
            peak=last,
            severity=_severity(how, died=False),
            value=1,
            tags=(STATISTIC, "unplaced"),
        ),
    )
