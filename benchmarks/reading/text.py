"""Text: the console of Megatron-LM, with other lines between its iterations."""

import random
from functools import partial

from reading.clock import Case, Peer

STABCLI = """
import sys
from stabcli.readers.megatron import megatron
from stabcli.sources import open_source
[reading] = megatron(open_source(sys.argv[1]))
loss, norm = reading.table["lm loss"].drop_nulls(), reading.table["grad norm"]
print(len(loss), round(loss.sum(), 3), int(norm.is_nan().sum()))
"""
LOOP = r"""
import re, sys
import polars as pl
number = r"([-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf))"
names = ["consumed samples", "elapsed time per iteration (ms)", "throughput per GPU (TFLOP/s/GPU)",
    "learning rate", "global batch size", "lm loss", "loss scale", "grad norm",
    "number of skipped iterations", "number of nan iterations"]
line = re.compile(r"iteration\s+(\d+)/\s*\d+ \|"
    + "".join(rf" {re.escape(name)}:\s+{number} \|" for name in names))
rows = []
with open(sys.argv[1]) as file:
    for text in file:
        found = line.search(text)
        if found:
            rows.append([float(x) for x in found.groups()])
rows = pl.DataFrame(rows, schema=["step", *names], orient="row")
print(rows.height, round(rows["lm loss"].sum(), 3), int(rows["grad norm"].is_nan().sum()))
"""


def write(number, folder):
    """Write iterations, every thousandth with a validation, a NaN now and then."""
    path = folder / "megatron.log"
    draw = random.Random(0)
    gauss = draw.gauss
    with path.open("w", buffering=1 << 22) as file:
        for i in range(1, number + 1):
            loss = 2 + 8 * 2.718 ** (-i / 2e5) + 0.05 * gauss(0, 1)
            norm = "nan" if i % 5003 == 0 else f"{abs(gauss(1, 0.3)):.3f}"
            time = f"2026-05-{1 + i // 86400 % 28:02d} {i // 3600 % 24:02d}:{i // 60 % 60:02d}"
            file.write(
                f" [{time}:{i % 60:02d}] iteration {i:8d}/ {number:8d} |"
                f" consumed samples: {i * 1024:12d} |"
                f" elapsed time per iteration (ms): {2500 + 10 * gauss(0, 1):.1f} |"
                f" throughput per GPU (TFLOP/s/GPU): {410 + 3 * gauss(0, 1):.1f} |"
                f" learning rate: {3e-4 * min(1, i / 2000):.6E} | global batch size: {1024:5d} |"
                f" lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: {norm} |"
                f" number of skipped iterations: {0:3d} | number of nan iterations: {0:3d} |\n"
            )
            if i % 1000 == 0:
                file.write(
                    "(min, max) time across ranks (ms):\n"
                    "    evaluate ....................................: (12345.67, 12346.78)\n"
                    f"{'-' * 60}\n validation loss at iteration {i} |"
                    f" lm loss value: {loss + 0.1:.6E} | lm loss PPL: {2.718**loss:.6E} | \n"
                    f"{'-' * 60}\n"
                )
    return {"log": path}


def cases(scale):
    """Return the case, of a million lines times ``scale``."""
    number = int(1e6 * scale)
    peer = Peer(name="loop over lines, compiled regex", code=LOOP, most=0.25, own=True)
    return [
        Case(
            name=f"Megatron text, {number:,} lines",
            make=partial(write, number),
            code=STABCLI,
            peers=[peer],
        )
    ]
