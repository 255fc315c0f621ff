"""Markup: HTML put together from elements, so that no text of a log can become markup.

Whatever is not ``Markup`` already is text: control characters in it are shown as escapes and
everything that HTML gives a meaning is quoted. There is no other way into a page.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from stabcli.units import printable

VOID = frozenset({"br", "meta", "rect", "path", "line", "circle"})
"""Elements without an end tag of their own; those of SVG are written ``<rect/>``."""
SHAPES = VOID - {"br", "meta"}
BLOCKS = frozenset(
    {"article", "dd", "details", "div", "dl", "dt", "figcaption", "figure", "footer", "h1", "h2"}
    | {"h3", "h4", "header", "li", "main", "meta", "nav", "ol", "p", "pre", "section", "summary"}
    | {"table", "tbody", "td", "th", "thead", "title", "tr", "ul"}
)
"""Elements after which a line ends, so that the page can be read and compared."""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child: TypeAlias = "str | Markup | Iterable[Child] | None"


def text(value: str) -> Markup:
    """Return text as HTML that shows exactly it."""
    return Markup(html.escape(printable(value), quote=True))


def el(tag: str, *children: Child, **attributes: Any) -> Markup:
    """Return an element.

    Args:
        tag: Its name.
        children: Markup, or text to quote; None is left out.
        attributes: ``class_`` is written ``class``, ``aria_label`` ``aria-label``; one that is
            None or False is left out, one that is True stands without a value.
    """
    head = tag + "".join(_attribute(name, value) for name, value in attributes.items())
    if tag in VOID:
        return Markup(f"<{head}{'/' if tag in SHAPES else ''}>")
    inner = "".join(_flat(children))
    return Markup(f"<{head}>{inner}</{tag}>" + ("\n" if tag in BLOCKS else ""))


def join(*children: Child) -> Markup:
    """Return children one after the other, without an element around them."""
    return Markup("".join(_flat(children)))


def _attribute(name: str, value: Any) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{text(str(value))}"'


def _flat(children: Iterable[Child]) -> Iterable[str]:
    for child in children:
        if isinstance(child, Markup):
            yield child
        elif isinstance(child, str):
            yield text(child)
        elif child is not None:
            yield from _flat(child)


def prose(said: str) -> Markup:
    """Return text in which ``double`` or `single` backticks mark code."""
    parts = re.split(r"``(.+?)``|`(.+?)`", said)
    out: list[Child] = []
    for index in range(0, len(parts), 3):
        out.append(parts[index])
        code = [p for p in parts[index + 1 : index + 3] if p]
        out += [el("code", c) for c in code]
    return join(*out)


def embedded(data: Any) -> Markup:
    """Return data as JSON that may stand inside a script element.

    No ``<`` is left in it, so that neither an end tag nor a comment can begin there.
    """
    said = json.dumps(data, separators=(",", ":"), allow_nan=False)  # ASCII only
    for mark in "<>&":
        said = said.replace(mark, f"\\u{ord(mark):04x}")
    return Markup(said)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table."""

    cells: Sequence[Child]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Attributes of the row."""


def table(
    caption: str,
    head: Sequence[str],
    rows: Iterable[Row],
    *,
    name: int = 0,
    class_: str | None = None,
) -> Markup:
    """Return a table. Where the screen is too narrow for it, each cell brings its own label.

    Args:
        caption: What it shows.
        head: The columns.
        rows: The rows.
        name: Column of the cell that names its row.
        class_: Class of the table.
    """
    body = []
    for row in rows:
        cells = [
            el("th", cell, scope="row") if at == name else el("td", cell, data_label=label)
            for at, (label, cell) in enumerate(zip(head, row.cells, strict=True))
        ]
        body.append(el("tr", cells, **row.attributes))
    return el(
        "div",
        el(
            "table",
            el("caption", caption),
            el("thead", el("tr", [el("th", h, scope="col") for h in head])),
            el("tbody", body),
            class_=class_,
        ),
        class_="scroll",
        role="group",
        aria_label=caption,
        tabindex="0",
    )
