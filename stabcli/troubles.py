"""Troubles: what a text says of hardware, of memory and of how a process ended.

A line is an observation, not a cause: a crash of one process makes others time out, so that the
first line of a stretch says more than the last. Source of the kinds: NVIDIA's Xid errors, PyTorch's
CUDA and NCCL messages, Slurm's and the kernel's words for what they end, what Megatron-LM's rerun
state machine says of a result that did not come again, and the reports on stragglers of NVIDIA's
resiliency extension and of Megatron-LM.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import polars as pl

from stabcli.hearsay import FAR, Telling, telling

KINDS = {
    "gpu-fault": rb"NVRM: Xid|\bXid \(PCI|uncorrectable ECC|Uncorrectable ECC|fallen off the bus"
    rb"|CUDA error: |CUDA failure|cudaError[A-Z]\w+|CUBLAS_STATUS_[A-Z_]+|cuDNN error"
    rb"|CUDNN_STATUS_[A-Z_]+|HIP error: |hipError[A-Z]\w+",
    "out-of-memory": rb"(?:CUDA|HIP|XPU) out of memory|RESOURCE_EXHAUSTED|CUDA_ERROR_OUT_OF_MEMORY",
    "host-out-of-memory": rb"Out of memory: Kill|oom[-_]kill|Cannot allocate memory",
    "communication": rb"ncclSystemError|ncclUnhandledCudaError|ncclInternalError|ncclRemoteError"
    rb"|NCCL error|collective operation timeout|NCCL operations have failed or timed out"
    rb"|NCCL watchdog thread terminated|Connection reset by peer|Connection closed by peer",
    "ended-from-outside": rb"slurmstepd: error|DUE TO TIME LIMIT|DUE TO PREEMPTION|Killed by signal"
    rb"|[Rr]eceived (?:death )?signal|SIGTERM|SIGKILL|Bus error|Segmentation fault"
    rb"|^(?:\[rank\d+\]:\s*)?KeyboardInterrupt",
    "wrong-result": rb"unexpected result is not reproducible|Possible (?:transient|persistent) error!",
    "straggler": rb"STRAGGLER DETECTION WARNING|Rank=\d+ Node=\S+ Score=0\.\d+|MnEtpt/Rnk:",
    "exception": rb"Traceback \(most recent call last\)",
}
"""Kind -> what is searched for; where a line is of several kinds, the first counts."""
END = 1 << 23
"""Bytes at the end of a file that are searched whatever they hold."""
SEARCHED = 1 << 26
"""Bytes before them that are looked at line by line, of those in which anything stands."""
_BLOCK = 1 << 20
"""Bytes of which is told at once whether anything stands in them."""
KEPT = 20
"""Lines that are kept of a file."""
_SHOWN = 160
"""Characters of a line that are kept; more where what failed speaks late in it."""
_CODE = re.compile(
    rb"\s*(?:raise|except|if|elif|assert|return|print|logger|logging|import|from|#|def|for|while)\b"
    rb"|\s*[\"'#]|.*\bprint\(f?[\"']"
)
"""How lines of source code begin, which some logs hold."""
_RAISED = re.compile(rb"^(?:\[rank\d+\]:\s*)?[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b.*")
"""The last line of a traceback."""
_RANK = re.compile(rb"^\s*\[(?:rank|default)\d+\]:\s*")
_COUNTED = re.compile(rb"[1-9]\d*|0\d+")
"""Numbers other than 0."""
_DEPTH = 200
"""Lines of a traceback that are looked at for its last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A line that tells of trouble."""

    kind: str
    line: int
    """From 1, in its file."""
    text: str
    """What it says, cut to one line of a screen or two."""


_XID = re.compile(r"\bXid\b(?: \(PCI[^)]*\))?:? *(\d+)")
FATAL_XIDS = frozenset({48, 64, 79, 95, 119, 120, 140})
"""Memory that cannot be corrected or remapped, a GPU that is gone, or whose processor is."""
DEVICE_XIDS = FATAL_XIDS | {61, 62, 63, 74, 92, 94, 149}
"""Every other Xid may be the program's own doing, or only says that it was ended.

Source: NVIDIA's catalogue of Xid errors, https://docs.nvidia.com/deploy/xid-errors/."""
_NONE = re.compile(
    rb"(?i)uncorrectable ECC(?:[\s:=|]|errors?|count|total|volatile|aggregate)*\b0\b"
)
"""A count of errors that is 0."""
_DEVICE = re.compile(
    r"(?i)uncorrectable|\bECC|off the bus|nvlink|hardware (?:stack )?error|is lost"
)
_UNCLEAR = re.compile(r"(?i)illegal (?:memory access|address)|launch failure|unknown error")
_NETWORK = re.compile(r"(?i)nccl|gloo|distributed|collective|ProcessGroup|\bib\b|rdma")
_SCORE = re.compile(rb"Rank=\d+ Node=\S+ Score=(\d\.\d+)")
_THROUGHPUT = re.compile(rb"MnEtpt/Rnk: ([\d.]+)TF.*MxEtpt/Rnk: ([\d.]+)TF")
LAGS = 0.75
"""Share of the speed of the fastest below which a GPU is a straggler.

Source: the threshold of NVIDIA's resiliency extension, straggler/reporting.py."""
_FORMED = ("exception", "straggler", "wrong-result")
"""Kinds whose lines nobody else would write."""
_REPORT = 1 << 13
"""Bytes before a warning of stragglers in which its scores stand."""

