# /// script
# requires-python = ">=3.11"
# dependencies = ["pyarrow>=17"]
# ///
"""A stretch of the run of bad_batch.py in the tables that neptune-exporter writes.

Made by this script in the exporter's documented schema, not by Neptune, whose exporter needs an
account. The folder ``samples`` holds the two parts of one run; settings stand among the values.
"""

import shutil
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
from places import out_path
from stories import bad_batch

SCHEMA = pa.schema(
    [
        ("project_id", pa.string()),
        ("run_id", pa.string()),
        ("attribute_path", pa.string()),
        ("attribute_type", pa.string()),
        ("step", pa.decimal128(18, 6)),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
        ("int_value", pa.int64()),
        ("float_value", pa.float64()),
        ("string_value", pa.string()),
        ("bool_value", pa.bool_()),
        ("datetime_value", pa.timestamp("ms", tz="UTC")),
        ("string_set_value", pa.list_(pa.string())),
        ("file_value", pa.struct([("path", pa.string())])),
        (
            "histogram_value",
            pa.struct(
                [
                    ("type", pa.string()),
                    ("edges", pa.list_(pa.float64())),
                    ("values", pa.list_(pa.float64())),
                ]
            ),
        ),
    ]
)
KINDS = {int: "int", float: "float", str: "string", bool: "bool"}

if __name__ == "__main__":
    target = out_path("neptune/samples", __doc__)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    config, rows = bad_batch()
    own = {"project_id": "user/samples", "run_id": "SAM-1"}
    table = [
        {
            **own,
            "attribute_path": "sys/name",
            "attribute_type": "string",
            "string_value": "bad_batch",
        }
    ]
    for name, value in config.items():
        kind = KINDS[type(value)]
        said = {"attribute_path": f"config/{name}", "attribute_type": kind, f"{kind}_value": value}
        table.append({**own, **said})
    for name in sorted({n for *_, values in rows for n in values}):
        for wall, step, values in rows:
            if name in values:
                said = {"attribute_path": name, "attribute_type": "float_series"}
                at = {"step": Decimal(step), "timestamp": int(wall * 1e3)}
                table.append({**own, **said, **at, "float_value": values[name]})
    half = len(table) // 2
    for part, kept in enumerate((table[:half], table[half:])):
        pq.write_table(pa.Table.from_pylist(kept, SCHEMA), target / f"SAM-1_part_{part}.parquet")
