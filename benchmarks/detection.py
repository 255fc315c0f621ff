"""Detectors side by side: what they find of planted faults, and what they say of clean runs.

    python benchmarks/detection.py [DATA] [--quick] [--seed N] [--rivals VENV]
    python benchmarks/detection.py --bakeoff 5 [--seed N]

DATA is a folder of real logs with hand labels (INDEX.tsv, LABELS.jsonl). The seed is drawn afresh
and printed; seeds below 10,000 were used for tuning, those from 1,000,000 on never were. Of the
real logs the W&B ones (CS336, Alpaca, lit-llama, diffusers), those of modded-nanoGPT and
parameter-golf, and the Algoperf ones were looked at while tuning; the rest were only counted. Rivals
are looked for in a virtual environment of their own:

    python -m venv ../rivals
    ../rivals/bin/pip install trainspotter trainproof runmedic losslint

Detectors marked * are published rules written out here, not the systems themselves; trainscope's
sum takes its median anew every fourth row only. The column "best test" is what could be found at
all at 0.5 false findings a million rows by one who knows everything but the place: see
``detecting/oracle.py``; for real logs by the law fitted to their noise. Rivals see a few short logs, as ``planted`` says. A finding counts from warning on. A fault
is found when a finding overlaps it, within 20 steps or 3 rows, that the same log without it does
not give; rivals that name no step need only say something new. ``--bakeoff`` plants one plain
fault each into 22 runs a seed, and asks whether stabcli says of each what must be said.
"""

import argparse
import platform
import random
import time
from collections import defaultdict

import numpy as np

from detecting.bakeoff import CASES, wrong
from detecting.clean import made, real, real_clean
from detecting.detectors import PUBLISHED, Stabcli, rivals
from detecting.faults import FAULTS
from detecting.measures import Silence, Tally, broken, percent, quiet, recall

MOST = 2500
"""Rows of a log that tools started as a process are given; some take minutes for more."""
ENOUGH = 8
"""Logs of each kind that those are given: each fault and detector is a process of its own."""


def table(head, lines):
    """Print rows of cells in columns."""
    cells = [head, *lines]
    widths = [max(len(str(row[i])) for row in cells) for i in range(len(head))]
    for row in cells:
        print(
            "  ".join(
                str(c).ljust(w) if i == 0 else str(c).rjust(w)
                for i, (c, w) in enumerate(zip(row, widths))
            )
        )
    print()


def show_recall(title, tallies, detectors):
    """Recall by fault, and stabcli's own onset, delay and endings."""
    print(f"## {title}: found of planted\n")
    head = ["fault", "planted", "best test", *[d.name for d in detectors]]
    lines, means = [], defaultdict(list)
    for fault in FAULTS:
        counts = sorted({tallies[d.name, fault].tried for d in detectors} - {0}, reverse=True)
        tried = " / ".join(str(n) for n in counts)
        if not tried:
            continue
        aim = f" (aim {100 * fault.target:.0f} %)" if fault.target else ""
        bounds = tallies[detectors[0].name, fault].bounds
        best = f"{100 * np.mean(bounds):.0f} %" if bounds else "-"
        row = [f"{fault.kind} {fault.size}{aim}", tried, best]
        for d in detectors:
            t = tallies[d.name, fault]
            row.append(percent(t.found, t.tried))
            if t.tried:
                means[d.name].append(t.found / t.tried)
        lines.append(row)
    lines.append(
        [
            "mean over faults",
            "",
            "",
            *[f"{100 * np.mean(means[d.name]):.0f} %" if means[d.name] else "-" for d in detectors],
        ]
    )
    table(head, lines)
    for name in {d.name for d in detectors if d.name.startswith("stabcli")}:
        instant = [x for f in FAULTS if f.instant for x in tallies[name, f].located]
        gradual = [x for f in FAULTS if not f.instant for x in tallies[name, f].located]
        ends = [x for f in FAULTS for x in tallies[name, f].endings]
        if not instant:
            continue
        within = percent(sum(x <= 3 for x in instant), len(instant))
        print(
            f"{name}: onset within 3 rows for {within} of {len(instant)} instant faults found;",
            end=" ",
        )
        if gradual:
            print(
                f"median error of {len(gradual)} gradual ones {np.median(gradual):.0f} rows;",
                end=" ",
            )
        print(f"endings right: {percent(sum(ends), len(ends))} of {len(ends)}")
        late = [(f, tallies[name, f].delays) for f in FAULTS if tallies[name, f].delays]
        for f, delays in late:
            print(
                f"    rows until seen, {f.kind} {f.size}: median {np.median(delays):.0f}, 9 of 10 within {np.quantile(delays, 0.9):.0f}"
            )
    print()


