"""Command ``rules``."""

from __future__ import annotations

from stabcli.cli._output import put


def rules() -> int:
    """List the rules."""
    from stabcli.rules import rules as registry

    width = max(len(r.name) for r in registry)
    put("\n".join(f"{r.name:<{width}}  {r.summary}" for r in registry))
    return 0
