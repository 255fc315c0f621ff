"""Writes the files of experiment trackers for tests: small, in the layouts of their own writers.

Each takes rows of step and values, NaN and infinities among them. What the trackers themselves
wrote of a run lies in sample_logs/; here it is to be had without them.
"""

import json
import math
import sqlite3
import struct
import zipfile
from datetime import UTC, datetime
from decimal import Decimal

import polars as pl

from tests import wandb_writing
from tests.wandb_writing import field

NAN, INF = math.nan, math.inf
CLOCK = 1_767_254_400.0
"""Seconds since 1970 at step 0; a step takes 2 s."""
PARAMS = {"lr": 3e-4, "seed": 7, "max_grad_norm": 1.0, "gpus": 8}
ROWS = [
    (
        step,
        {
            "train/loss": NAN if step == 17 else 3.0 - step / 16,
            "train/grad_norm": INF if step == 9 else -INF if step == 11 else 1.0 + step / 8,
        }
        | ({"eval/loss": 3.5 - step / 16} if step % 5 == 0 else {}),
    )
    for step in range(20)
]
"""A run with every kind of number."""


def clock(step):
    return CLOCK + 2.0 * step


def bare(value):
    """A number as JSON may hold it."""
    odd = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value if math.isfinite(value) else odd


def wanted(rows=ROWS):
    """Name -> step -> value: what a reader must find in what was written."""
    found = {}
    for step, values in rows:
        for name, value in values.items():
            found.setdefault(name, {})[step] = value
    return found


def mlflow_run(folder, rows=ROWS, *, name="run", status=3, params=PARAMS, run_id="a" * 32):
    """A run of MLflow's file store; returns its folder."""
    run = folder / run_id
    for inner in ("metrics", "params", "tags"):
        (run / inner).mkdir(parents=True)
    (run / "meta.yaml").write_text(
        f"artifact_uri: mlflow-artifacts:/1\nend_time: {int(clock(99) * 1e3)}\n"
        f"experiment_id: '1'\nlifecycle_stage: active\nrun_id: {run_id}\nrun_name: {name}\n"
        f"start_time: {int(CLOCK * 1e3)}\nstatus: {status}\ntags: []\nuser_id: user\n"
    )
    for key, value in params.items():
        (run / "params" / key).write_text(str(value))
    for step, values in rows:
        for key, value in values.items():
            path = run / "metrics" / key
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write(f"{int(clock(step) * 1e3)} {value} {step}\n")
    return run


def mlflow_store(folder, *runs, name="samples"):
    """A store of one experiment with one run a name; returns the folder of the experiment."""
    experiment = folder / "1"
    experiment.mkdir(parents=True)
    (experiment / "meta.yaml").write_text(
        f"artifact_location: mlflow-artifacts:/1\nexperiment_id: '1'\nname: {name}\n"
    )
    for number, rows in enumerate(runs):
        mlflow_run(experiment, rows, name=f"run{number}", run_id=f"{number:032x}")
    return experiment


MLFLOW_TABLES = """
CREATE TABLE experiments (experiment_id INTEGER PRIMARY KEY, name VARCHAR(256));
CREATE TABLE runs (run_uuid VARCHAR(32) NOT NULL, name VARCHAR(250), status VARCHAR(9),
    start_time BIGINT, end_time BIGINT, lifecycle_stage VARCHAR(20), experiment_id INTEGER,
    PRIMARY KEY (run_uuid));
CREATE TABLE metrics (key VARCHAR(250) NOT NULL, value DOUBLE NOT NULL, timestamp BIGINT NOT NULL,
    run_uuid VARCHAR(32) NOT NULL, step BIGINT DEFAULT '0' NOT NULL, is_nan BOOLEAN DEFAULT '0' NOT NULL,
    PRIMARY KEY (key, timestamp, step, run_uuid, value, is_nan));
CREATE TABLE params (key VARCHAR(250) NOT NULL, value VARCHAR(8000) NOT NULL,
    run_uuid VARCHAR(32) NOT NULL, PRIMARY KEY (key, run_uuid));
CREATE TABLE tags (key VARCHAR(250) NOT NULL, value VARCHAR(8000), run_uuid VARCHAR(32) NOT NULL);
INSERT INTO experiments VALUES (1, 'samples');
"""