def show_silence(title, silences, told):
    """False findings per million clean rows."""
    print(f"## {title}: findings of warning or worse on clean rows\n")
    lines = []
    for name, s in silences.items():
        lines.append(
            [
                name,
                s.logs,
                f"{s.rows:,}",
                s.findings,
                s.grave,
                f"{1e6 * s.findings / max(1, s.rows):.1f}",
            ]
        )
    table(
        ["detector", "logs", "rows", "findings", "of them error or worse", "per million rows"],
        lines,
    )
    for name, s in silences.items():
        if name in told:
            for line in s.told[:40]:
                print(f"    {name}: {line}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="?", help="folder of labelled real logs")
    parser.add_argument("--quick", action="store_true", help="few logs, no rivals, no long runs")
    parser.add_argument("--seed", type=int, help="first seed of made runs; drawn afresh by default")
    parser.add_argument("--logs", type=int, help="made runs (default 60, quick 12)")
    parser.add_argument("--long", type=int, default=None, help="clean made runs of a million rows")
    parser.add_argument("--places", type=int, default=3, help="places of each fault in a real log")
    parser.add_argument("--rivals", help="virtual environment with the rivals")
    parser.add_argument("--missed", action="store_true", help="name what stabcli's default missed")
    parser.add_argument("--only", help="faults whose name holds one of these texts, by commas")
    parser.add_argument("--delays", action="store_true", help="how many rows a fault must show too")
    parser.add_argument("--alone", action="store_true", help="only stabcli's default preset")
    parser.add_argument("--bakeoff", type=int, metavar="SEEDS", help="only the 22 plain cases")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(10**6, 10**9)
    count = given.logs or (12 if given.quick else 60)
    longs = given.long if given.long is not None else (0 if given.quick else 2)
    split = "tuning" if seed < 10_000 else "held out" if seed >= 1_000_000 else "neither"
    print(
        f"Seeds {seed}..{seed + count - 1} (split: {split}); {platform.platform()}, Python {platform.python_version()}\n"
    )

    default = Stabcli("default")
    if given.bakeoff:
        for at in range(seed, seed + given.bakeoff):
            amiss = wrong(default, at)
            print(f"seed {at}: {len(CASES) - len(amiss)} of {len(CASES)} right")
            print("".join(f"    {line}\n" for line in amiss), end="")
        return
    detectors = [default] if given.alone else [default, Stabcli("seed"), *PUBLISHED]
    wanted = (given.only or "").split(",")
    faults = [f for f in FAULTS if any(text in f"{f.kind} {f.size}" for text in wanted)]
    outside = []
    if given.rivals and not given.quick:
        outside, absent = rivals(given.rivals)
        print("".join(f"Not installed, left out: {name}\n" for name in absent), end="")
    told = {default.name}
    begun = time.monotonic()

    tallies, silences = defaultdict(Tally), defaultdict(Silence)
    given_outside = 0
    for at in range(count):
        log = made(seed + at)
        asked = detectors + (outside if log.rows <= MOST and given_outside < ENOUGH else [])
        given_outside += len(asked) > len(detectors)
        quiet(log, asked, silences)
        late = told if log.rows <= 3000 and given.delays and at % 3 == 0 else ()
        recall(log, asked, tallies, seed, faults=faults, late=late)
    for at in range(longs):
        quiet(made(seed + count + at, longest=10**6), [default], silences)
    show_recall("Made runs", tallies, detectors + outside)
    show_silence("Made runs", silences, told)
    missed(given, tallies, default)

    if given.data:
        logs, refused = real(given.data)
        clean = real_clean(logs)
        print(
            f"\nReal logs: {len(logs)} runs read, {len(refused)} files refused, {len(clean)} runs to plant faults in\n"
        )
        tallies, silences = defaultdict(Tally), defaultdict(Silence)
        given_outside = 0
        for log in clean:
            asked = detectors + (outside if log.rows <= MOST and given_outside < ENOUGH else [])
            given_outside += len(asked) > len(detectors)
            quiet(log, asked, silences)
            for place in range(1 if given.quick else given.places):
                recall(log, detectors if place else asked, tallies, seed + place, faults=faults)
        show_recall("Faults in real logs", tallies, detectors + outside)
        show_silence("Real logs", silences, told)
        missed(given, tallies, default)
    for name, why in broken.items():
        print(f"{name} broke {len(why)} times, first: {why[0]}")
    print(f"{time.monotonic() - begun:.0f} s")


def missed(given, tallies, detector):
    """Name what was missed."""
    if given.missed:
        for fault in FAULTS:
            for line in tallies[detector.name, fault].missed[:12]:
                print(f"    missed {fault.kind} {fault.size}: {line}")


if __name__ == "__main__":
    main()
