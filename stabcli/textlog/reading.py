"""Reading: from a text log to the rows of its runs and to what it says of itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from stabcli.assembly import LINE
from stabcli.ndjson.chunks import LONGEST_LINE, Chunk, chunks, positions
from stabcli.run import BadLines
from stabcli.textlog import numbers
from stabcli.textlog.grammar import Grammar
from stabcli.textlog.hygiene import scrubbed, segments
from stabcli.textlog.layout import Found, Layout, Learnt, learn
from stabcli.textlog.lines import Parser
from stabcli.textlog.rows import BAR, KIND, OF, RANK, Rows
from stabcli.textlog.sisters import Sisters
from stabcli.textlog.words import Words
from stabcli.textlog.words import learn as learn_words

BAD_SHOWN = 5
"""Bad lines kept with number and reason; the rest are only counted."""

CHUNK = 8 << 20
"""Bytes read at once."""

_PROBE = 1 << 16  # bytes read line by line to learn what the lines look like
_LONGEST = 1 << 18  # characters of a line that can be a logged step
_WORTH = 0.5  # share of the logged steps that a layout must catch to be kept
_TRIES = 16  # layouts learnt in one log before all is read line by line
_LOOKS = re.compile(
    r"(?i)\b(?:step|iter|iteration)[\s:=#\[]{0,4}\d+\b.{0,200}?\bloss[\s:=]{1,4}(?:[-+]?[\d.]|nan|inf)"
)
"""A line that looks like a logged step, whatever else it is."""
_KINDS = tuple(f"{KIND} {i}" for i in range(64))  # names of kinds of lines
_SAID = 1 << 14  # times that one thing is said in a log and kept
_BAR = re.compile(r"\d%\|[^|\r]*\|\s*(\d+)/(\d+)\s*\[")
"""A progress bar of tqdm: steps done, steps in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """All that a text log holds."""

    frame: pl.DataFrame
    """Rows in the order of the log: numbers by name, and reserved columns."""
    config: dict[str, list[tuple[str, int]]]
    """What banners say: name -> values, each with the line that says it."""
    starts: list[int]
    """Lines that (re)starts print."""
    ends: list[int]
    """Lines that the end of a training prints."""
    lines: int
    """Lines in all."""
    bad: BadLines
    """Lines that could not be used."""
    notes: list[str]
    """What had to be decided."""
    missing: list[tuple[int, str]] = field(default_factory=list)
    """Line and column of what a few lines lack that those like them hold."""


def read(path: Path, grammar: Grammar, *, size: int = CHUNK, longest: int = LONGEST_LINE) -> Log:
    """Read a log; what does not fit the grammar is passed by, what half fits is counted as bad.

    Args:
        path: The file; UTF-8 or, with a byte order mark, UTF-16.
        grammar: How its lines look.
        size: Bytes read at once.
        longest: Bytes of the longest line that is read.
    """
    reading = _Reading(grammar)
    for chunk in chunks(path, size=size, longest=longest, ends=True):
        if chunk.data:
            reading.add(chunk)
        else:
            reading.add_bad(chunk.first, f"longer than {longest >> 20} MB")
            reading.lines = chunk.first
    return reading.log()


