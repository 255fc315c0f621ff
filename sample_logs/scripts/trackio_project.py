# /// script
# requires-python = ">=3.11"
# dependencies = ["trackio==0.43.0", "pyarrow>=17"]
# ///
"""The run of diverged.py, and a stretch of that of bad_batch.py, logged again through trackio itself.

``diverged.db.gz`` is the database of a project, compressed because most of it is empty tables;
the folder ``exported`` holds what trackio exports of another as parquet.
trackio takes the time of logging; the times of the samples are put in afterwards.
"""

import gzip
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from places import out_path
from stories import bad_batch, diverged


def write(name, story, folder):
    """Log a run; in a process of its own, for trackio keeps its folder for good."""
    os.environ["TRACKIO_DIR"] = str(folder)
    os.environ["HF_HOME"] = str(folder / "home")
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    config, rows = story
    trackio.init(project=name, name=name, config=config)
    for _, step, values in rows:
        trackio.log(values, step=step)
    trackio.log_system({"gpu/0/utilization": 97.0})
    trackio.finish()
    database = sqlite3.connect(folder / f"{name}.db")
    walls = {step: wall for wall, step, _ in rows}
    for number, step in database.execute("SELECT id, step FROM metrics").fetchall():
        when = datetime.fromtimestamp(walls[step], UTC).isoformat()
        database.execute("UPDATE metrics SET timestamp = ? WHERE id = ?", (when, number))
    (said,) = database.execute("SELECT config FROM configs").fetchone()
    held = {k: v for k, v in json.loads(said).items() if not k.startswith("_")}
    database.execute("UPDATE configs SET config = ?", (json.dumps(held).encode(),))
    database.commit()
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.execute("VACUUM")
    database.close()
    SQLiteStorage.export_to_parquet()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--part"]:
        story = diverged if sys.argv[2] == "diverged" else bad_batch
        write(sys.argv[2], story(), Path(sys.argv[3]))
        sys.exit()
    target = out_path("trackio/diverged.db.gz", __doc__)
    for name in ("diverged", "bad_batch"):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, __file__, "--part", name, folder], check=True)
            made = Path(folder)
            if name == "diverged":
                target.write_bytes(gzip.compress((made / "diverged.db").read_bytes(), mtime=0))
            else:
                exported = target.parent / "exported"
                exported.mkdir(exist_ok=True)
                for file in made.glob("*.parquet"):
                    (exported / file.name).write_bytes(file.read_bytes())
