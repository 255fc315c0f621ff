"""Tables: CSV and parquet of one frame, one of whose columns begins half way."""

from functools import partial

import numpy as np
import polars as pl

from reading.clock import Case, Peer

STABCLI = """
import sys
from stabcli.readers.{reader} import {reader}
from stabcli.sources import open_source
[reading] = {reader}(open_source(sys.argv[1]))
print(reading.table.height, int(reading.table["step"].sum()), reading.table["loss"].is_nan().sum())
"""
CSV = """
import sys
import polars as pl
names = open(sys.argv[1]).readline().strip().split(",")
frame = pl.read_csv(sys.argv[1], schema={n: pl.Float64 for n in names})
print(frame.height, int(frame["step"].sum()), frame["loss"].is_nan().sum())
"""
PARQUET = """
import sys
import polars as pl
frame = pl.read_parquet(sys.argv[1])
print(frame.height, int(frame["step"].sum()), frame["loss"].is_nan().sum())
"""


def frame(number):
    """Return rows of 12 metrics with a few NaN; ``moe_aux_loss`` is null in the first half."""
    draw = np.random.default_rng(0)
    step = np.arange(number)
    loss = 2.0 + 8.0 * np.exp(-step / 2e5) + draw.normal(0, 0.05, number)
    loss[step % 5003 == 5002] = np.nan
    made = {
        "step": step,
        "loss": loss,
        "grad_norm": np.abs(draw.normal(1, 0.3, number)),
        "learning_rate": 3e-4 * np.minimum(1, (step + 1) / 2000),
        "tokens_seen": step * 4194304,
        "tokens_per_second": 41000 + draw.normal(0, 500, number),
        "mfu": 0.41 + draw.normal(0, 0.01, number),
        "step_time": 2.5 + 0.1 * draw.random(number),
        "lr_mult": 1 - 0.5 * draw.random(number),
        "mem_gb": 71.5 + draw.random(number),
        "ppl": np.exp(2 + draw.random(number)),
        "entropy": 2.1 + 0.1 * draw.random(number),
        "moe_aux_loss": 0.01 + 0.001 * draw.random(number),
    }
    late = pl.when(pl.col("step") >= number // 2).then(pl.col("moe_aux_loss"))
    return pl.DataFrame(made).with_columns(late.alias("moe_aux_loss"))


def as_csv(number, folder):
    """Write it as CSV."""
    path = folder / "metrics.csv"
    frame(number).write_csv(path)
    return {"log": path}


def as_parquet(number, folder):
    """Write it as parquet."""
    path = folder / "metrics.parquet"
    frame(number).write_parquet(path)
    return {"log": path}


def cases(scale):
    """Return both cases, of a million rows times ``scale``."""
    number = int(1e6 * scale)
    known = Peer(name="polars, schema given", code=CSV, most=1.15, own=True)
    plain = Peer(name="polars", code=PARQUET, most=1.1, own=True)
    kinds = [("csv", as_csv, known), ("parquet", as_parquet, plain)]
    return [
        Case(
            name=f"{reader}, {number:,} x 13",
            make=partial(make, number),
            code=STABCLI.format(reader=reader),
            peers=[peer],
        )
        for reader, make, peer in kinds
    ]