@dataclass(slots=True)
class _Reading:
    """What has been read so far."""

    grammar: Grammar
    parser: Parser = field(init=False)
    rows: Rows = field(default_factory=Rows)
    config: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    lines: int = 0
    bad: int = 0
    first_bad: list[tuple[int, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    layouts: tuple[Layout | Words, ...] = ()
    """Ways to read the lines of one kind at once, the quickest first."""
    kind: int = 0
    share: float = 0.0
    """Of the lines that it was learnt from, those of this kind."""
    rank: int | None = None
    learnt: tuple[int, Learnt | str, int | None, tuple[str, ...]] | None = None
    """Of the last line that held one whole row: kind, what stood where, process, columns."""
    line: str = ""
    """That line."""
    columns: tuple[str, ...] = ()
    """Of the lines that the layout reads."""
    tries: int = 0
    bar: tuple[float, float] | None = None
    marks: re.Pattern[bytes] = field(init=False)
    sisters: Sisters = field(default_factory=Sisters)

    def __post_init__(self) -> None:
        grammar = self.grammar
        self.parser = Parser(grammar)
        words = [line.mark for line in grammar.lines] + [says.mark for says in grammar.says]
        words += [word for word in (grammar.starts, grammar.ends) if word]
        found = [re.escape(word.encode()) for word in dict.fromkeys(words)]
        if grammar.bars:
            found.append(rb"%\|")
        self.marks = re.compile(b"|".join(found))

    def add(self, chunk: Chunk) -> None:
        """Take in some lines."""
        data = scrubbed(chunk.data)
        if not data:  # nothing but the NUL bytes that a crash left
            self.lines = chunk.first
            return
        ends = chunk.ends
        if ends is None or data is not chunk.data:
            ends = positions(data, ord("\n"))
        if chunk.cut:
            ends = np.append(ends, len(data))
        begins = np.concatenate(([0], ends[:-1] + 1))
        self.lines = chunk.first + len(ends) - 1
        self._add(data, begins, ends, chunk)

    def _add(self, data: bytes, begins: np.ndarray, ends: np.ndarray, chunk: Chunk) -> None:
        learns = self.tries < _TRIES and len(data) > 4 * _PROBE
        if learns and not self.layouts:
            known = int(np.searchsorted(ends, _PROBE)) + 1
            self._one_by_one(data, begins[:known], ends[:known], chunk.first)
            self._learn()
            self.share = self._waiting() / known
            rest = int(begins[known]) if known < len(begins) else len(data)
            self.rows.close_chunk(None, chunk.first)
            data, begins, ends = data[rest:], begins[known:] - rest, ends[known:] - rest
            first = chunk.first + known
            chunk = Chunk(data=data, first=first, lines=len(ends), cut=chunk.cut)
            if not data:
                return
        whole = data if not chunk.cut else data[: int(begins[-1])]
        found = self._at_once(whole, len(ends) - chunk.cut)
        caught = 0 if found is None else len(found.at)
        if self.layouts and learns and caught < _WORTH * self.share * len(ends):
            self.layouts = ()
            self._add(data, begins, ends, chunk)  # and learn anew from the next lines
            return
        others = np.ones(len(ends), bool)
        if found is not None:
            others[found.at] = False
            self.sisters.count(self.columns, caught)
        slow = np.flatnonzero(others)
        self._one_by_one(data, begins[slow], ends[slow], chunk.first, slow, cut=chunk.cut)
        if self.layouts and caught < _WORTH * (caught + self._waiting()):
            self._learn()
        self.rows.close_chunk(found, chunk.first)

    def _waiting(self) -> int:
        """Count the rows of the kind that is read at once among those just read one by one."""
        return sum(row[KIND] == self.kind for row in self.rows.waiting)

    def _at_once(self, data: bytes, lines: int) -> Found | None:
        """Read lines in the first way that catches enough of them, or in the best."""
        best: Found | None = None
        for layout in self._ways():
            found = layout.read(data, lines)
            if found is not None and (best is None or len(found.at) > len(best.at)):
                best = found
                always = {KIND: self.kind, RANK: self.rank if isinstance(layout, Layout) else None}
                for column, value in always.items():
                    if value is not None:
                        one = pl.Series([float(value)])
                        best.columns[column] = one.new_from_index(0, lines)
            if best is not None and len(best.at) >= _WORTH * self.share * lines:
                break
        return best

    def _ways(self) -> Iterator[Layout | Words]:
        """Yield the ways known; the one by words is learnt once that by fields is not enough."""
        yield from self.layouts
        if len(self.layouts) == 1 and isinstance(self.layouts[0], Layout):
            self._use(learn_words(self.line, self._parse))
            yield from self.layouts[1:]

    def _learn(self) -> None:
        """Learn what lines look like from the last that was read one by one."""
        self.layouts = ()
        if self.learnt is None or self.tries >= _TRIES:
            return
        self.tries += 1
        kind, learnt, rank, self.columns = self.learnt
        separator = self.grammar.lines[kind].separator
        self.kind, self.rank = kind, rank
        by_fields = None
        if isinstance(learnt, Learnt) and separator is not None:
            by_fields = learn(learnt, separator)
        self.line = learnt.line if isinstance(learnt, Learnt) else learnt
        self._use(by_fields or learn_words(self.line, self._parse))

    def _use(self, layout: Layout | Words | None) -> None:
        self.layouts += (layout,) if layout is not None else ()

    def _parse(self, text: str) -> dict[str, float] | None:
        """Read a line that holds one row and tells of nothing else, for ``learn_words``."""
        if self.marks.search(text.encode()) is None or self._says(text):
            return None
        parser = Parser(self.grammar)
        rows = parser.parse(text)
        return rows[0] if len(rows) == 1 and not parser.wrong and not parser.commas else None

    def _says(self, text: str) -> bool:
        """Say whether a line may hold more than a row."""
        grammar = self.grammar
        words = [says.mark for says in grammar.says]
        words += [word for word in (grammar.starts, grammar.ends) if word]
        return any(word in text for word in words) or "%|" in text

    def _one_by_one(
        self,
        data: bytes,
        begins: np.ndarray,
        ends: np.ndarray,
        first: int,
        at: np.ndarray | None = None,
        *,
        cut: bool = False,
    ) -> None:
        """Read lines one by one; ``at`` says which of the chunk they are."""
        numbers = np.arange(len(ends)) if at is None else at
        search, sisters = self.marks.search, self.sisters
        last = len(ends) - 1
        maybe = sisters.maybe(data, begins, ends)
        places = zip(begins.tolist(), ends.tolist(), numbers.tolist(), strict=True)
        for i, (begin, end, number) in enumerate(places):
            torn = cut and i == last and end == len(data)
            if search(data, begin, end):
                columns, told = self._line(data[begin:end], first + number, torn=torn)
                if columns and not torn and not told:
                    sisters.read(columns, first + number, data, begin, end)
            elif maybe[i]:
                columns, told = (), False
            else:
                continue
            if not columns and not told and end > begin:
                found = sisters.unread(first + number, data, begin, end)
                if found:
                    self._unlike(found)

    def _unlike(self, lines: list[tuple[int, str]]) -> None:
        """Count lines that look like logged steps, but are none."""
        for number, text in lines:
            self.add_bad(number, f"looks like a logged step, but is not like others: {text[:60]!r}")

    def _line(self, raw: bytes, number: int, *, torn: bool) -> tuple[tuple[str, ...], bool]:
        """Read a line; return the columns it gave, and whether something was told of it."""
        before = self.bad
        parts = segments(raw)
        columns: tuple[str, ...] = ()
        for i, text in enumerate(parts):
            if len(text) > _LONGEST:
                self.add_bad(number, f"not read: {len(text):,} characters")
                continue
            if self.grammar.bars:
                self._bars(text)
            columns += self._text(text, number, torn=torn and i == len(parts) - 1)
        return columns, self.bad > before

    def _bars(self, text: str) -> None:
        """Remember the last progress bar; where the steps are known, only one of that many."""
        if "%|" in text:
            planned = self.config.get(self.grammar.planned)
            steps = numbers.number(planned[-1][0]) if planned else None
            for bar in _BAR.finditer(text):
                done, total = float(bar[1][:15]), float(bar[2][:15])
                if steps is None or total == steps:
                    self.bar = done, total

    def _text(self, text: str, number: int, *, torn: bool) -> tuple[str, ...]:
        if self.grammar.starts and self.grammar.starts in text:
            self.starts.append(number)
        if self.grammar.ends and self.grammar.ends in text:
            self.ends.append(number)
        self._configure(text, number)
        rows = self.parser.parse(text, torn=torn)
        columns: tuple[str, ...] = ()
        if rows:
            columns = (_KINDS[int(rows[0][KIND])], *rows[0])
            for row in rows[1:]:
                columns += tuple(row)
        for row in rows:
            row[LINE] = float(number)
            if self.bar is not None:
                row[BAR], row[OF] = self.bar
            self.rows.add(row)
        for wrong in self.parser.wrong:
            if wrong.column in self.rows.seen or wrong.damaged:
                self.add_bad(number, wrong.why)
        if torn:
            self.notes.append(f"the last line, {number:,}, has no end: it may be cut short")
        if rows:
            kind = int(rows[-1][KIND])
            rank = rows[-1].get(RANK)
            by_words = len(rows) == 1 and self.bar is None and not torn and not self.parser.wrong
            if self.parser.learnt is not None:
                rank = None if rank is None else int(rank)
                self.learnt = kind, self.parser.learnt, rank, columns
            elif by_words and self.grammar.lines[kind].separator is None:
                self.learnt = kind, text, None, columns
        elif _LOOKS.search(text) and not self.parser.wrong:
            self._unlike([(number, text)])
        return columns

    def _configure(self, text: str, number: int) -> None:
        for says in self.grammar.says:
            if says.mark not in text:
                continue
            for found in says.found(text):
                groups = {k: v for k, v in found.groupdict().items() if v is not None}
                if "key" in groups:
                    groups = {groups["key"].replace("-", "_"): groups.get("value", "")}
                for key, value in groups.items():
                    said = self.config.setdefault(key, [])
                    if len(said) < _SAID:
                        said.append((value.strip(), number))

    def add_bad(self, line: int, why: str) -> None:
        """Count a line that cannot be used."""
        self.bad += 1
        if len(self.first_bad) < BAD_SHOWN:
            self.first_bad.append((line, why))

    def log(self) -> Log:
        """Return all that was read."""
        for column, spelt in self.parser.commas.items():
            value = numbers.number(spelt)
            taken = f"commas in {column!r} that part no thousands are taken as decimal points"
            self.notes.append(f"{taken}: {spelt!r} is {value}")
        self._unlike(self.sisters.damaged())
        if self.sisters.unseen is not None:
            self.notes.append(self.sisters.unseen)
        return Log(
            frame=self.rows.frame(),
            config=self.config,
            starts=self.starts,
            ends=self.ends,
            lines=self.lines,
            bad=BadLines(count=self.bad, first=tuple(sorted(self.first_bad))),
            notes=self.notes,
            missing=list(self.sisters.missing()),
        )
