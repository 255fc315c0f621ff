"""A comparison as CSV: one line a run; an empty field where a figure is unknown."""

from __future__ import annotations

import csv
import io
from typing import Any

from stabcli.comparison import Comparison
from stabcli.comparison.sides import HELD_OUT
from stabcli.report._compare_rows import result


def compare_csv(c: Comparison) -> str:
    """Write the figures of every run."""
    metric = c.metric or "loss"
    held = [m for m in HELD_OUT if any(s.run.has(m) for s in c.sides)]
    head = ["key", "run", "keep", *(d.setting for d in c.differences)]
    head += [f"{metric} at {p.at:.10g} {p.unit}" for p in c.points]
    head += [f"best {metric}", f"best {metric} step", f"final {metric}",
             f"final {metric} step"]  # fmt: skip
    head += [f"{which} {m}" for m in held for which in ("best", "last", "last step of")]
    head += ["last step", "tokens", "incidents", "result", "wasted steps", "wasted tokens",
             "wasted gpu_hours", "goodput"]  # fmt: skip
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    for index, side in enumerate(c.sides):
        best, final, total = side.best(higher=c.higher), side.final(), side.diagnosis.cost.total
        row: list[Any] = [side.key, side.name, "yes" if side.key in c.choice.keep else "no"]
        row += [None if (v := d.values[index]) is None else v.value for d in c.differences]
        row += [p.cells[index].value for p in c.points]
        row += [best and best.value, best and best.step, final and final.value,
                final and final.last]  # fmt: skip
        for m in held:
            both = side.held_out(m)
            row += [None] * 3 if both is None else [both[0].value, both[1].value, both[1].step]
        row += [side.last_step, side.trained, len(side.grave), result(side)]
        row += [total.steps, total.tokens, total.gpu_hours, side.diagnosis.cost.goodput]
        writer.writerow([_field(value) for value in row])
    return out.getvalue()


def _field(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.10g}" if isinstance(value, float) else str(value)
