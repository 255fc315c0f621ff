# /// script
# requires-python = ">=3.11"
# dependencies = []
# ///
"""The run of bad_batch.py as golden values of a functional test of Megatron-LM.

Made by this script in the layout of Megatron's tests, not by them: every fifth step, "nan" where
a time was not taken, and ten steps at the end that were planned and never reached.
"""

import json

from places import out_path
from stories import bad_batch

if __name__ == "__main__":
    path = out_path("megatron-golden/golden_values_bad_batch.json", __doc__)
    _, rows = bad_batch(1, 950)
    kept = {}
    for _, step, values in rows:
        if step == 1 or step % 5 == 0:
            kept.setdefault(step, {}).update(values)
    planned = [*kept, *range(955, 1001, 5)]
    columns = {"lm loss": "train/loss", "grad-norm": "train/grad_norm"}
    golden = {
        own: {
            "start_step": 1,
            "end_step": 1000,
            "step_interval": 5,
            "values": {str(s): kept.get(s, {}).get(name, "nan") for s in planned},
        }
        for own, name in columns.items()
    }
    times = {str(s): 0.032 if s in kept and s % 100 == 0 else "nan" for s in planned}
    golden["iteration-time"] = {**golden["lm loss"], "values": times}
    path.write_text(json.dumps(golden) + "\n")
