"""A replay for a person at a terminal: the culprits first, then what it rests on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from stabcli.report import Screen, _replay, _words
from stabcli.report._page import Page
from stabcli.report._replay import Account
from stabcli.units import printable

BARS = "▁▂▃▄▅▆▇█"
ASCII_BARS = ".:-=+*#@"
PICTURES = 2
"""Sequences that are drawn."""


def replay_console(account: Account, screen: Screen) -> str:
    """Write the whole replay."""
    page = Page(screen)
    page.line(Text(_words.short(account["checkpoint"]["path"], screen.width), style="bold"))
    page.entries(_replay.header(account))
    for verdict in account["verdicts"]:
        page.line("")
        _tell(page, verdict)
    if account["steps"]:
        page.line("")
        page.entries(_steps(account["steps"]))
    rows = _replay.skip(account)
    if rows:
        page.line("")
        page.line(Text("leave out", style="bold"))
        page.entries(rows)
    return page.text()


def _tell(page: Page, verdict: Account) -> None:
    grave = verdict["kind"] in _replay.GRAVE
    style = (
        "bold red" if grave else "bold green" if verdict["kind"] == "no-fault" else "bold yellow"
    )
    text = Text(f"{verdict['kind'].upper()}  ", style=style)
    page.line(text.append(_replay.title(verdict), style="not bold default"))
    rows: list[tuple[str, str]] = [("batch", _replay.batch(verdict))]
    rows += [("note", printable(note)) for note in verdict["notes"]]
    culprits = verdict["culprits"]
    for i, culprit in enumerate(culprits[: _replay.CULPRITS]):
        label = "" if i else "culprits" if grave else "odd"
        rows.append((label, f"{_replay.name(culprit, verdict)}: {_replay.told(culprit)}"))
    if len(culprits) > _replay.CULPRITS:
        rows.append(("", f"and {len(culprits) - _replay.CULPRITS} more: see --format json"))
    page.entries(rows)
    for picture in verdict["pictures"][:PICTURES]:
        page.line("")
        for line in draw(picture, page.screen):
            page.line(line)
    if verdict["pictures"]:
        page.line("")
    confidence = [("confidence", verdict["confidence"])]
    page.entries([*confidence, *_replay.why(verdict), ("spent", _replay.cost(verdict))])


def draw(picture: Account, screen: Screen) -> list[str]:
    """Draw the loss and the gradient share of the tokens of a sequence, culprits marked below."""
    bars = ASCII_BARS if screen.ascii_only else BARS
    width = max(16, screen.width - 12)
    positions = len(picture["tokens"])
    sample = picture["sample_id"]
    which = "" if sample is None else f", sample {_words.short(sample)}"
    cells = min(width, positions)
    lines = [f"sequence {picture['sequence']}{which}, {positions:,} positions"]
    for label, values in (("loss", picture["loss"]), ("gradient", picture["share"])):
        if values is not None:
            known = [_replay.real(v) for v in values]
            lines.append(f"{label:<12}{_bars(known, cells, bars)}")
    marked = set(picture["marked"])
    edges = [i * positions // cells for i in range(cells + 1)]
    row = "".join(
        "^" if any(t in marked for t in range(edges[i], max(edges[i + 1], edges[i] + 1))) else " "
        for i in range(cells)
    )
    lines.append(f"{'culprits':<12}{row}".rstrip())
    return lines


def _bars(values: Sequence[float | None], cells: int, bars: str) -> str:
    """The largest value under each cell as a bar; what is not finite as ``!``."""
    edges = [i * len(values) // cells for i in range(cells + 1)]
    parts = [values[edges[i] : max(edges[i + 1], edges[i] + 1)] for i in range(cells)]
    finite = [v for v in values if v is not None and math.isfinite(v)]
    top = max(finite, default=0.0)
    out = []
    for part in parts:
        if any(v is not None and not math.isfinite(v) for v in part):
            out.append("!")
            continue
        highest = max((v for v in part if v is not None), default=0.0)
        level = 0 if top <= 0 else round(max(0.0, highest) / top * (len(bars) - 1))
        out.append(bars[level])
    return "".join(out)


def _steps(steps: Sequence[Any]) -> list[tuple[str, str]]:
    """The damage that each step of a window does to clean batches."""
    rows = []
    for i, s in enumerate(steps):
        mark = "  <- did the damage" if s["guilty"] else ""
        if s["out_of_band"] and not any(each["guilty"] for each in steps):
            mark = "  <- stands out, its damage does not"
        rows.append(
            ("damage" if not i else "", (f"step {s['step']}: loss of clean batches"
             f" {_replay.real(s['damage']) or 0.0:+.4f} nats,"
             f" in the end {_replay.real(s['lasting_damage']) or 0.0:+.4f}{mark}"))
        )  # fmt: skip
    if steps and not any(s["guilty"] for s in steps):
        rows.append(("", "no step did damage that can be told from what the others do"))
    return rows
