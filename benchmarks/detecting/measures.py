"""Measures: what was found of what was planted, how late, where, and what was found of nothing."""

import zlib
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from detecting.clean import cut
from detecting.faults import FAULTS, planted
from detecting.oracle import power

DELAYS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Rows after the first bad one at which a log is cut to see whether the fault is seen yet."""


@dataclass
class Tally:
    """What one detector did with one fault on one kind of log."""

    tried: int = 0
    found: int = 0
    located: list = field(default_factory=list)
    """Rows from the true first row to the reported one."""
    delays: list = field(default_factory=list)
    endings: list = field(default_factory=list)
    """Whether each ending was right, where one is known."""
    missed: list = field(default_factory=list)
    """Names of logs and steps."""
    bounds: list = field(default_factory=list)
    """Probability that the best possible test finds each, where it can be told."""


@dataclass
class Silence:
    """What one detector said of clean rows."""

    rows: int = 0
    logs: int = 0
    findings: int = 0
    grave: int = 0
    told: list = field(default_factory=list)


def matching(hits, twin, p, step):
    """The hits that a planted fault explains: near it, and not there without it."""
    same = {(h.what, h.first, h.last) for h in twin}
    near = max(20, 3 * step)
    return [
        h
        for h in hits
        if (h.what, h.first, h.last) not in same
        and (
            h.first is None or (h.first <= p.last + near and (h.last or h.first) >= p.first - near)
        )
    ]


def recall(log, detectors, tallies, seed, *, faults=FAULTS, late=()):
    """Plant each fault once into a log and let every detector look.

    Args:
        log: The clean log.
        detectors: Those to ask.
        tallies: (detector, fault) -> Tally, added to.
        seed: Decides where the faults go.
        faults: The faults.
        late: Names of detectors whose delay is measured as well.
    """
    step = log.run.log_interval or 1
    twins = {}
    for fault in faults:
        key = zlib.crc32(f"{log.name} {fault.kind} {fault.size}".encode())
        p = planted(log, fault, np.random.default_rng([seed, key]))
        if p is None:
            continue
        stop = None if fault.within is None else p.row + fault.within + 1
        seen = p.run if stop is None else cut(p.run, stop)
        bound = power(log, fault, p.row, seen.frame.height - 1)
        for detector in detectors:
            cut_at = (detector.name, stop)
            if cut_at not in twins:
                twins[cut_at] = asked(detector, log.run if stop is None else cut(log.run, stop))
            hits = matching(asked(detector, seen), twins[cut_at], p, step)
            tally = tallies[detector.name, fault]
            tally.tried += 1
            tally.bounds += [] if bound is None else [bound]
            if not hits:
                seen_by_best = "" if bound is None else f", best test {100 * bound:.0f} %"
                tally.missed.append(f"{log.name} at step {p.first}{seen_by_best}")
                continue
            tally.found += 1
            firsts = [h.first for h in hits if h.first is not None]
            if firsts:
                nearest = min(firsts, key=lambda f: abs(f - p.first))
                tally.located.append(abs(nearest - p.first) / step)
            if p.ending is not None and any(h.ending for h in hits):
                grave = [h for h in hits if "loss" in h.what] or hits
                tally.endings.append(any(h.ending == p.ending for h in grave))
                if not tally.endings[-1]:
                    tally.missed.append(
                        f"ending {grave[0].ending}, not {p.ending}: {log.name} at step {p.first}"
                    )
            if detector.name in late:
                tally.delays.append(_delay(detector, log.run, p, step))


def _delay(detector, clean, p, step):
    """Rows of a fault that a detector must see; infinity where even the longest is too short."""
    for rows in DELAYS:
        stop = p.row + rows + 1
        hits = matching(
            asked(detector, cut(p.run, stop)), asked(detector, cut(clean, stop)), p, step
        )
        if hits:
            return rows
        if stop >= p.run.frame.height:
            break
    return float("inf")


def asked(detector, run):
    """What a detector says; a rival that breaks says nothing."""
    try:
        return detector.look(run)
    except Exception as why:
        if not detector.slow:
            raise
        broken[detector.name].append(repr(why)[:120])
        return []


broken = defaultdict(list)
"""Detector -> what went wrong when it was started."""


def quiet(log, detectors, silences):
    """Let every detector look at a log without a fault."""
    step = log.run.log_interval or 1
    near = max(20, 3 * step)
    for detector in detectors:
        silence = silences[detector.name]
        silence.rows += log.rows
        silence.logs += 1
        for h in asked(detector, log.run):
            labelled = h.first is not None and any(
                h.first <= b + near and (h.last or h.first) >= a - near for a, b in log.known
            )
            if labelled or (log.known and h.first is None):
                continue
            silence.findings += 1
            silence.grave += h.grave
            silence.told.append(f"{h.what} {h.first}..{h.last} in {log.name}")


def percent(part, whole):
    return f"{100 * part / whole:.0f} %" if whole else "-"
