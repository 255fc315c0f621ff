"""Sniffing: whose log a file is. All grammars are compared, so that exactly one can claim it."""

from __future__ import annotations

import codecs
import re
from functools import lru_cache
from pathlib import Path

from stabcli.sources import Source
from stabcli.textlog.grammar import GRAMMARS, Grammar
from stabcli.textlog.grids import rows_in
from stabcli.textlog.hygiene import scrubbed, segments
from stabcli.textlog.lines import Parser
from stabcli.textlog.rows import KIND

_LINES = 2000
"""Lines looked at in each of the places."""
_PLACE = 1 << 17
"""Bytes looked at in each of the places: begin, end, and two between."""
_BINARY = (b"PAR1", b":W&B", b"SQLite format 3", b"PK\x03\x04")
_NULS = re.compile(rb"\0{16,}")
"""What a crash leaves of lines that were never written."""
_MOST_NULS = 0.6
"""Share of the other bytes up to which they may be NUL: in UTF-16 without its mark half of them."""
_TABLES = "@tables"
"""Stands for the name of a grammar where there is none, but tables."""
_FEW = 3
"""Lines that fit a grammar, up to which a table of more rows is what a log is read by."""
_OBJECT = re.compile(r"\s*[{\[]\s*[\"{\[\]}]")
"""How a line of JSON begins; such logs have readers of their own."""


def claims(source: Source, grammar: Grammar) -> bool:
    """Say whether a source is a text log, and fits this grammar better than every other."""
    return _is_text(source) and _of(source) == grammar.name


def holds_tables(source: Source) -> bool:
    """Say whether a source is text with tables of training, and no log of a framework."""
    return _is_text(source) and _of(source) == _TABLES


def _of(source: Source) -> str | None:
    status = source.path.stat()
    return _best(source.path, status.st_size, status.st_mtime_ns, tuple(GRAMMARS))


def _is_text(source: Source) -> bool:
    """Say whether a source is text, and no JSON, which has readers of its own."""
    if source.is_folder:
        return False
    head = source.head
    if head.startswith(_BINARY) or b"brain.Event:" in head[:64]:
        return False
    wide = head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    filled = _NULS.sub(b"", head)
    if not wide and (filled.count(0) > _MOST_NULS * len(filled) or not filled):
        return False
    return _OBJECT.match(head[:200].decode("utf-8-sig", "replace")) is None


@lru_cache(maxsize=64)
def _best(path: Path, size: int, changed: int, names: tuple[str, ...]) -> str | None:  # noqa: ARG001 - the key
    """Return the name of the grammar that fits a file best.

    A framework's own log goes before lines that stand in many logs, and these before a guess; a
    few lines that end a training do not make a log of a table of it.
    """
    lines = sample_lines(path)
    text = "\n".join(lines)
    scores: list[tuple[int, int, str]] = []
    for name in names:
        grammar = GRAMMARS[name]
        marked = any(line.mark in text for line in grammar.lines if line.main)
        fitting = _fitting(grammar, lines) if marked else 0
        if fitting:
            scores.append((grammar.tier, -fitting, name))
    best = min(scores) if scores else None
    if best is None or -best[1] <= _FEW:
        few = 0 if best is None else -best[1]
        if rows_in(lines) > few:
            return _TABLES
    return best[2] if best else None


def _fitting(grammar: Grammar, lines: list[str]) -> int:
    """Count the lines that a grammar reads as steps."""
    parser = Parser(grammar)
    marks = tuple(line.mark for line in grammar.lines if line.main)
    counts = [0] * len(grammar.lines)
    filled = 0
    for text in lines:
        filled += bool(text.strip())
        if any(mark in text for mark in marks):
            for row in parser.parse(text):
                counts[int(row[KIND])] += 1
    return sum(
        count
        for line, count in zip(grammar.lines, counts, strict=True)
        if line.main and count >= line.share * filled
    )


def sample_lines(path: Path) -> list[str]:
    """Return lines of a file from its begin, its end and between, without colours.

    Logs may begin with a hundred kilobytes of source code, and end with a report.
    """
    size = path.stat().st_size
    places = sorted({0, size // 3, 2 * size // 3, max(0, size - _PLACE)})
    lines: list[str] = []
    read = 0
    with path.open("rb") as file:
        wide = file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        for place in places:
            start = max(place, read)
            file.seek(start)
            data = file.read(_PLACE)
            read = file.tell()
            if wide:
                file.seek(0)
                data = file.read(_PLACE).decode("utf-16", "replace").encode()
            found = scrubbed(data).split(b"\n")
            if start and not wide:
                found = found[1:]
            kept = found[:_LINES] if start < size - _PLACE else found[-_LINES:]
            lines += [text for line in kept for text in segments(line)]
            if wide:
                break
    return lines
