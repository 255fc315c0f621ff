"""Readers beside their peers, on the same made files: whole processes, in turns, CPU seconds.

    python benchmarks/readers.py [--quick] [--rounds N] [--peers VENV] [--only WORDS] [--large]

Each process reads all of a file and prints what shows it, so that nobody wins by not looking.
Ratios are of CPU time (user and system), of the whole process with its start, in the same round;
wall time is shown for orientation only. Goals are for the full sizes. Peers need an environment of their own:

    python -m venv ../peers
    ../peers/bin/pip install tensorboard tensorboard-data-server tbparse wandb==0.22.3 \
        pyarrow polars "setuptools<81"

A peer that is not there is left out and named. ``--large`` adds a log of 4 GB, of which
stabcli is to keep three metrics within 400 MB of memory of its own.
"""

import argparse
import compileall
import platform
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
import polars as pl

import stabcli
from reading import clock, events, looking, objects, tables, text, wandbfiles

QUICK = 0.02
"""Share of the full size with --quick."""


def starts(rounds):
    """Time what people type first: one thread, so that CPU time is the wait on a quiet machine."""
    for flag, most in (("--help", 0.15), ("--version", 0.05)):
        code = f"import sys; sys.argv[1:] = ['{flag}']; from stabcli.__main__ import main; main()"
        taken = [clock.run(sys.executable, code) for _ in range(rounds + 4)][1:]
        wall, cpu = (statistics.median(getattr(t, a) for t in taken) for a in ("wall", "cpu"))
        told = "met" if cpu <= most else "MISSED"
        print(
            f"stabcli {flag}: wall {1e3 * wall:.0f} ms, CPU {1e3 * cpu:.0f} ms,"
            f" goal {1e3 * most:.0f}: {told}"
        )
    print()


def main():
    """Time every case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small files")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", help="virtual environment with the peers")
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument("--large", action="store_true", help="also a log of 4 GB")
    given = parser.parse_args()
    scale = QUICK if given.quick else 1.0
    compileall.compile_dir(Path(stabcli.__file__).parent, quiet=1)  # as installing does
    python = str(Path(given.peers, "bin", "python")) if given.peers else None
    print(
        f"{platform.platform()}, Python {platform.python_version()}, Polars {pl.__version__},"
        f" NumPy {np.__version__}, {given.rounds} rounds\n"
    )
    starts(given.rounds)
    kinds = (objects, events, wandbfiles, text, tables, looking)
    cases = [c for kind in kinds for c in kind.cases(scale)]
    if given.large:
        cases.append(objects.large_case(int(4e9 * scale)))
    for case in cases:
        if given.only in case.name:
            with tempfile.TemporaryDirectory() as folder:
                clock.compare(case, Path(folder), given.rounds, python, judged=not given.quick)


if __name__ == "__main__":
    main()
