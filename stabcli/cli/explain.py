"""Command ``explain``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stabcli.cli._output import put
from stabcli.errors import SettingError

if TYPE_CHECKING:
    from stabcli.rules import Rule


def explain(
    name: Annotated[
        str, typer.Argument(help="A rule, technique, format, metric or class of cost: loss-spike.")
    ],
) -> int:
    """Explain a rule, a technique, a format, a metric or a class of cost."""
    from stabcli.cost import MEANING
    from stabcli.metrics import METRICS, resolve
    from stabcli.readers import readers
    from stabcli.rules import rules
    from stabcli.settings import suggestion
    from stabcli.techniques import techniques

    pages: dict[str, str] = {c: f"a class of the bill: {meaning}" for c, meaning in MEANING.items()}
    pages |= {m.name: f"{m.meaning}, in {m.unit}" for m in METRICS.values()}
    pages |= {t.name: t.page for t in techniques}
    pages |= {r.name: r.page for r in readers}
    pages |= {r.name: f"{_facts(r)}\n\n{r.page}" for r in rules}
    meant = resolve([name])
    if name not in pages and meant:
        (metric,) = meant
        put(f"{name}: a name of {metric}\n\n{pages[metric]}")
        return 0
    if name not in pages:
        raise SettingError(
            f"explain {name}: nothing of that name: {suggestion(name, pages, see=_LISTED)}"
        )
    put(f"{name}\n\n{pages[name]}")
    return 0


_LISTED = "see stabcli rules, stabcli formats, or the techniques that stabcli audit LOG names"


def _facts(rule: Rule) -> str:
    """Say what a rule's page does not repeat: presets, needs, default settings."""
    defaults = "\n".join(f"  --set {rule.name}.{k}={v}" for k, v in rule.settings.items())
    lines = [
        f"preset    {', '.join(rule.presets)}",
        f"needs     {', '.join(rule.needs) or 'any column'}",
        f"since     {rule.since}",
    ]
    return "\n".join(lines) + (f"\ndefaults\n{defaults}" if defaults else "")
