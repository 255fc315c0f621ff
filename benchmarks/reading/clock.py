"""The clock: whole processes, in turns, by CPU time; a table of what they took."""

import os
import re
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(kw_only=True)
class Peer:
    """Something else that reads the same log."""

    name: str
    code: str
    """A program: the log is its first argument, and it prints what shows that it read all of it."""
    most: float
    """Goal: stabcli's CPU time over its own is no more than this."""
    most_memory: float | None = None
    """Goal for the peak of memory."""
    own: bool = False
    """Whether it needs no more than stabcli does, and runs in the same environment."""
    log: str = "log"
    """Which of the case's logs it reads; another where it cannot read the one stabcli reads."""
    same: bool = True
    """Whether it prints the same as stabcli does."""


@dataclass(kw_only=True)
class Case:
    """A log, stabcli's reader of it, and the peers."""

    name: str
    make: Callable[[Path], dict[str, Path]]
    """Folder -> logs by name; ``log`` is the one that stabcli reads."""
    code: str
    peers: list[Peer] = field(default_factory=list)
    most_mb: float | None = None
    """Goal for stabcli's anonymous memory, which is then watched."""


@dataclass(frozen=True)
class Taken:
    """What one process took."""

    cpu: float
    wall: float
    mb: float
    said: str


COMMAND = """
from stabcli.process import lighten
lighten()
"""
"""How a command of stabcli begins, and so each program that stands for one."""

_OF_A_CHILD = re.compile(r"^server (?P<cpu>[\d.]+) (?P<mb>[\d.]+)$", re.MULTILINE)
"""What a peer prints that has a server do the work: CPU seconds and peak of that."""


def run(python, code, *arguments, anonymous=False):
    """Run a program to its end.

    Args:
        python: The interpreter.
        code: The program.
        arguments: Its arguments.
        anonymous: Whether memory is that of its own, without files it maps: sampled.
    """
    reading, writing = os.pipe()
    begun = time.perf_counter()
    child = os.fork()
    if not child:
        os.dup2(writing, 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.execv(python, [python, "-c", code, *map(str, arguments)])
    os.close(writing)
    peak = [0.0]
    if anonymous:
        threading.Thread(target=_watch, args=(child, peak), daemon=True).start()
    with os.fdopen(reading) as file:
        said = file.read().strip()
    _, status, used = os.wait4(child, 0)
    if status:
        raise ChildProcessError(f"ended with {status}")
    wall = time.perf_counter() - begun
    server = _OF_A_CHILD.search(said)
    if server:
        said = _OF_A_CHILD.sub("", said).strip()
        return Taken(float(server["cpu"]), wall, float(server["mb"]), said)
    mb = peak[0] if anonymous else used.ru_maxrss / 1024
    return Taken(used.ru_utime + used.ru_stime, wall, mb, said)


def _watch(process, peak):
    """Note the largest anonymous memory that a process has had."""
    while True:
        try:
            text = Path(f"/proc/{process}/status").read_text()
            peak[0] = max(peak[0], int(re.search(r"RssAnon:\s+(\d+)", text)[1]) / 1024)
        except (OSError, TypeError):
            return
        time.sleep(0.005)


def compare(case, folder, rounds, python, *, judged=True):
    """Time a case and print its lines.

    Args:
        case: What is read.
        folder: Where its logs are made.
        rounds: How often each reads it, in turns, after a first time that only fills the cache.
        python: The interpreter of the environment with the peers; None where there is none.
        judged: Whether the goals hold for logs of this size.
    """
    logs = case.make(folder)
    size = logs["log"].stat().st_size / 1e6
    print(f"{case.name}, {size:,.0f} MB", flush=True)
    programs = [(None, sys.executable, COMMAND + case.code, logs["log"])]
    for peer in case.peers:
        if peer.own or python:
            own = sys.executable if peer.own else python
            programs.append((peer, own, peer.code, logs[peer.log]))
        else:
            print(f"  {peer.name}: left out, no environment of peers was named")
    taken = [[] for _ in programs]
    broken = {}
    for turn in range(rounds + 1):
        for i, (peer, own, code, log) in enumerate(programs):
            if i in broken:
                continue
            try:
                found = run(own, code, log, anonymous=case.most_mb is not None)
            except ChildProcessError as error:
                if peer is None:
                    raise SystemExit(f"stabcli {error}: {case.name}") from None
                broken[i] = error
                continue
            if turn:
                taken[i].append(found)
            if i and peer.same and turn and found.said != taken[0][-1].said:
                raise SystemExit(f"{peer.name} read {found.said}, stabcli {taken[0][-1].said}")
    for path in logs.values():
        path.unlink()
    ours = taken[0]
    print(f"  {'stabcli':34}{_middles(ours)}  {ours[0].said}")
    if case.most_mb is not None:
        mb = max(t.mb for t in ours)
        print(f"    its own memory: {mb:.0f} MB, goal {case.most_mb:.0f}: {_met(mb, case.most_mb)}")
    for i, (peer, _, _, _) in enumerate(programs[1:], 1):
        if i in broken:
            print(f"  {peer.name}: left out, it {broken[i]}")
            continue
        ratio = statistics.median(o.cpu / t.cpu for o, t in zip(ours, taken[i], strict=True))
        memory = statistics.median(o.mb / t.mb for o, t in zip(ours, taken[i], strict=True))
        told = f"stabcli / it: CPU {ratio:.3f} ({1 / ratio:.1f} x less)"
        told += f", goal {peer.most:.3f}: {_met(ratio, peer.most)}" if judged else ""
        told += f"; memory {memory:.2f}"
        if peer.most_memory and judged:
            told += f", goal {peer.most_memory}: {_met(memory, peer.most_memory)}"
        print(f"  {peer.name:34}{_middles(taken[i])}  {told}")
    print(flush=True)


def _middles(taken):
    cpu, wall, mb = (statistics.median(getattr(t, a) for t in taken) for a in ("cpu", "wall", "mb"))
    return f"CPU {cpu:7.2f} s  wall {wall:7.2f} s  peak {mb:6.0f} MB"


def _met(found, goal):
    return "met" if found <= goal else "MISSED"
