"""Damaged logs of every reader: no crash, no hang, and no value lost without a word.

``STABCLI_MUTATIONS=10000`` tries so many damaged inputs a reader instead of a few, and
``STABCLI_SEED=2`` others. Each is made from its number and the seed alone, so that a failure names
all that is needed to see it again.
"""

import os
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import pytest

from stabcli.errors import StabError
from stabcli.readers import read_runs, readers
from stabcli.run import KEYS, Run
from stabcli.sources import open_source
from tests.samples import samples

TRIES = int(os.environ.get("STABCLI_MUTATIONS", "200"))
SEED = os.environ.get("STABCLI_SEED", "")
SECONDS = 10.0
"""CPU time above which a few kilobytes hang."""
ROWS = 16
"""Rows that the head of a log must give to stand for it."""
SMALLEST = 4096
SHOWN = 12
"""Failures that are told of."""
WORDS = (
    b"NaN",
    b"null",
    b"-inf",
    b"1e999",
    b"\r",
    b"\n",
    b"\0" * 9,
    b"\xff\xfe",
    b'"',
    b"{",
    b"[[",
)


@dataclass
class Sample:
    """A log that is small enough to be read thousands of times, in a folder of its own."""

    path: Path
    reader: str
    files: dict[Path, bytes] = field(default_factory=dict)

    def write(self, file: Path, data: bytes) -> None:
        """Replace one of its files; the others are as they were."""
        for path, whole in self.files.items():
            path.write_bytes(data if path == file else whole)


def reading(sample: Sample, *, name: str | None) -> tuple[list[Run], list[str]]:
    """Return its runs, and all that is said about them."""
    try:
        runs, unread = read_runs([str(sample.path)], format_name=name)
    except StabError as error:
        return [], [str(error)]
    told = [str(error) for error in unread]
    for run in runs:
        told += [*run.notes, repr(run.bad), repr(run.attempts)]
    return runs, told


def cells(runs: list[Run]) -> int:
    """Count the values of runs."""
    return sum(
        run.frame.height - run.frame[c].null_count()
        for run in runs
        for c in run.frame.columns
        if c == "step" or c not in KEYS
    )


def head(sample: Sample, file: Path) -> bytes:
    """Return as much of a file as gives some rows."""
    whole = file.read_bytes()
    if open_source(file).path != file:
        return whole  # packed: what vouches for its bytes stands at its end
    if whole.startswith(b"PAR1"):
        pl.read_parquet(file).head(5 * ROWS).write_parquet(file)
        return file.read_bytes()
    size = SMALLEST
    while size < len(whole):
        part = whole[:size]
        file.write_bytes(part if b"\0" in part else part[: part.rfind(b"\n") + 1] or part)
        runs, _ = reading(sample, name=sample.reader)
        if sum(run.frame.height for run in runs) >= ROWS:
            return file.read_bytes()
        size *= 2
    return whole


def small(path: Path, folder: Path) -> Sample:
    """Copy a sample, cut to a few rows."""
    target = folder / path.name
    sample = Sample(target, path.parent.name)
    if path.is_dir():
        shutil.copytree(path, target)
        for file in sorted(p for p in target.rglob("*") if p.is_file()):
            sample.files[file] = head(sample, file)
        return sample
    shutil.copy(path, target)
    sample.files = {target: head(sample, target)}
    return sample


def flipped(data: bytes, draw: random.Random) -> bytes:
    """Change one byte."""
    at = draw.randrange(len(data))
    new = draw.choice((draw.randrange(256), data[at] ^ 1 << draw.randrange(8)))
    return data[:at] + bytes([new]) + data[at + 1 :]


def unseen(whole: bytes, data: bytes) -> bool:
    """Say whether no reader could see the change.

    A digit became another one, or a blank: a number like any other, or none. Pages of parquet have
    no checksum unless their writer asked for one.
    """
    at = next((i for i in range(len(whole)) if whole[i] != data[i]), 0)
    digit = whole[at : at + 1].isdigit() and data[at] in b"0123456789 \t"
    return digit or whole.startswith(b"PAR1")


def damaged(data: bytes, draw: random.Random) -> bytes:
    """Cut out, put in, double, swap or overwrite, several times; or break off."""
    for _ in range(draw.randint(1, 4)):
        a = draw.randrange(len(data) + 1)
        b = min(len(data), a + draw.choice((1, 8, 60, 400)))
        part = data[a:b]
        kind = draw.randrange(7)
        put = (
            b"",
            draw.randbytes(draw.randint(1, 20)),
            part * 2,
            draw.choice(WORDS),
            bytes(len(part)),
            part[::-1],
        )
        data = data[:a] if kind == 6 else data[:a] + put[kind] + data[b:]
    return data or b"x"


def failures(sample: Sample, tries: range) -> Iterator[str]:
    """Yield what goes wrong with a sample that is damaged once for every number."""
    sample.write(Path(), b"")
    runs, said = reading(sample, name=sample.reader)
    held = cells(runs)
    assert held, sample.path
    for number in tries:
        draw = random.Random(f"{sample.path.name} {number}{SEED}")
        file = draw.choice(list(sample.files))
        whole = sample.files[file]
        one_byte = number % 2 == 0
        data = (flipped if one_byte else damaged)(whole, draw)
        sample.write(file, data)
        begun = time.process_time()
        try:
            name = None if number % 10 == 9 else sample.reader
            runs, told = reading(sample, name=name)
        except BaseException as error:  # a panic of Polars is no Exception
            if isinstance(error, KeyboardInterrupt):
                raise
            yield f"{sample.path.name} {number}: {type(error).__name__}: {error}"
            continue
        if time.process_time() - begun > SECONDS:
            yield f"{sample.path.name} {number}: {time.process_time() - begun:.0f} s"
        if one_byte and told == said and cells(runs) < held and not unseen(whole, data):
            yield f"{sample.path.name} {number}: {held - cells(runs)} values lost without a word"


@pytest.mark.parametrize("reader", [r.name for r in readers])
def test_damage_is_survived_and_told_of(reader: str, tmp_path: Path):
    """Whatever is damaged, there is a run or one clear error; what one byte cost is said."""
    own = [small(path, tmp_path) for path in samples() if path.parent.name == reader]
    found: list[str] = []
    for i, sample in enumerate(own):
        found += failures(sample, range(i, TRIES, len(own)))

    assert found[:SHOWN] == [], f"{len(found)} of {TRIES}"
