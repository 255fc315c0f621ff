"""A bill as Markdown, for a review or a pull request."""

from __future__ import annotations

from collections.abc import Sequence

from stabcli.bill import Bill
from stabcli.report import _words
from stabcli.report.cost_console import facts_of, remedies
from stabcli.report.cost_tables import By, Line, lines
from stabcli.units import count, number, percent, printable


def cost_markdown(bills: Sequence[Bill], by: By) -> str:
    """Write the table that was asked for, and what it rests on."""
    out = [*_table(lines(bills, by), several=len(bills) > 1)]
    for b in bills:
        name = _escaped(_words.short(b.diagnosis.run.name))
        out += ["", f"**{name}**", ""]
        out += [f"- {_escaped(label)}: {_escaped(text)}" for label, text in facts_of(b)]
        out += [f"- {_escaped(label)}: {_escaped(text)}" for label, text in remedies(b)]
        out += [f"- {_escaped(line)}" for line in b.diagnosis.cost.assumptions]
    return "\n".join(out) + "\n"


def _table(rows: Sequence[Line], *, several: bool) -> list[str]:
    money = any(line.cost.usd is not None for line in rows)
    head = ["run"] * several + ["", "steps", "tokens", "GPU-hours"] + ["USD"] * money + ["share"]
    out = ["| " + " | ".join(head) + " |", "|" + "|".join(["---"] * len(head)) + "|"]
    for line in rows:
        cost = line.cost
        cells = [_escaped(line.run)] * several + [
            _escaped(line.name),
            f"{cost.steps:,}",
            "unknown" if cost.tokens is None else count(cost.tokens),
            "unknown" if cost.gpu_hours is None else number(cost.gpu_hours),
        ]
        if money:
            cells.append("unknown" if cost.usd is None else f"{cost.usd:,.0f}")
        cells.append("unknown" if line.share is None else percent(line.share))
        out.append("| " + " | ".join(cells) + " |")
    return out


def _escaped(text: str) -> str:
    """Return text that Markdown shows as it is."""
    shown = printable(text)
    for mark in "\\`*_|<>[]":
        shown = shown.replace(mark, "\\" + mark)
    return shown
