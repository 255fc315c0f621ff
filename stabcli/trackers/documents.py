"""Documents: files that are one JSON value, of a bounded size."""

from __future__ import annotations

import json
from typing import Any

from stabcli.errors import LogError
from stabcli.sources import Source

LARGEST = 1 << 30
"""Bytes of a document, beyond which it would fill the memory."""


def document(source: Source) -> Any:
    """Return the JSON value that a file is.

    Raises:
        LogError: It is a folder, too large, cut short, or no JSON.
    """
    if source.is_folder:
        raise LogError(f"{source.shown}: a folder: give the JSON file in it")
    size = source.path.stat().st_size
    if size > LARGEST:
        raise LogError(f"{source.shown}: {size:,} bytes of JSON in one piece: export less of it")
    try:
        return json.loads(source.path.read_bytes().decode("utf-8-sig", "replace"))
    except RecursionError:
        raise LogError(f"{source.shown}: nested too deep: check the file") from None
    except ValueError as error:
        raise LogError(
            f"{source.shown}: no whole JSON: {error}: it was cut short; export it again"
        ) from None


def loads(data: bytes | str) -> Any:
    """Return a JSON value; None where the text is none."""
    try:
        held = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
        return json.loads(held)
    except (ValueError, RecursionError):
        return None
