"""Hygiene: what launchers, loggers and terminals put around a line is taken off before it is read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

TIME = r"\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
"""A time as loggers write it."""

_ANSI = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[()][AB0-2])")
_PREFIX = re.compile(
    rf"""\s*(?:
      \[?[Rr]ank[ _]?(?P<rank>\d+)\]?\s*:?\s                    # [rank0]: of torchrun
    | \[[A-Za-z][\w.-]*?(?P<role>\d+)\]:\s?                     # [default0]:
    | \[\d+,(?P<mpi>\d+)\]<std(?:out|err)>:\s?                  # mpirun
    | (?:slurm_procid\s+)?(?P<task>\d+)\s*:\s                   # srun --label, metaseq
    | \(\w+\ pid=\d+(?:,\ ip=[\d.]+)?\)\s?                      # Ray
    | [A-Za-z][\w.-]*:\s+(?=iteration\b|samples/sec|\[?\d{{4}}-)  # pdsh
    | \[?(?P<time>{TIME})\]?(?:\s+std(?:out|err)\s+[FP])?(?=[\s,|>-]|$)
    | -\s+[\w.]+\s+-\s+(?:INFO|WARNING|DEBUG|ERROR)\s+-         # logging
    | \[(?:titan|deepspeed|INFO|WARNING|DEBUG|ERROR)\]
    | \[[\w./-]+\.py:\d+(?::\w+)?\]                             # [logging.py:96:log_dist]
    | \|\s*(?:INFO|WARNING|DEBUG|ERROR)\s*(?=\|)
    | (?:INFO|WARNING|DEBUG|ERROR):[\w.]+:
    )""",
    re.VERBOSE,
)
_ENOUGH = 12  # prefixes before a line; more are no prefixes


@dataclass(slots=True)
class Peeled:
    """What was put in front of a line."""

    start: int
    """Where the line itself begins."""
    rank: int | None = None
    """The process that printed it, where a prefix says so."""
    time: tuple[int, int] | None = None
    """Where the time stands."""


def peel(line: str) -> Peeled:
    """Find the prefixes of a line, and the rank and time in them."""
    at = 0
    rank: int | None = None
    time: tuple[int, int] | None = None
    for _ in range(_ENOUGH):
        found = _PREFIX.match(line, at)
        if found is None or found.end() == at:
            break
        at = found.end()
        said = found["rank"] or found["role"] or found["mpi"] or found["task"]
        if said and rank is None and len(said) < 9:
            rank = int(said)
        if found["time"] and time is None:
            time = found.span("time")
    return Peeled(at, rank, time)


def seconds(text: str) -> float | None:
    """Return a time as seconds since 1970; one without a zone is taken as UTC."""
    try:
        when = datetime.fromisoformat(text.replace(",", ".").replace("/", "-"))
    except ValueError:
        return None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def scrubbed(data: bytes) -> bytes:
    r"""Return lines without colours, NUL bytes and ``\r`` before ``\n``; no line end is lost."""
    if b"\x1b" in data:
        data = _ANSI.sub(b"", data)
    if b"\0" in data:
        data = data.replace(b"\0", b"")
    return data.replace(b"\r\n", b"\n") if b"\r" in data else data


def segments(line: bytes) -> list[str]:
    r"""Return what a terminal would have shown of a line one after another, parted by ``\r``."""
    text = line.decode("utf-8", "replace")
    return [part for part in text.split("\r") if part.strip()] if "\r" in text else [text]