def mlflow_metric(key, value, step, run_id, wall=None):
    """A row of ``metrics`` as MLflow writes it."""
    stored = (
        0.0
        if math.isnan(value)
        else max(-1.7976931348623157e308, min(value, 1.7976931348623157e308))
    )
    wall = clock(step) if wall is None else wall
    return key, stored, int(wall * 1e3), run_id, step, math.isnan(value)


def write_mlflow(path, rows=ROWS, *, name="run", run_id="a" * 32, status="FINISHED", params=PARAMS):
    """A database of MLflow, or one run more in it."""
    new = not path.exists()
    database = sqlite3.connect(path)
    if new:
        database.executescript(MLFLOW_TABLES)
    run = (run_id, name, status, int(CLOCK * 1e3), int(clock(99) * 1e3), "active", 1)
    database.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?)", run)
    said = [(k, str(v), run_id) for k, v in params.items()]
    database.executemany("INSERT INTO params VALUES (?, ?, ?)", said)
    logged = [mlflow_metric(k, v, s, run_id) for s, values in rows for k, v in values.items()]
    database.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", logged)
    database.commit()
    database.close()
    return path


def iso(step):
    return datetime.fromtimestamp(clock(step), UTC).isoformat()


def write_trackio(path, rows=ROWS, *, name="run", run_id="b" * 32, old=False, config=PARAMS):
    """A database of trackio; of older versions, without ids of runs, where ``old``."""
    new = not path.exists()
    database = sqlite3.connect(path)
    more = "" if old else "run_id TEXT NOT NULL,"
    for table, column in (
        (("metrics", "step INTEGER NOT NULL, metrics"), ("configs", "config")) if new else ()
    ):
        last = "" if table == "metrics" else ", created_at TEXT"
        database.execute(
            f"CREATE TABLE {table} (id INTEGER PRIMARY KEY AUTOINCREMENT, {more}"
            f" timestamp TEXT, run_name TEXT NOT NULL, {column} TEXT NOT NULL{last})"
        )
    own = () if old else (run_id,)
    marks = "?" + ", ?" * (3 + len(own))
    names = ("" if old else "run_id, ") + "timestamp, run_name, step, metrics"
    for step, values in rows:
        said = json.dumps({k: bare(v) for k, v in values.items()})
        said = said if old else said.encode()
        row = (*own, iso(step), name, step, said)
        database.execute(f"INSERT INTO metrics ({names}) VALUES ({marks})", row)
    names = ("" if old else "run_id, ") + "run_name, config"
    marks = "?" + ", ?" * (1 + len(own))
    held = json.dumps({**config, "_Username": None})
    database.execute(f"INSERT INTO configs ({names}) VALUES ({marks})", (*own, name, held))
    database.commit()
    database.close()
    return path


def write_trackio_parquet(path, rows=ROWS, *, name="run", run_id="b" * 32):
    """A table of trackio's export, and its configuration beside it."""
    keys = sorted({k for _, values in rows for k in values})
    table = {
        "timestamp": [iso(s) for s, _ in rows],
        "step": [s for s, _ in rows],
        **{k: [values.get(k) for _, values in rows] for k in keys},
    }
    frame = pl.DataFrame(table).with_columns(
        pl.int_range(1, pl.len() + 1).alias("id"),
        pl.lit(run_id).alias("run_id"),
        pl.lit(name).alias("run_name"),
    )
    frame.write_parquet(path)
    pl.DataFrame(
        {"run_id": [run_id], "run_name": [name], **{k: [v] for k, v in PARAMS.items()}}
    ).write_parquet(path.with_name(f"{path.stem}_configs.parquet"))
    return path


