"""Troubles: what a text says of hardware, of memory and of how a process ended.

A line is an observation, not a cause: a crash of one process makes others time out, so that the
first line of a stretch says more than the last. Source of the kinds: NVIDIA's Xid errors, PyTorch's
CUDA and NCCL messages, Slurm's and the kernel's words for what they end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
    "exception": rb"Traceback \(most recent call last\)",
}
"""Kind -> what is searched for; where a line is of several kinds, the first counts."""
SEARCHED = 1 << 23
"""Bytes of a file that are searched: its end, where it is larger."""
KEPT = 20
"""Lines that are kept of a file."""
_SHOWN = 160
_CODE = re.compile(
    rb"\s*(?:raise|except|if|elif|assert|return|print|logger|logging|import|from|#|def|for|while)\b"
    rb"|\s*[\"'#]|.*\bprint\(f?[\"']"
)
"""How lines of source code begin, which some logs hold."""
_RAISED = re.compile(rb"^(?:\[rank\d+\]:\s*)?[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b.*")
"""The last line of a traceback."""
_RANK = re.compile(rb"^\s*\[(?:rank|default)\d+\]:\s*")
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


_ANY = re.compile(b"|".join(KINDS.values()))
_OF_KIND = {kind: re.compile(pattern) for kind, pattern in KINDS.items()}
_MARKS = (
    b"Xid", b"ECC", b"off the bus", b"CUDA", b"cuda", b"CUBLAS", b"cuDNN", b"HIP", b"hip", b"XPU",
    b"RESOURCE_EX", b"Out of mem", b"oom", b"Cannot alloc", b"nccl", b"NCCL", b"collective op",
    b"by peer", b"slurmstepd", b"DUE TO", b"signal", b"SIG", b"Bus error", b"Segmentation", b"Traceback",
)  # fmt: skip
"""Text of which one stands in every such line: a file with none of them is not looked at further."""


def troubles(path: Path) -> tuple[list[Said], bool]:
    """Return the lines of a text that tell of trouble, and whether all of it was searched.

    Of lines that are alike but for numbers, as each process prints them, the first is kept.

    Raises:
        OSError: The file cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        skipped = max(0, size - SEARCHED)
        before = 0
        if skipped:
            for _ in range(skipped >> 20):
                before += file.read(1 << 20).count(b"\n")
            file.seek(skipped & ~((1 << 20) - 1))
        data = file.read()
    if not any(mark in data for mark in _MARKS):
        return [], not skipped
    return list(_lines(data, before)), not skipped


def _lines(data: bytes, before: int) -> Iterator[Said]:
    seen: set[bytes] = set()
    number, counted = before + 1, 0
    at = 0
    while (found := _ANY.search(data, at)) is not None and len(seen) < KEPT:
        begin = max(data.rfind(b"\n", 0, found.start()), data.rfind(b"\r", 0, found.start())) + 1
        end = data.find(b"\n", found.end())
        end = len(data) if end < 0 else end
        number += data.count(b"\n", counted, begin)
        counted = begin
        at = end
        text = data[begin:end]
        if _CODE.match(text):
            continue
        line = number
        kind = next(k for k, p in _OF_KIND.items() if p.search(text))
        if kind == "exception":
            prefix = text[: text.index(b"Traceback")]
            raised, further = _raised(data, end, prefix)
            if raised is not None:
                text, line = raised, number + further
                kind = next((k for k, p in _OF_KIND.items() if p.search(text)), kind)
        text = _RANK.sub(b"", text)
        alike = re.sub(rb"\d+", b"#", text)[:80]
        if alike in seen:
            continue
        seen.add(alike)
        yield Said(kind=kind, line=line, text=text.decode("utf-8", "replace").strip()[:_SHOWN])


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
