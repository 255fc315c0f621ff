"""Rule ``fatal-end``."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stabcli.rules import CannotLook, Finding, Severity, cited, finding, rule
from stabcli.run import Run, Trouble
from stabcli.troubles import gravity, reported

ON_PURPOSE = re.compile(
    r"(?i)TIME LIMIT|PREEMPT|SIGTERM|SIGINT|SIGUSR|KeyboardInterrupt|CANCELLED(?!.*NODE FAIL)"
    r"|signal:? (?:2|10|12|15)\b|^SystemExit"
)
"""How schedulers and people end a process."""


@rule(presets=("default",), since="0.1.0", judges=False)
def fatal_end(run: Run) -> Iterator[Finding]:
    """The text of the log ends with what ended the process, before the run was done.

    ## What it finds
    After the last row of the newest attempt a line on memory that ran out, an exception, a CUDA
    error, a segmentation fault or a signal: the first of them, since the others are often its
    echo. An error where more steps were planned; a warning where nobody knows how many were. An
    end on purpose (a time limit, preemption, SIGTERM, Ctrl-C) is a warning where more steps were
    planned, and else a notice. Silent where the last step that was planned had been logged.

    ## Why it matters
    Every figure may be healthy up to the last row, and the run still has not done what it was
    meant to do. What stopped it waits for the next start.

    ## What to do
    Mend what the line names; then go on from the newest checkpoint.

    ## When it errs
    Where no planned number of steps is known, an exception after the last step, as of a tracker
    or an upload, looks the same. What `hardware-fault` tells of the same place is not told again.
    A process that ends without a word, or whose words went elsewhere, is not seen.

    ## Settings
    It has none.

    ## Example
    $ stabcli scan sample_logs/generic-text/synthetic_out_of_memory.log --rule fatal-end --format brief
    error     fatal-end            attempt 0  step 250  out-of-memory: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 2 has a total capacity of 79.15 GiB of which 1.12 GiB is free.

    ## Sources
    - First line and echo: the attribution of NVIDIA's resiliency extension.
    """
    last = [t for t in run.troubles if _after_all(run, t)]
    ends = sorted((t for t in last if _ended(t)), key=_gravest)
    if not run.troubles and not run.searched:
        raise CannotLook("the log has no text of a console that was searched to its end")
    if not ends or run.finished or any(_hardware(t, ends[0]) for t in last):
        return
    told, row = ends[0], run.frame.height - 1
    yield cited(
        run,
        told,
        finding(
            run,
            metric="exception" if told.kind == "gpu-fault" else told.kind,
            rows=(row, row),
            peak=row,
            severity=_severity(run, told),
            value=len(ends),
            tags=("unfinished",) if run.finished is False else (),
        ),
    )


def _after_all(run: Run, told: Trouble) -> bool:
    """Say whether a line stands after the last row, or in a text of its own beside one attempt."""
    newest = run.attempts[-1]
    if told.step is None:
        return len(run.attempts) == 1 and run.finished is False
    return (told.attempt, told.step) == (newest.attempt, newest.last_step)


def _ended(told: Trouble) -> bool:
    if told.kind in ("out-of-memory", "host-out-of-memory", "exception", "ended-from-outside"):
        return reported(told.kind, told.text) and told.text != "SystemExit: 0"
    return told.kind == "gpu-fault" and reported(told.kind, told.text) and "cuInit" not in told.text


def _on_purpose(told: Trouble) -> bool:
    return told.kind == "ended-from-outside" and ON_PURPOSE.search(told.text) is not None


def _gravest(told: Trouble) -> tuple[bool, str, int]:
    return _on_purpose(told), told.file, told.line


def _hardware(told: Trouble, end: Trouble) -> bool:
    """Say whether a line is told by ``hardware-fault``, and not as the echo of the end."""
    if gravity(told.kind, told.text) not in ("fatal", "fault"):
        return False
    echo = told.kind == "communication" and told.file == end.file and told.line > end.line
    return told.kind != "straggler" and not echo


def _severity(run: Run, told: Trouble) -> Severity:
    if run.finished is False:
        return "warning" if _on_purpose(told) else "error"
    return "notice" if _on_purpose(told) else "warning"