def write_aim(path, rows=ROWS):
    """The table of ``query_metrics(…).dataframe()``: metric after metric, NaN an empty cell."""
    names = sorted({k for _, values in rows for k in values})
    lines = [
        "idx,step,value,epoch,time,run.hash,run.hparams.seed,metric.name,metric.context.subset"
    ]
    for name in names:
        subset, _, metric = name.partition("/")
        logged = [(at, s, values[name]) for at, (s, values) in enumerate(rows) if name in values]
        for idx, (at, step, value) in enumerate(logged):
            said = "" if math.isnan(value) else repr(value)
            when = datetime.fromtimestamp(clock(at), UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
            lines.append(f"{idx},{step},{said},,{when},abc123,7,{metric},{subset}")
    path.write_text("\n".join(lines) + "\n")
    return path


CONTEXTS = {"train": "train", "eval": "validate"}


def comet_messages(rows=ROWS):
    """The messages of an offline experiment."""
    made = [{"payload": {"key": "Name", "value": "run"}, "type": "log_other"}]
    for key, value in PARAMS.items():
        param = {"paramName": key, "paramValue": value, "source": "manual", "step": None}
        made.append({"payload": {"param": param}, "type": "parameter_msg"})
    for step, values in rows:
        for name, value in values.items():
            context, _, metric = name.partition("/")
            said = {"metricName": metric, "metricValue": bare(value), "step": step, "epoch": None}
            held = {
                "context": CONTEXTS[context],
                "local_timestamp": int(clock(step) * 1e3),
                "metric": said,
            }
            made.append({"payload": held, "type": "metric_msg"})
    return made


def zipped(path, files, *, packed=True):
    """An archive of files: name -> text."""
    how = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, said in files.items():
            archive.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 8, 0, 0)), said, how)
    return path


def lines(objects):
    return "".join(json.dumps(o) + "\n" for o in objects)


def write_comet(path, rows=ROWS, *, packed=True):
    about = json.dumps({"offline_id": "c" * 32})
    return zipped(
        path,
        {"experiment.json": about, "messages.json": lines(comet_messages(rows))},
        packed=packed,
    )


def comet_listed(rows=ROWS):
    """What ``get_metrics()`` hands out."""
    made = []
    for step, values in rows:
        for name, value in values.items():
            context, _, metric = name.partition("/")
            made.append(
                {
                    "metricName": metric,
                    "metricValue": str(bare(value)),
                    "timestamp": int(clock(step) * 1e3),
                    "step": step,
                    "epoch": None,
                    "runContext": CONTEXTS[context],
                }
            )
    return sorted(made, key=lambda row: (row["metricName"], row["runContext"]))


def clearml_events(rows=ROWS):
    """Batches of events as an offline session writes them: what is not finite is 0.0."""
    made = []
    for step, values in rows:
        batch = []
        for name, value in values.items():
            title, _, series = name.partition("/")
            said = {"type": "training_stats_scalar", "metric": title, "variant": series}
            stored = value if math.isfinite(value) else 0.0
            at = {"iter": step, "timestamp": int(clock(step) * 1e3)}
            batch.append({**said, **at, "value": stored})
        made.append(batch)
    return made


def write_clearml(path, rows=ROWS):
    section = {k: {"section": "General", "name": k, "value": str(v)} for k, v in PARAMS.items()}
    task = json.dumps(
        {"name": "run", "project_name": "samples", "hyperparams": {"General": section}}
    )
    return zipped(path, {"metrics.jsonl": lines(clearml_events(rows)), "task.json": task})


def clearml_scalars(rows=ROWS):
    """What ``get_reported_scalars()`` hands out."""
    made = {}
    for step, values in rows:
        for name, value in values.items():
            title, _, series = name.partition("/")
            curve = made.setdefault(title, {}).setdefault(
                series, {"name": series, "x": [], "y": []}
            )
            curve["x"].append(step)
            curve["y"].append(value if math.isfinite(value) else 0.0)
    return made


