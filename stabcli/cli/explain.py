"""Command ``explain``."""

from __future__ import annotations

from typing import Annotated

import typer

from stabcli.cli._output import put
from stabcli.errors import SettingError


def explain(
    name: Annotated[str, typer.Argument(help="A rule, a format or a metric, e.g. loss-spike.")],
) -> int:
    """Explain a rule, a format or a metric."""
    import inspect

    from stabcli.metrics import METRICS
    from stabcli.readers import readers
    from stabcli.rules import rules
    from stabcli.settings import suggestion

    pages = {m.name: f"{m.meaning}, in {m.unit}" for m in METRICS.values()}
    pages |= {r.name: inspect.getdoc(r.read) or "" for r in readers}
    pages |= {r.name: r.page for r in rules}
    if name not in pages:
        raise SettingError(f"explain {name}: nothing of that name: {suggestion(name, pages)}")
    put(f"{name}\n\n{pages[name]}")
    return 0
