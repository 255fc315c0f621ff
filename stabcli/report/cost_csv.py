"""A bill as CSV: one line a class, incident or run; an empty field where a figure is unknown."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from stabcli.bill import Bill
from stabcli.report.cost_tables import By, lines


def cost_csv(bills: Sequence[Bill], by: By) -> str:
    """Write the table that was asked for."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["run", by if by != "run" else "what", "steps", "tokens", "gpu_hours", "usd",
                     "share"])  # fmt: skip
    for line in lines(bills, by):
        cost = line.cost
        figures = (cost.tokens, cost.gpu_hours, cost.usd, line.share)
        shown = ["" if x is None else f"{x:.10g}" for x in figures]
        writer.writerow([line.run, line.name, cost.steps, *shown])
    return out.getvalue()