def neptune_table(rows=ROWS, *, run_id="SAM-1", name="run", scale=Decimal(1)):
    """The long table of neptune-exporter."""
    own = {"project_id": "user/samples", "run_id": run_id}
    held = [{**own, "attribute_path": "sys/name", "attribute_type": "string", "string_value": name}]
    for key, value in PARAMS.items():
        kind = "int" if isinstance(value, int) else "float"
        said = {"attribute_path": f"config/{key}", "attribute_type": kind, f"{kind}_value": value}
        held.append({**own, **said})
    for key in sorted({k for _, values in rows for k in values}):
        for step, values in rows:
            if key in values:
                at = {
                    "step": Decimal(step) * scale,
                    "timestamp": datetime.fromtimestamp(clock(step), UTC),
                }
                said = {"attribute_path": key, "attribute_type": "float_series"}
                held.append({**own, **said, **at, "float_value": values[key]})
    schema = {
        "project_id": pl.String, "run_id": pl.String, "attribute_path": pl.String,
        "attribute_type": pl.String, "step": pl.Decimal(18, 6), "timestamp": pl.Datetime("ms", "UTC"),
        "int_value": pl.Int64, "float_value": pl.Float64, "string_value": pl.String,
        "bool_value": pl.Boolean,
    }  # fmt: skip
    return pl.DataFrame(held, schema=schema, infer_schema_length=None)


SWANLAB_START = b":SWL\xd6\xe1\x02"


def swanlab_scalar(key, step, value, *, wall=None):
    when = field(1, int(clock(step) if wall is None else wall))
    number = b"\x09" + struct.pack("<d", value)
    said = field(1, key) + (field(2, step) if step else b"") + field(4, when)
    return field(13, said + field(5, number))


def swanlab_records(rows=ROWS, *, state=1):
    made = [field(10, field(1, "samples") + field(4, "run") + field(10, "abcd1234"))]
    keys = sorted({k for _, values in rows for k in values})
    made += [field(12, field(1, 1) + field(2, 1) + field(3, key)) for key in keys]
    made += [swanlab_scalar(k, s, v) for s, values in rows for k, v in values.items()]
    return [*made, field(11, field(1, state))] if state is not None else made


def write_swanlab(path, rows=ROWS, *, records=None, state=1):
    data, _ = wandb_writing.framed(records or swanlab_records(rows, state=state))
    path.write_bytes(SWANLAB_START + data[len(SWANLAB_START) :])
    return path


def mllog(key, value, step=None, *, kind="POINT_IN_TIME", wall=None, **about):
    """A line of MLPerf's logger."""
    place = {} if step is None else {"samples_count": step}
    when = int((clock(0) if wall is None else wall) * 1e3)
    said = {"namespace": "", "time_ms": when, "event_type": kind, "key": key, "value": value}
    return (
        ":::MLLOG "
        + json.dumps({**said, "metadata": {"file": "t.py", "lineno": 1, **place, **about}})
        + "\n"
    )


MLPERF_SETTINGS = {
    "submission_benchmark": "gpt3",
    "global_batch_size": 16,
    "max_sequence_length": 128,
    "opt_base_learning_rate": 3e-4,
    "opt_gradient_clip_norm": 1.0,
    "seed": 7,
}


def mlperf_log(rows=ROWS, *, batch=16, settings=MLPERF_SETTINGS, status="success"):
    names = {"train/loss": "train_loss", "eval/loss": "eval_accuracy"}
    made = [mllog(k, v) for k, v in settings.items()]
    made.append(mllog("run_start", None, kind="INTERVAL_START"))
    for step, values in rows:
        for name, value in values.items():
            if name in names:
                made.append(mllog(names[name], value, batch * (step + 1), wall=clock(step)))
        tracked = {"grad_norm": values["train/grad_norm"]}
        made.append(mllog("tracked_stats", tracked, batch * (step + 1), wall=clock(step)))
    if status:
        made.append(mllog("run_stop", None, kind="INTERVAL_END", wall=clock(99), status=status))
    return "".join(made)


def golden(rows=ROWS, *, listed=False):
    """Golden values of Megatron-LM: by step, or as a list in older ones."""
    columns = {"lm loss": "train/loss", "grad-norm": "train/grad_norm", "iteration-time": None}
    made = {}
    for own, name in columns.items():
        values = {s: values[name] if name else 0.5 + s / 100 for s, values in rows}
        told = {str(s): "nan" if math.isnan(v) else v for s, v in values.items()}
        about = {"start_step": rows[0][0], "end_step": rows[-1][0], "step_interval": 1}
        made[own] = {**about, "values": list(told.values()) if listed else told}
    return made
