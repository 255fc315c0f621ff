# /// script
# requires-python = ">=3.11"
# dependencies = ["mlperf-logging==4.1.68"]
# ///
"""A stretch of the run of bad_batch.py, logged again through MLPerf's own logger.

Writes ``bad_batch.log``, as a language model's benchmark logs it: the training loss and what is
tracked beside it by samples, held-out losses as ``eval_accuracy``, settings before the start.
"""

import logging
from pathlib import Path

from mlperf_logging import mllog
from mlperf_logging.mllog import constants
from places import out_path
from stories import bad_batch

SETTINGS = {
    "submission_benchmark": "llama31_8b",
    "submission_org": "stabcli",
    "submission_platform": "one CPU",
    "seed": 1234,
    "global_batch_size": 32,
    "max_sequence_length": 64,
    "opt_name": "adamw",
    "opt_base_learning_rate": 0.003,
    "opt_learning_rate_warmup_steps": 100,
    "opt_gradient_clip_norm": 4.0,
    "opt_weight_decay": 0.1,
}

if __name__ == "__main__":
    path = out_path("mlperf/bad_batch.log", __doc__)
    path.unlink(missing_ok=True)
    mllog.config(
        filename=str(path), default_clear_line=False, root_dir=str(Path(__file__).resolve().parent)
    )
    logger = mllog.get_mllogger()
    logger.logger.propagate = False
    logging.getLogger("mllog_default").handlers = logging.getLogger("mllog_default").handlers[-1:]
    _, rows = bad_batch()
    start = int(rows[0][0] * 1e3)
    for key, value in SETTINGS.items():
        logger.event(key, value, time_ms=start)
    logger.start(constants.RUN_START, time_ms=start)
    for wall, step, values in rows:
        at = {"samples_count": 32 * step}
        now = int(wall * 1e3)
        if "train/loss" in values:
            rated = {**at, "lr": values["train/learning_rate"]}
            logger.event("train_loss", values["train/loss"], metadata=rated, time_ms=now)
            tracked = {"grad_norm": values["train/grad_norm"]}
            logger.event("tracked_stats", tracked, metadata=at, time_ms=now)
        if "eval/loss" in values:
            logger.event("eval_accuracy", values["eval/loss"], metadata=at, time_ms=now)
    logger.end(constants.RUN_STOP, metadata={"status": "success"}, time_ms=now)
