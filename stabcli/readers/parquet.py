"""Reader ``parquet``: a table with a row a logged step."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
from polars.exceptions import PolarsError

from stabcli.assembly import Reading
from stabcli.errors import LogError
from stabcli.parts import checked_parquet, flattened, part_by_run
from stabcli.readers import reader
from stabcli.sources import Source
from stabcli.trackers.layouts import parquet_kind

_MAGIC = b"PAR1"


def matches(source: Source) -> bool:
    """Claim a parquet file, unless a tracker's reader does: W&B's ``_step``, trackio, Neptune."""
    if not source.head.startswith(_MAGIC):
        return False
    try:
        theirs = parquet_kind(source) is not None
        with checked_parquet(source.path):
            return "_step" not in pl.read_parquet_schema(source.path) and not theirs
    except (PolarsError, OSError):
        return True  # broken: what is wrong is said on reading


@reader(matches, writes="stabcli export, pandas, polars")
def parquet(source: Source) -> Iterator[Reading]:
    """Read a parquet table with a column of steps, of one run or of several.

    Raises:
        LogError: It is a folder, or the file is cut short or otherwise broken.
    """
    if source.is_folder:
        raise LogError(f"{source.shown}: a folder: parquet reads files; give one of those in it")
    try:
        with checked_parquet(source.path):
            table = pl.read_parquet(source.path)
    except (PolarsError, OSError) as error:
        why = str(error).partition("\n")[0]
        raise LogError(
            f"{source.shown}: a broken parquet file: {why}: a parquet file that was not"
            " finished cannot be read; write it again"
        ) from None
    if table.height:
        lists: list[str] = []
        flat = flattened(table, lists)
        notes = (f"lists are no single value, left out: {', '.join(lists)}",) if lists else ()
        yield from part_by_run(Reading(name=source.name, table=flat, notes=notes))
