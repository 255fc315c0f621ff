"""Sniffing: whether a source holds JSON objects that can be rows of a log."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from stabcli.metrics import resolve
from stabcli.ndjson.chunks import LONGEST_LINE
from stabcli.ndjson.lines import Value, flatten
from stabcli.ndjson.reading import decoded
from stabcli.sources import HEAD_BYTES, Source

_FURTHER = 4 << 20
"""Bytes of a first line, a configuration for example, that is longer than the head."""
_AMONG_TEXT = 5
"""Objects with a step that make a log of a file whose other lines are stray text."""
_OTHERS = ("log_history", "traceEvents")
"""Keys of objects that hold a whole log or something else, and are not a row of one."""
_SUMMARY = "wandb-summary.json"
_ARCHIVE = b"PK\x03\x04"
"""Magic number of a zip, in which files may stand unpacked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sniffed:
    """What the beginning of a file holds."""

    kind: Literal["lines", "array"]
    """One object a line, or one array of all."""
    rows: list[dict[str, Value]]
    """The first objects, flat."""

    def counts(self, name: str) -> bool:
        """Say whether most of the objects have ``name``."""
        return 2 * sum(name in row for row in self.rows) > len(self.rows)


def sniff(source: Source) -> Sniffed | None:
    """Look at the beginning of a file; None where it is no log of JSON objects.

    Most of its lines must be whole objects, some with a number in them, or several of them must
    have a step. An object alone in its file must have one, or it is a configuration or a summary.
    """
    if source.is_folder or source.name == _SUMMARY or source.head.startswith(_ARCHIVE):
        return None
    text = decoded(source.head).lstrip("\ufeff \t\r\n\0")
    if text.startswith("["):
        found = _first_of_array(text)
        kind: Literal["lines", "array"] = "array"
    elif "{" in text:
        found = _objects(source, text)
        kind = "lines"
    else:
        return None
    if not found or any(key in row for row in found for key in _OTHERS):
        return None
    rows = [flatten(row) for row in found]
    numbers = any(isinstance(v, (int, float)) for row in rows for v in row.values())
    if not numbers and not any(_has_step(row) for row in rows):
        return None
    if len(rows) == 1 and len(source.head) < HEAD_BYTES and not _has_step(rows[0]):
        return None
    return Sniffed(kind=kind, rows=rows)


def _first_of_array(text: str) -> list[dict[str, Any]]:
    start = text.find("{")
    if start < 0 or text[1:start].strip():
        return []
    try:
        value, _ = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return []
    return [value]


def _objects(source: Source, text: str) -> list[dict[str, Any]]:
    """Return the objects of the first lines; none where they are not what the file is about."""
    lines = text.split("\n")
    if len(source.head) >= HEAD_BYTES and len(lines) == 1:
        lines = _beyond_first(source, text)
    if len(lines) > 1 and _object(lines[-1]) is None:
        lines.pop()  # cut short by the end of the head or of the file
    filled = [line for line in lines if line.strip("\0 \t\r")]
    found = [value for line in filled if (value := _object(line)) is not None]
    if 2 * len(found) > len(filled):
        return found
    steps = [value for value in found if _has_step(flatten(value))]
    return steps if len(steps) >= _AMONG_TEXT else []


def _beyond_first(source: Source, text: str) -> list[str]:
    """Return the first line, where it is not too long to be parsed here, and those below it."""
    with source.path.open("rb") as file:
        first = file.readline(_FURTHER)
        if first.endswith(b"\n") or len(first) < _FURTHER:
            return decoded(first + file.read(HEAD_BYTES)).split("\n")
        read = len(first)
        while text.startswith("{") and read < LONGEST_LINE:
            part = file.readline(_FURTHER)
            read += len(part)
            if part.endswith(b"\n"):
                return decoded(file.read(HEAD_BYTES)).split("\n")
            if not part:
                break
        return [text]


def _object(line: str) -> dict[str, Any] | None:
    line = line.strip("\0 \t\r")
    if not line.startswith("{"):
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _has_step(row: dict[str, Value]) -> bool:
    return "step" in resolve(row)
