"""Command ``formats``."""

from __future__ import annotations

from stabcli.cli._output import put


def formats() -> int:
    """List the formats that can be read."""
    from stabcli.readers import readers

    width = max((len(r.name) for r in readers), default=0)
    put("\n".join(f"{r.name:<{width}}  {r.writes}" for r in readers))
    return 0
