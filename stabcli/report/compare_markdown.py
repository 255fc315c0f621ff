"""A comparison as Markdown, for a review or a pull request."""

from __future__ import annotations

from stabcli.comparison import Comparison
from stabcli.report._compare_rows import grounds, keep, pair, pairs_shown, table
from stabcli.report._escaping import code, prose


def compare_markdown(c: Comparison) -> str:
    """Write the run to keep, the table, and what it rests on."""
    head = ["", *(f"{s.key} {code(s.name, cell=True)}" for s in c.sides)]
    out = [f"**Keep** {prose(keep(c))}", ""]
    out += [f"- not {key}: {prose(why)}" for key, why in c.choice.unfit]
    out += [f"- {prose(why)}" for why in c.choice.why]
    out += ["", f"| {' | '.join(head)} |", f"| {' | '.join(['---'] * len(head))} |"]
    for row in table(c):
        out.append(f"| {' | '.join([prose(row.name), *map(prose, row.cells)])} |")
    out.append("")
    out += [f"- {prose(pair(p))}" for p in pairs_shown(c)]
    if c.shared:
        out.append(f"- the same in all: {prose(', '.join(c.shared))}")
    out += [f"- {prose(note)}" for note in (*c.notes, *grounds(c))]
    return "\n".join(out) + "\n"
