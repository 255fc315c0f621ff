"""Files of trackers with bytes changed, cut out, put in or doubled: read or refused, never a crash.

``MUTATIONS=10000 pytest tests/readers/test_trackers_mutated.py`` makes that many of each, and
``STABCLI_SEED=2`` others.
"""

import json
import os
import random
import shutil

import polars as pl
import pytest

from stabcli.errors import LogError
from stabcli.readers import read_runs
from tests.mutating import mutated
from tests.tracker_writing import (
    ROWS,
    clearml_scalars,
    comet_listed,
    golden,
    mlflow_store,
    mlperf_log,
    neptune_table,
    write_aim,
    write_clearml,
    write_comet,
    write_mlflow,
    write_swanlab,
    write_trackio,
    write_trackio_parquet,
)

COUNT = int(os.environ.get("MUTATIONS", "60"))
FEW = ROWS[5:15]


def text(path, held):
    path.write_text(held if isinstance(held, str) else json.dumps(held))
    return path


def neptune(path):
    neptune_table(FEW).write_parquet(path)
    return path


def parquet(path, step):
    """A table of anybody: what is broken in it must not be told by a panic either."""
    columns = {k: [values.get(k) for _, values in FEW] for k in ("train/loss", "train/grad_norm")}
    pl.DataFrame({step: [s for s, _ in FEW], **columns}).write_parquet(path)
    return path


MADE = {
    "mlflow/folders": lambda p: mlflow_store(p / "mlruns", FEW).parent,
    "mlflow/database": lambda p: write_mlflow(p / "m.db", FEW),
    "trackio/database": lambda p: write_trackio(p / "t.db", FEW),
    "trackio/old database": lambda p: write_trackio(p / "t.db", FEW, old=True),
    "trackio/parquet": lambda p: write_trackio_parquet(p / "t.parquet", FEW),
    "aim/table": lambda p: write_aim(p / "a.csv", FEW),
    "comet/archive": lambda p: write_comet(p / "c.zip", FEW),
    "comet/stored archive": lambda p: write_comet(p / "c.zip", FEW, packed=False),
    "comet/list": lambda p: text(p / "c.json", comet_listed(FEW)),
    "clearml/archive": lambda p: write_clearml(p / "l.zip", FEW),
    "clearml/scalars": lambda p: text(p / "l.json", clearml_scalars(FEW)),
    "neptune/table": lambda p: neptune(p / "n.parquet"),
    "parquet/table": lambda p: parquet(p / "p.parquet", "step"),
    "wandb-export/table": lambda p: parquet(p / "w.parquet", "_step"),
    "swanlab/file": lambda p: write_swanlab(p / "s.swanlab", FEW),
    "mlperf/log": lambda p: text(p / "m.log", mlperf_log(FEW)),
    "megatron-golden/values": lambda p: text(p / "g.json", golden(FEW)),
}


def read(path, reader):
    """Read: whatever comes out, it is runs, or an error that says where it is."""
    said = str(path)
    runs = []
    try:
        runs, _ = read_runs([str(path)], format_name=reader)
    except LogError as error:
        said = str(error)
    assert said.startswith(str(path.parent))
    return runs


@pytest.mark.parametrize("name", MADE)
def test_mutated_files_are_read_or_refused(tmp_path, name):
    """Nothing crashes, rows stay in order, and nothing is written beside the files."""
    reader = name.partition("/")[0]
    whole = tmp_path / "whole"
    whole.mkdir()
    path = MADE[name](whole)
    assert len(read(path, reader)) == 1
    files = [path] if path.is_file() else [p for p in sorted(path.rglob("*")) if p.is_file()]
    dice = random.Random(name + os.environ.get("STABCLI_SEED", ""))
    hurt = tmp_path / "hurt"
    shutil.copytree(whole, hurt)
    seen = 0
    for number in range(COUNT):
        file = dice.choice(files)
        data = file.read_bytes()
        place = hurt / file.relative_to(whole)
        place.write_bytes(mutated(data, dice))
        for chosen in (reader, None) if number % 10 == 0 else (reader,):
            for run in read(hurt / path.relative_to(whole), chosen):
                seen += 1
                keys = run.frame.select("attempt", "step")
                assert keys.equals(keys.sort("attempt", "step"))
        place.write_bytes(data)
    assert seen
    assert sorted(p.relative_to(hurt) for p in hurt.rglob("*")) == sorted(
        p.relative_to(whole) for p in whole.rglob("*")
    )
