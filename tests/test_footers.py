"""Footers of parquet files: sound ones of every writer pass, those that claim what cannot be are refused."""

import io
import random
import struct

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stabcli.errors import LogError
from stabcli.footers import DamagedError, check
from stabcli.readers import read_runs
from tests.mutating import mutated

ROWS = 5000


def table():
    """Columns of every kind that tables of logs have: dense, sparse, constant, nested, text."""
    dice = np.random.default_rng(1)
    return pa.table(
        {
            "step": np.arange(ROWS),
            "loss": dice.normal(size=ROWS),
            "sparse": pa.array([float(i) if i % 100 == 0 else None for i in range(ROWS)]),
            "nothing": pa.array([None] * ROWS, pa.float64()),
            "constant": [1.5] * ROWS,
            "flag": [i % 2 == 0 for i in range(ROWS)],
            "name": [f"run {i % 3}" for i in range(ROWS)],
            "nested": [{"a": i, "b": [i, i + 1] if i % 2 else []} for i in range(ROWS)],
            "decimal": pa.array(range(ROWS), pa.decimal128(18, 6)),
            "when": pa.array(range(ROWS), pa.timestamp("ms", tz="UTC")),
        }
    )


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("packing", ["NONE", "SNAPPY", "ZSTD", "GZIP"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_what_arrow_writes_is_sound(tmp_path, version, packing, dictionary):
    path = tmp_path / "a.parquet"
    pq.write_table(
        table(), path, data_page_version=version, compression=packing, use_dictionary=dictionary,
        row_group_size=1300, data_page_size=2000, write_page_index=dictionary,
    )  # fmt: skip
    check(path)


@pytest.mark.parametrize("rows", [0, 1, ROWS])
def test_what_polars_writes_is_sound(tmp_path, rows):
    path = tmp_path / "a.parquet"
    pl.from_arrow(table())[:rows].write_parquet(path)
    check(path)
    constant = pl.DataFrame(
        {"step": pl.int_range(3_000_000, eager=True), "loss": [0.5] * 3_000_000}
    )
    constant.with_columns(step=1).write_parquet(path, compression_level=22)
    check(path)


def written():
    out = io.BytesIO()
    pl.DataFrame({"step": range(50), "loss": [i / 8 for i in range(50)]}).write_parquet(out)
    return out.getvalue()


def refusal(path):
    """Why a file is refused; nothing where it passes. Anything else that is raised is a bug."""
    try:
        check(path)
    except DamagedError as error:
        return str(error)
    return ""


def test_damage_in_the_footer_is_refused_or_read(tmp_path):
    """Every byte of the footer set to what makes numbers large, and whole files damaged anyhow."""
    data = written()
    start = len(data) - 8 - struct.unpack("<I", data[-8:-4])[0]
    path = tmp_path / "a.parquet"
    said = []
    for place in range(start, len(data) - 4):
        hurt = bytearray(data)
        hurt[place : place + 1] = b"\xff\xff\xff\xff\xff\x7f" if place % 3 else b"\xff"
        path.write_bytes(hurt)
        said.append(refusal(path))
    assert sum(map(bool, said)) > len(said) / 2
    dice = random.Random(1)
    for _ in range(1500):
        path.write_bytes(mutated(data, dice) or b"x")
        said.append(refusal(path))
    assert not any("\n" in why for why in said)


@pytest.mark.parametrize("reader", ["parquet", "wandb-export", "trackio", "neptune"])
def test_a_count_below_nothing_is_refused_by_every_reader(tmp_path, reader):
    """A page of -5 values is what Polars ends the process over."""
    data = bytearray(written())
    at = data.index(b"\x15\x64")  # fifty values, in the header of the first page
    data[at + 1] = 9
    path = tmp_path / "a.parquet"
    path.write_bytes(data)
    with pytest.raises(LogError, match=r"a broken parquet file: -5 values claimed in one page"):
        read_runs([str(path)], format_name=reader)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"PAR1", "cut short"),
        (b"PAR1" + bytes(20), "cut short"),
        (b"PAR1" + b"\xff" * 4 + b"PAR1", "longer than the file"),
        (b"PAR1" + b"\x1c" * 60 + struct.pack("<I", 60) + b"PAR1", "structures without end"),
        (b"PAR1" + b"\x19\xfc\xff\xff\xff\x7f" + struct.pack("<I", 6) + b"PAR1", "a list longer"),
        (b"PAR1" + b"\x15" + b"\xff" * 20 + struct.pack("<I", 21) + b"PAR1", "without an end"),
    ],
)
def test_nonsense_is_refused(tmp_path, data, said):
    path = tmp_path / "a.parquet"
    path.write_bytes(data)
    with pytest.raises(DamagedError, match=said):
        check(path)
