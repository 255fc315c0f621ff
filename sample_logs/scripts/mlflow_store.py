# /// script
# requires-python = ">=3.11"
# dependencies = ["mlflow-skinny==3.17.2", "sqlalchemy>=2", "alembic>=1.13"]
# ///
"""Two runs, logged again through MLflow itself: into folders, and into a database.

``mlruns`` holds the two attempts of jsonl/restart.jsonl around the restart as one run that was
killed, ``diverged.db.gz`` the run of csv/diverged_metrics.csv, which failed; the database is compressed
because most of it is empty tables. Run ids are drawn at random; times are those of the samples.
"""

import gzip
import os
import shutil
import sqlite3
import tempfile
from pathlib import Path

os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from places import EPOCH, out_path
from stories import diverged, restart


def write(uri, name, story, status):
    """Log a run."""
    config, rows = story
    client = MlflowClient(uri)
    experiment = client.create_experiment("samples", artifact_location="mlflow-artifacts:/samples")
    tags = {"mlflow.user": "user", "mlflow.source.name": "train.py"}
    run = client.create_run(experiment, start_time=int(EPOCH * 1e3), tags=tags, run_name=name)
    client.log_batch(
        run.info.run_id, params=[Param(k, str(v)) for k, v in config.items() if k != "text_sha256"]
    )
    for wall, step, values in rows:
        at = int(wall * 1e3)
        metrics = [Metric(k, v, at, step) for k, v in values.items()]
        if step % 100 == 0:
            metrics.append(Metric("system/gpu_0_utilization_percentage", 97.0, at, step))
        client.log_batch(run.info.run_id, metrics=metrics)
    client.set_terminated(run.info.run_id, status=status, end_time=int(rows[-1][0] * 1e3))


if __name__ == "__main__":
    target = out_path("mlflow/mlruns", __doc__)
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        write(f"file://{folder}/mlruns", "restart", restart(), "KILLED")
        shutil.rmtree(f"{folder}/mlruns/0", ignore_errors=True)
        shutil.copytree(f"{folder}/mlruns", target, ignore=shutil.ignore_patterns(".trash"))
        write(f"sqlite:///{folder}/mlflow.db", "diverged", diverged(), "FAILED")
        database = sqlite3.connect(f"{folder}/mlflow.db")  # it names the place where this ran
        database.execute(
            "UPDATE experiments SET artifact_location = 'mlflow-artifacts:/0' WHERE experiment_id = 0"
        )
        database.commit()
        database.execute("VACUUM")
        database.close()
        data = Path(folder, "mlflow.db").read_bytes()
    packed = gzip.compress(data, mtime=0)
    (target.parent / "diverged.db.gz").write_bytes(packed)
