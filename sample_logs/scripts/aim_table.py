# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = ["aim==3.29.1", "pandas>=2"]
# ///
"""The run of diverged.py, logged again through Aim itself and handed out as a table by its SDK.

Writes ``diverged.csv``: ``Metric.dataframe()`` of every metric, one below the other, as
``query_metrics(…).dataframe()`` puts them. Aim takes the time of logging; the times of the samples
are put in afterwards. pandas writes NaN as an empty cell.
"""

import os
import shutil
import tempfile
from datetime import UTC, datetime

import pandas as pd
from aim import Repo, Run
from places import out_path
from stories import diverged

if __name__ == "__main__":
    path = out_path("aim/diverged.csv", __doc__)
    config, rows = diverged()
    folder = tempfile.mkdtemp()
    Repo(folder, init=True)
    run = Run(repo=folder, system_tracking_interval=None, log_system_params=False)
    run["hparams"] = config
    for _, step, values in rows:
        for name, value in values.items():
            subset, _, metric = name.partition("/")
            run.track(value, name=metric, step=step, context={"subset": subset})
    table = pd.concat(
        m.dataframe(include_name=True, include_context=True, include_run=True)
        for m in run.metrics()
    )
    walls = {step: wall for wall, step, _ in rows}
    table["time"] = [
        datetime.fromtimestamp(walls[s], UTC).replace(tzinfo=None) for s in table["step"]
    ]
    table["run.hash"] = "5a7ae1"
    table.to_csv(path, index=False)
    shutil.rmtree(folder)
    os._exit(0)  # Aim's threads would write on into the folder that is gone
