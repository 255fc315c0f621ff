# /// script
# requires-python = ">=3.11"
# dependencies = ["comet_ml==3.58.8"]
# ///
"""The run of diverged.py, logged again through Comet itself, without a network.

Writes ``diverged.zip``, the archive of an OfflineExperiment, without what Comet records of the
machine and its packages, and with the times of the samples; and ``bad_batch.json``: a stretch of
the run of bad_batch.py in the layout in which ``APIExperiment.get_metrics()`` hands values out,
which needs Comet's server, so that it is written by this script.
"""

import json
import tempfile
import zipfile
from pathlib import Path

from comet_ml import OfflineExperiment
from places import EPOCH, out_path
from stories import bad_batch, bare, diverged

KEPT = ("metric_msg", "parameter_msg")
CONTEXTS = {"train": "train", "eval": "validate"}

if __name__ == "__main__":
    path = out_path("comet/diverged.zip", __doc__)
    config, rows = diverged()
    with tempfile.TemporaryDirectory() as folder:
        experiment = OfflineExperiment(
            project_name="samples",
            workspace="user",
            offline_directory=folder,
            log_code=False,
            auto_metric_logging=False,
            auto_output_logging=False,
        )
        experiment.set_name("diverged")
        experiment.log_parameters(config)
        for _, step, values in rows:
            for name, value in values.items():
                context, _, metric = name.partition("/")
                with experiment.context_manager(CONTEXTS[context]):
                    experiment.log_metric(metric, value, step=step)
        experiment.end()
        (made,) = Path(folder).glob("*.zip")
        with zipfile.ZipFile(made) as archive:
            about = json.loads(archive.read("experiment.json"))
            messages = [json.loads(m) for m in archive.read("messages.json").splitlines()]
    walls = {step: wall for wall, step, _ in rows}
    lines = []
    for message in messages:
        held = message["payload"]
        named = message["type"] == "log_other" and held.get("key") == "Name"
        if message["type"] not in KEPT and not named:
            continue
        metric = held.get("metric", {})
        if metric.get("step") is not None and not metric["metricName"].startswith("sys."):
            held["local_timestamp"] = int(walls[metric["step"]] * 1e3)
        elif "local_timestamp" in held:
            held["local_timestamp"] = int(EPOCH * 1e3)
        lines.append(json.dumps(message) + "\n")
    about.update(offline_id="5a7ae1", start_time=int(EPOCH * 1e3), stop_time=int(rows[-1][0] * 1e3))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, said in (
            ("experiment.json", json.dumps(about)),
            ("messages.json", "".join(lines)),
        ):
            archive.writestr(
                zipfile.ZipInfo(name, (2026, 1, 1, 8, 0, 0)), said, zipfile.ZIP_DEFLATED
            )

    _, rows = bad_batch()
    listed = [
        {
            "metricName": name.partition("/")[2],
            "metricValue": str(bare(value)),
            "timestamp": int(wall * 1e3),
            "step": step,
            "epoch": None,
            "runContext": CONTEXTS[name.partition("/")[0]],
            "offset": 0,
        }
        for wall, step, values in rows
        for name, value in values.items()
    ]
    listed.sort(key=lambda row: (row["metricName"], row["runContext"]))
    (path.parent / "bad_batch.json").write_text(json.dumps(listed) + "\n")
