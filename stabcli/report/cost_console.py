"""A bill for a person: the waste first, then where each figure comes from, then what to do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from stabcli.bill import Bill
from stabcli.cost import Cost
from stabcli.policy import Outcome
from stabcli.report import Screen, _words
from stabcli.report._page import Page
from stabcli.report.cost_tables import By, Line, lines, voids
from stabcli.units import count, duration, number, percent, printable

Entry = tuple[str, str]
"""A label and a paragraph."""

SHOWN = 3
"""Warnings whose price is shown."""


def cost_console(bills: Sequence[Bill], by: By, screen: Screen) -> str:
    """Write the bills of one or several runs."""
    page = _Page(screen)
    if by == "run":
        page.table(lines(bills, by), by)
    for index, b in enumerate(bills):
        if index or by == "run":
            page.line("")
        page.line(_heading(b))
        if by != "run":
            page.table(lines([b], by), by)
        page.entries(_shown(facts_of(b)), label=12)
        page.entries(_shown(remedies(b)), label=12)
        page.entries(_shown(_assumptions(b)), label=12)
    if len(bills) > 1 and by != "run":
        page.line("")
        page.table(lines(bills, "run"), "run")
    return page.text()


class _Page(Page):
    ascii_ellipsis = "..."

    def table(self, rows: Sequence[Line], by: By) -> None:
        """Add a table of costs."""
        money = any(line.cost.usd is not None for line in rows)
        table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="dim")
        table.add_column("run" if by == "run" else by, overflow="fold")
        for name in ("steps", "tokens", "GPU-hours", *(["USD"] if money else []), "share"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("", style="dim", overflow="fold")
        for line in rows:
            cost = line.cost
            cells = [
                f"{cost.steps:,}",
                "unknown" if cost.tokens is None else count(cost.tokens),
                "unknown" if cost.gpu_hours is None else number(cost.gpu_hours),
                *([_usd(cost.usd)] if money else []),
                "unknown" if line.share is None else percent(line.share),
            ]
            name = printable(str(line.run or line.name) if by == "run" else line.name)
            style = "bold" if line.name in ("all", "wasted", "all runs") else ""
            table.add_row(Text(name), *cells, Text(printable(line.remark)), style=style)
        self._console.print(table)


def _shown(rows: Iterable[Entry]) -> list[Entry]:
    return [(label, printable(text)) for label, text in rows]


def _usd(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f}"


def _heading(b: Bill) -> Text:
    run, cost = b.diagnosis.run, b.diagnosis.cost
    first = min(a.first_step for a in run.attempts)
    last = max(a.last_step for a in run.attempts)
    text = Text(_words.short(run.source, 60), style="bold")
    text.append(f"  {run.reader} · steps {first:,}..{last:,}", style="not bold")
    if cost.goodput is not None:
        wasted = _words.price(cost.total) or "nothing"
        text.append(f"\nwasted: {wasted}; goodput {percent(cost.goodput)}")
        if cost.unseen is not None:
            text.append(f" of what the log tells of; not seen: {_words.price(cost.unseen)}")
    return text


def facts_of(b: Bill) -> list[Entry]:
    """Say where the figures come from, and what else was worked out from them."""
    cost, fit = b.diagnosis.cost, b.diagnosis.cost.efficiency
    names = {"tokens": "tokens", "gpu_hours": "GPU-hours"}
    rows = [(names[name], f"from {source}") for name, source in cost.sources if source != "unknown"]
    if fit.doubt:
        rows.append(("MFU", fit.doubt))
    if fit.mfu is not None:
        said = f"{percent(fit.mfu)} ({fit.source})"
        if fit.logged is not None:
            said += f"; the log says {percent(fit.logged)}"
        rows.append(("MFU", said))
    elif fit.logged is not None:
        rows.append(("" if fit.doubt else "MFU", f"{percent(fit.logged)} as logged"))
    if fit.shortfall_gpu_hours is not None and fit.target is not None:
        short = f"{number(fit.shortfall_gpu_hours)} GPU-hours less at {percent(fit.target)} MFU"
        rows.append(("", f"{short}: beside the classes, not in them"))
    hours, wasted = cost.all.gpu_hours, cost.total.gpu_hours
    if b.power is not None and hours is not None and wasted is not None:
        said = (
            f"{number(b.power.kilowatt_hours(hours))} kWh,"
            f" {number(b.power.kilowatt_hours(wasted))} kWh of it wasted"
        )
        carbon, lost = b.power.kilograms(hours), b.power.kilograms(wasted)
        if carbon is not None and lost is not None:
            said += f"; {number(carbon)} kg CO2e, {number(lost)} kg of it wasted"
        rows.append(("energy", said))
    return rows


def remedies(b: Bill) -> list[Entry]:
    """Say what would have saved the waste, and the ways back."""
    rows: list[Entry] = []
    for o in b.what_if:
        rows.append(("what if", f"{o.policy.name}: {_outcome(o)}"))
    told = [o for o in b.breakers if o.trips or o.why_not == ""]
    tripped = [o for o in told if o.trips]
    for o in tripped:
        rows.append(("breaker", f"{o.policy.name} ({o.policy.action}): {_outcome(o)}"))
    silent = [o.policy.name for o in told if not o.trips]
    blind = [o.policy.name for o in b.breakers if o.why_not and not o.trips]
    if silent:
        rows.append(("", f"would not have tripped: {', '.join(silent)}"))
    if blind:
        rows.append(("", f"could not look: {', '.join(blind)}"))
    rows += _at_stake(b)
    rows += _saving(b)
    rows += _ways_back(b)
    return rows


def _at_stake(b: Bill) -> list[Entry]:
    """Price the warnings that never recovered: what they cost if they were real."""
    d = b.diagnosis
    found = [(i, c) for i, c in zip(d.incidents, d.cost.at_stake, strict=True) if c.steps]
    rows = []
    for i, cost in sorted(found, key=lambda pair: -pair[1].steps)[:SHOWN]:
        what = f"{i.rule} ({i.severity}) from step {i.first:,}: {_words.price(cost)}"
        rows.append(("at stake", f"{what} if it is real; not counted as wasted"))
    return rows


def _outcome(o: Outcome) -> str:
    """Say what a policy would have made of the run."""
    if o.why_not and not o.trips:
        return f"could not look: {o.why_not}"
    if not o.trips and o.policy.stop_on:
        return "would not have stopped the run"
    parts = []
    first = o.trips[:3]
    if first:
        at = _words.places([t.step for t in first])
        parts.append(f"stops at step {at}" if o.policy.kind != "look" else f"trips at step {at}")
        if len(o.trips) > len(first):
            parts[-1] += f" and {len(o.trips) - len(first):,} times more"
    hit = [i for i in o.incidents if i.trip is not None and i.at_most is not None]
    if hit and o.at_most is not None and o.saved is not None:
        verb = "saves" if o.saved.steps >= 0 else "costs"
        parts.append(f"at most {_words.price(o.at_most)} instead of {_words.price(o.actual)}")
        parts.append(f"{verb} {_words.price(_size(o.saved))}")
    elif [i for i in o.incidents if i.trip is not None] and o.policy.kind == "roll-back":
        parts.append("its bound is unknown: add checkpoint-every=N")
    if o.policy.kind == "stop" and o.after_first is not None:
        parts.append(f"all that came after: {_words.price(o.after_first)}")
    if o.trips and o.policy.kind != "look":
        n = len(o.needless)
        parts.append(f"{n or 'no'} needless stop{'' if n == 1 else 's'}")
    if not o.policy.stop_on:
        parts.append("nobody stops the run: add stop-on=RULE")
    return "; ".join(parts)


def _size(saved: Cost) -> Cost:
    """Return a saving without its sign."""

    def size(x: float | None) -> float | None:
        return None if x is None else abs(x)

    return Cost(
        steps=abs(saved.steps),
        tokens=size(saved.tokens),
        gpu_hours=size(saved.gpu_hours),
        usd=size(saved.usd),
    )


def _saving(b: Bill) -> list[Entry]:
    """Say how often to save checkpoints."""
    c = b.checkpointing
    if not c.failures:
        return []
    often = f"{_words.plural(c.failures, 'failure')}, one in {c.steps_between:,.0f} steps"
    if c.best is None or c.save_seconds is None:
        return [("checkpoints", f"{often}; best interval: {_missing(b)}")]
    curve = ", ".join(f"{t:,}: {percent(x, 2)}" for t, x in c.curve)
    used = "" if c.used is None else f" (now {c.used:,})"
    save = f"{duration(c.save_seconds)} a save ({c.save_source})"
    best = f"best every {c.best:,} steps{used}: {often}, {save}"
    return [("checkpoints", f"{best}; expected loss by interval: {curve}")]


def _missing(b: Bill) -> str:
    c = b.checkpointing
    if c.save_seconds is None:
        return c.save_source
    return "unknown: the log has no clock"


def _ways_back(b: Bill) -> list[Entry]:
    """List the plans of the costliest incidents."""
    d = b.diagnosis
    order = sorted(
        (i for i, ways in enumerate(d.plans) if ways), key=lambda i: -d.cost.incidents[i].steps
    )
    rows: list[Entry] = []
    for index in order[:2]:
        for number_, plan in enumerate(d.plans[index]):
            label = f"step {d.incidents[index].first:,}" if number_ == 0 else "or"
            redo = _words.price(plan.redo)
            rows.append((label, plan.text + (f" To train again: {redo}." if redo else "")))
            if number_ == 0:
                rows += [("", line) for line in plan.recipe]
                rows += [("", f"If the weights are corrupt: {void}") for void in voids(b, index)]
    return rows


def _assumptions(b: Bill) -> list[Entry]:
    doubt = f"MFU: {b.diagnosis.cost.efficiency.doubt}"  # its own line has it
    found = [a for a in b.diagnosis.cost.assumptions if a != doubt]
    if b.power is not None:
        found.append(b.power.assumption)
    return [("assumed" if i == 0 else "", line) for i, line in enumerate(found)]
