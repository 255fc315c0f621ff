"""Escaping: text from logs as Markdown, so that it is shown and not obeyed."""

from __future__ import annotations

import re

from stabcli.units import printable

_MARKS = re.compile(r"([\\`*_{}\[\]<>#&|~@!])")


def prose(text: str) -> str:
    """Return text that Markdown shows as it is."""
    return _MARKS.sub(r"\\\1", printable(text))


def code(text: str, *, cell: bool = False) -> str:
    """Return text as code, which neither links, mentions nor formats.

    Args:
        text: The text.
        cell: Whether it stands in a table, where a bar would end the cell even in code.
    """
    shown = printable(text).strip() or " "
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if shown.startswith("`") or shown.endswith("`") else ""
    if cell:
        shown = shown.replace("|", "\\|")
    return f"{fence}{pad}{shown}{pad}{fence}"