_ANY = re.compile(b"|".join(KINDS.values()))
_WORDS = (
    "NVRM: Xid", "Xid (PCI", "ncorrectable ECC", "fallen off the bus", "CUDA error: ",
    "CUDA failure", "cudaError", "CUBLAS_STATUS_", "cuDNN error", "CUDNN_STATUS_", "HIP error: ",
    "hipError", "CUDA out of", "HIP out of", "XPU out of", "RESOURCE_EXHAUSTED",
    "CUDA_ERROR_OUT_OF", "Out of memory: Kill", "oom-kill", "oom_kill", "Cannot allocate memory",
    "ncclSystemError", "ncclUnhandledCudaError", "ncclInternalError", "ncclRemoteError",
    "NCCL error", "collective operation timeout", "NCCL operations have", "NCCL watchdog thread",
    "Connection reset by", "Connection closed by", "slurmstepd: error", "DUE TO TIME",
    "DUE TO PREEMPTION", "Killed by signal", "eceived death signal", "eceived signal", "SIGTERM",
    "SIGKILL", "Bus error", "Segmentation fault", "KeyboardInterrupt", "is not reproducible",
    "Possible transient", "Possible persistent", "STRAGGLER DETECTION", " Score=0.", "MnEtpt/Rnk:",
    "Traceback (most",
)  # fmt: skip
"""Of which each line that tells of trouble has one. A search for words alone is four times as fast
as one for the patterns."""
_SOME = "|".join(map(re.escape, _WORDS))
_OF_KIND = {kind: re.compile(pattern) for kind, pattern in KINDS.items()}


