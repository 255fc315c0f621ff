"""The bill in the HTML report: where the time went as a picture, with the figures it stands for."""

from __future__ import annotations

from stabcli.cost import MEANING, Cost, CostReport
from stabcli.report import _words
from stabcli.report._html_markup import Child, Markup, Row, el, join, table
from stabcli.units import count, number, percent

LABELLED = 0.09
"""Share of the bar from which a class has its name in it."""


def section(report: CostReport, anchor: str) -> Markup:
    """Tell where tokens and GPU-hours went."""
    parts: list[Child] = [el("h3", "Cost", id=f"{anchor}-cost")]
    wasted = _words.price(report.total)
    whole = _words.price(report.all)
    if report.classes:
        said = f"Wasted: {wasted or 'nothing that shows'}" + (f" of {whole}." if whole else ".")
        if report.goodput is not None:
            seen = "" if report.unseen is None else " of what the log tells of"
            said += f" {part(report.goodput)}{seen} was productive."
        parts += [el("p", said), _bar(report), _table(report)]
    else:
        parts.append(el("p", "Nothing is known of what the run cost."))
    return join(*parts)


def _basis(report: CostReport) -> tuple[str, list[float]]:
    """Return what the picture measures in, and the size of each class: the best that is known."""
    costs = [c for _, c in report.classes]
    if report.all.gpu_hours:
        return "GPU time", [c.gpu_hours or 0.0 for c in costs]
    if report.all.tokens:
        return "tokens", [c.tokens or 0.0 for c in costs]
    return "steps", [float(c.steps) for c in costs]


def _shares(report: CostReport) -> tuple[str, list[float]]:
    unit, sizes = _basis(report)
    whole = sum(sizes) or 1.0
    return unit, [max(0.0, s) / whole for s in sizes]


def _bar(report: CostReport) -> Markup:
    unit, shares = _shares(report)
    names = [name for name, _ in report.classes]
    said = ", ".join(f"{n} {part(s)}" for n, s in zip(names, shares, strict=True))
    pieces = [
        el(
            "span",
            el("span", f"{name} {part(share)}") if share >= LABELLED else None,
            class_=f"piece {name}",
            style=f"flex-grow:{max(share, 0.0):.5f}",
            title=f"{name}: {part(share)}",
        )
        for name, share in zip(names, shares, strict=True)
        if share > 0
    ]
    label = f"Where the {unit} went: {said}"
    return el(
        "figure",
        el("div", pieces, class_="bar", role="img", aria_label=label),
        el("figcaption", f"Share of the {unit}; each row or gap of the log is in one class only."),
        class_="cost",
    )


def part(share: float) -> str:
    """Print a share that is neither nothing nor all as neither."""
    if 0 < share < 0.001:
        return "under 0.1 %"
    return "over 99.9 %" if 0.999 < share < 1 else percent(share)


def _table(report: CostReport) -> Markup:
    unit, shares = _shares(report)
    money = report.all.usd is not None
    rows = [
        _row(
            join(el("span", class_=f"swatch {name}"), name),
            MEANING[name],
            cost,
            part(share),
            money=money,
        )
        for (name, cost), share in zip(report.classes, shares, strict=True)
    ]
    rows.append(_row("all", "", report.all, percent(1.0), money=money, class_="total"))
    head = ["class", "steps", "tokens", "GPU-hours", *["USD"] * money, f"share of the {unit}"]
    return table("Cost by class", head, rows, class_="figures")


def _row(
    name: Child, meaning: str, cost: Cost, share: str, *, money: bool, class_: str | None = None
) -> Row:
    cells = [
        f"{cost.steps:,}",
        "unknown" if cost.tokens is None else count(cost.tokens),
        "unknown" if cost.gpu_hours is None else number(cost.gpu_hours),
    ]
    if money:
        cells.append("unknown" if cost.usd is None else f"{cost.usd:,.0f}")
    named: Child = [name, [" ", el("small", meaning)] if meaning else None]
    return Row([named, *cells, share], {"class_": class_})
