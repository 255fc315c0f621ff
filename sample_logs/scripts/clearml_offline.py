# /// script
# requires-python = ">=3.11"
# dependencies = ["clearml==2.1.12"]
# ///
"""The run of diverged.py, logged again through ClearML itself, without a network.

Writes ``diverged.zip``, the archive of an offline session, in which ClearML puts 0.0 for every
NaN, with the times of the samples and without what it records of the machine; and
``bad_batch.json``: a stretch of the run of bad_batch.py in the layout in which
``Task.get_reported_scalars()`` hands values out, which needs a server, so that it is written by
this script.
"""

import json
import os
import tempfile
import zipfile
from pathlib import Path

from places import out_path
from stories import bad_batch, diverged

if __name__ == "__main__":
    path = out_path("clearml/diverged.zip", __doc__)
    config, rows = diverged()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CLEARML_CACHE_DIR"] = folder
        from clearml import Task

        Task.set_offline(True)
        task = Task.init(
            "samples",
            "diverged",
            auto_connect_frameworks=False,
            auto_resource_monitoring=False,
            auto_connect_streams=False,
            auto_connect_arg_parser=False,
        )
        task.connect(config)
        for _, step, values in rows:
            for name, value in values.items():
                title, _, series = name.partition("/")
                task.get_logger().report_scalar(title, series, value, iteration=step)
        task.close()
        (made,) = Path(folder).glob("**/*.zip")
        with zipfile.ZipFile(made) as archive:
            said = json.loads(archive.read("task.json"))
            lines = [json.loads(line) for line in archive.read("metrics.jsonl").splitlines()]
    walls = {step: wall for wall, step, _ in rows}
    for event in (event for events in lines for event in events):
        event.update(timestamp=int(walls[event["iter"]] * 1e3), task="offline-5a7ae1")
    task_json = {k: said[k] for k in ("name", "project_name", "hyperparams", "type")}
    events = "".join(json.dumps(line) + "\n" for line in lines)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in (("metrics.jsonl", events), ("task.json", json.dumps(task_json))):
            archive.writestr(
                zipfile.ZipInfo(name, (2026, 1, 1, 8, 0, 0)), text, zipfile.ZIP_DEFLATED
            )

    curves = {}
    for _, step, values in bad_batch()[1]:
        for name, value in values.items():
            title, _, series = name.partition("/")
            curve = curves.setdefault(title, {}).setdefault(
                series, {"name": series, "x": [], "y": []}
            )
            curve["x"].append(step)
            curve["y"].append(value)
    (path.parent / "bad_batch.json").write_text(json.dumps(curves) + "\n")
