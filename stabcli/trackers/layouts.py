"""Layouts: what a table, a header or an object looks like when a tracker exported it.

Readers of such exports claim what is said here, and readers of any table leave it to them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection
from pathlib import Path
from typing import Literal

import polars as pl
from polars.exceptions import PolarsError

from stabcli.parts import checked_parquet
from stabcli.sources import Source

PARQUET = b"PAR1"
NEPTUNE = frozenset({"run_id", "attribute_path", "attribute_type", "step", "float_value"})
"""Columns of the tables that neptune-exporter writes.

Source: neptune_exporter/model.py of the exporter: one long table, a row a value.
"""
TRACKIO = frozenset({"run_name", "step", "timestamp"})
"""Columns of the tables of metrics that trackio writes, beside a column a metric."""
TRACKIO_OWN = frozenset({"id", "run_id", "log_id", "space_id"})
"""Of these at least one stands in each of trackio's tables."""
_ASIDE = ("_system.parquet", "_configs.parquet", "_traces.parquet", "system_metrics.parquet")
_AIM = frozenset({"idx", "step", "value", "epoch", "time"})
"""Columns of ``Metric.dataframe()`` of Aim, to which names and contexts are added."""
COMET = "metricName"
"""Key of every value that Comet's ``get_metrics()`` hands out."""

_GOLDEN = re.compile(
    rb'\s*\{\s*"(?:[^"\\]|\\.)*":\s*\{\s*"start_step":\s*\d+,\s*"end_step":\s*\d+,'
    rb'\s*"step_interval":\s*\d+,'
)
_CLEARML = re.compile(
    rb'\s*\{\s*"(?:[^"\\]|\\.)*":\s*\{\s*"(?:[^"\\]|\\.)*":\s*\{\s*"(?:x|y|name)":'
)
_CLEARML_AXIS = re.compile(rb'"[xy]":\s*\[')

Kind = Literal["neptune", "trackio", "trackio aside"]


def parquet_kind(source: Source) -> Kind | None:
    """Say which tracker wrote a parquet file; None where it is none, or nobody's in particular."""
    if source.is_folder or not source.head.startswith(PARQUET):
        return None
    status = source.path.stat()
    columns = _columns(source.path, status.st_size, status.st_mtime_ns)
    return kind_of(columns, source.name)


def kind_of(columns: Collection[str], name: str) -> Kind | None:
    """Say which tracker wrote a table with these columns under this name."""
    held = frozenset(columns)
    if held >= NEPTUNE:
        return "neptune"
    if "_step" in held:
        return None  # the history of a W&B run
    if held >= TRACKIO and held & TRACKIO_OWN:
        return "trackio"
    others = held >= {"run_name"} and "step" not in held
    return "trackio aside" if others and name.endswith(_ASIDE) else None


def is_golden(source: Source) -> bool:
    """Say whether a file begins like the golden values of Megatron-LM's functional tests."""
    return not source.is_folder and _GOLDEN.match(source.head) is not None


def is_clearml(source: Source) -> bool:
    """Say whether a file begins like what ClearML's ``get_reported_scalars`` returns."""
    if source.is_folder or _CLEARML.match(source.head) is None:
        return False
    return _CLEARML_AXIS.search(source.head) is not None


def is_aim(names: Collection[str]) -> bool:
    """Say whether a header is that of a table of Aim."""
    return frozenset(names) >= _AIM


@functools.lru_cache(maxsize=64)
def _columns(path: Path, size: int, changed: int) -> frozenset[str]:  # noqa: ARG001 - the key
    try:
        with checked_parquet(path):
            return frozenset(pl.read_parquet_schema(path))
    except (PolarsError, OSError):
        return frozenset()
