# /// script
# requires-python = ">=3.11"
# dependencies = ["swanlab==0.10.3"]
# ///
"""The run of diverged.py, logged again through SwanLab itself, without a network.

Writes the folder ``swanlog``: the run's file and its config.yaml. SwanLab takes the time of
logging, which is left as it is; records of the console and of the machine, which name the
place where the script ran, are taken out, and the file is written anew with SwanLab's own writer.
"""

import shutil
import tempfile
from pathlib import Path

import swanlab
from places import out_path
from stories import diverged
from swanlab.proto.swanlab.record.v1.record_pb2 import Record
from swanlab.sdk.internal.core_python.store import DataStoreReader, DataStoreWriter

if __name__ == "__main__":
    target = out_path("swanlab/swanlog", __doc__)
    shutil.rmtree(target, ignore_errors=True)
    config, rows = diverged()
    with tempfile.TemporaryDirectory() as folder:
        swanlab.init(
            project="samples",
            experiment_name="diverged",
            mode="offline",
            logdir=folder,
            config=config,
        )
        for _, step, values in rows:
            swanlab.log(values, step=step)
        swanlab.finish()
        (made,) = Path(folder).glob("run-*/*.swanlab")
        place = target / "run-20260101_080000-5a7ae100"
        (place / "files").mkdir(parents=True)
        shutil.copyfile(made.parent / "files/config.yaml", place / "files/config.yaml")
        reader, writer = DataStoreReader(), DataStoreWriter()
        reader.open(made)
        writer.open(place / "run-5a7ae100.swanlab")
        for data in reader:
            record = Record.FromString(data)
            kind = next((k for k in ("log", "save") if record.HasField(k)), None)
            if kind is None:
                writer.write(data)
        writer.close()
