"""A replay as JSON: the account as it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def replay_json(account: Mapping[str, Any]) -> str:
    """Write everything."""
    return json.dumps(account, indent=2, allow_nan=False)
