"""Command ``rules``."""

from __future__ import annotations

from stabcli.cli._output import put


def rules() -> int:
    """List the rules, preset by preset."""
    from stabcli.presets import PRESETS
    from stabcli.rules import rules as registry

    known = list(registry)
    width = max(len(r.name) for r in known)
    parts = []
    for preset, said in PRESETS.items():
        lines = [f"{r.name:<{width}}  {r.summary}" for r in known if preset in r.presets]
        parts.append("\n".join([f"{preset}: {said}", *lines]))
    put("\n\n".join(parts))
    return 0