def troubles(path: Path) -> tuple[list[Said], bool]:
    """Return the lines of a text that tell of trouble, and whether all of it was searched.

    Of lines that are alike but for numbers, as each process prints them, the first is kept; of a
    long file the end is searched on its own, for that is where it says how a process ended.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= END:
            data = file.read()
            return list(_lines(data, 0)) if _anything(data) else [], True
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            return _long(text, file.fileno())


def _long(text: mmap.mmap, file: int) -> tuple[list[Said], bool]:
    """Return what a long text says, and whether all of it was searched."""
    end = text.rfind(b"\n", max(0, len(text) - 2 * END), len(text) - END) + 1 or len(text) - END
    early: dict[str, Said] = {}
    counted = lines = looked = 0
    begin = 0
    whole = True
    while begin < end and len(early) < KEPT:
        # read, not mapped: to map what is looked at once costs as much as the search
        block = os.pread(file, min(_BLOCK, end - begin), begin)
        stop = begin + block.rfind(b"\n") + 1
        if stop == begin:
            stop = text.find(b"\n", min(begin + _BLOCK, end) - 1, end) + 1 or end
            block = text[begin:stop]
        block = block[: stop - begin]
        if _anything(block):
            if looked > SEARCHED:
                whole = False
                break
            looked += len(block)
            lines, counted = lines + _count(text, counted, begin), begin
            # what a traceback or a report of stragglers says stands in lines around a hit
            ahead = max(text.rfind(b"\n", 0, max(0, begin - _REPORT)) + 1, 0)
            around = text[ahead : min(stop + _REPORT, len(text))]
            before = lines - around[: begin - ahead].count(b"\n")
            hits = _lines(around, before, begin - ahead, stop - ahead)
            for one in hits:
                early.setdefault(_key(one.kind, one.text), one)
        begin = stop
    last = text[end:]
    found = list(early.values())[:KEPT]
    if _anything(last):
        found += _lines(last, lines + _count(text, counted, end))
    return found, whole


def _anything(block: bytes) -> bool:
    """Say whether a stretch of text may hold a line that tells of trouble."""
    text = pl.Series([block.decode("utf-8", "replace")])
    return bool(text.str.contains(_SOME).any())


def _count(text: mmap.mmap, begin: int, end: int) -> int:
    """Count the lines of a stretch of a text."""
    return sum(text[at : min(at + _BLOCK, end)].count(b"\n") for at in range(begin, end, _BLOCK))


def _key(kind: str, text: str) -> str:
    """Return what lines that say the same have in common: all but their numbers."""
    if kind == "straggler":
        return kind
    xid = _XID.search(text)
    return re.sub(r"\d+", "#", text)[:80] if xid is None else f"Xid {xid[1]}"


def _lines(data: bytes, before: int, first: int = 0, limit: int | None = None) -> Iterator[Said]:
    """Yield the lines that tell of trouble.

    Args:
        data: Text.
        before: Lines before it.
        first: Where the lines in question begin; what stands before is there to look back at.
        limit: Where they end.
    """
    limit = len(data) if limit is None else limit
    seen: set[str] = set()
    silent: set[bytes] = set()
    number, counted = before + 1, 0
    at = first
    while (found := _ANY.search(data, at, limit)) is not None and len(seen) < KEPT:
        begin = max(data.rfind(b"\n", 0, found.start()), data.rfind(b"\r", 0, found.start())) + 1
        end = data.find(b"\n", found.end())
        end = len(data) if end < 0 else end
        number += data.count(b"\n", counted, begin)
        counted = begin
        at = end
        text = data[begin:end]
        if _CODE.match(text) or _NONE.search(text):
            continue
        line = number
        kind = next(k for k, p in _OF_KIND.items() if p.search(text))
        if kind not in _FORMED:
            # a program may print it at every step; a count that is no longer 0 is another line
            words = _COUNTED.sub(b"#", text[: 2 * FAR])
            if words in silent:
                continue
            if _telling(kind, text) == "hearsay":
                silent.add(words)
                continue
        if kind == "straggler" and not _lags(text, data[max(0, begin - _REPORT) : begin]):
            continue
        if kind == "exception":
            prefix = text[: text.index(b"Traceback")]
            raised, further = _raised(data, end, prefix)
            if raised is not None:
                text, line = raised, number + further
                kind = next((k for k, p in _OF_KIND.items() if p.search(text)), kind)
        text = _RANK.sub(b"", text)
        alike = _key(kind, text.decode("utf-8", "replace"))
        if alike in seen:
            continue
        seen.add(alike)
        spoken = _OF_KIND[kind].search(text[:FAR])
        shown = max(_SHOWN, spoken.end() + _SHOWN // 2 if spoken else 0)
        told = text.decode("utf-8", "replace").strip()
        told = told if len(told) <= shown else f"{told[: shown - 1]}…"
        yield Said(kind=kind, line=line, text=told)


def _lags(text: bytes, before: bytes) -> bool:
    """Say whether a line on the speed of GPUs tells of one that lags.

    A warning does, unless the scores that stand before it are all good: the threshold of warnings
    is the user's.
    """
    if (speeds := _THROUGHPUT.search(text)) is not None:
        return float(speeds[1]) < LAGS * float(speeds[2])
    if (score := _SCORE.search(text)) is not None:
        return float(score[1]) < LAGS
    scores = [float(s) for s in _SCORE.findall(before)]
    return b"STRAGGLER" in text and (not scores or min(scores) < LAGS)


Gravity = Literal["fatal", "fault", "unclear"]


def reported(kind: str, text: str) -> bool:
    """Say whether a line is the report of what failed, and not words of another about it."""
    return kind in _FORMED or _telling(kind, text.encode()) == "report"


def _telling(kind: str, text: bytes) -> Telling:
    found = _OF_KIND[kind].search(text)
    if found is None:  # a line that was cut for a screen
        return "doubtful"
    before = text[: found.start()].decode("utf-8", "replace")
    words = found[0].decode("utf-8", "replace")
    after = text[found.end() :].decode("utf-8", "replace")
    return telling(before + words + after, len(before), len(before) + len(words))


def gravity(kind: str, text: str) -> Gravity | None:
    """Say how surely a line tells of hardware or of the network; None where it tells of neither.

    Args:
        kind: One of ``KINDS``.
        text: The line.

    Returns:
        ``fatal``: the device is of no more use; ``fault``: it failed, or the network did;
        ``unclear``: a device or the program, nobody can tell by the line, nor in a sentence that
        speaks of a failure in words of its own.
    """
    how = _gravity(kind, text)
    return "unclear" if how in ("fatal", "fault") and not reported(kind, text) else how


def _gravity(kind: str, text: str) -> Gravity | None:
    if "out of memory" in text.lower():
        return None
    if kind == "gpu-fault":
        if (xid := _XID.search(text)) is not None:
            code = int(xid[1])
            return "fatal" if code in FATAL_XIDS else "fault" if code in DEVICE_XIDS else "unclear"
        if "cuInit" in text:
            return None  # a node without a GPU, or a driver that does not fit
        if _DEVICE.search(text):
            return "fatal" if re.search(r"(?i)uncorrectable|off the bus|is lost", text) else "fault"
        return "unclear" if _UNCLEAR.search(text) else None
    if kind == "communication":
        # A connection that a server of data or of a tracker closed is none of these.
        return "fault" if _NETWORK.search(text) else None
    if kind == "wrong-result":
        return "fatal" if re.search("persistent|different GPU", text) else "fault"
    return "fault" if kind == "straggler" else None


def _raised(data: bytes, at: int, prefix: bytes) -> tuple[bytes | None, int]:
    """Return the line that names the exception of a traceback, and how far down it stands.

    ``prefix`` stood before the traceback and may stand before each of its lines.
    """
    for further in range(1, _DEPTH):
        end = data.find(b"\n", at + 1)
        line = data[at + 1 : end if end >= 0 else len(data)].removeprefix(prefix)
        if _RAISED.match(line):
            return line, further
        if end < 0:
            break
        at = end
    return None, 0
