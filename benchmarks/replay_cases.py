"""The models, the planted faults and the tally of the replay benchmark."""

import math
import os
import pickle
import statistics
import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from tokenizers import Tokenizer

from tests.replay import faults, models


FIRST_SEED = 10_000
STEPS, OLDER = 300, 150
UNSTRUCTURED = (
    "random-ids-6",
    "random-ids-1",
    "never-trained-6",
    "never-trained-40",
    "never-trained-120",
    "padded-row-6",
    "padded-row-40",
    "one-id",
    "poisoned-context-60",
)
STRUCTURED = ("mojibake", "repeated-ngrams")


def text_of(cache: Path) -> models.Text:
    path = cache / "text.pkl"
    if not path.exists():
        made = models.text()
        parts = made.tokenizer.to_str(), made.train, made.clean, made.foreign, made.counts
        path.write_bytes(pickle.dumps(parts))
    tokenizer, *streams = pickle.loads(path.read_bytes())
    return models.Text(Tokenizer.from_str(tokenizer), *streams)


def model_of(cache: Path, text: models.Text, arch: str, seed: int, steps: int = STEPS):
    """A trained model and its optimizer's state; trained on the first call."""
    path = cache / f"{arch}-{seed}-{steps}.pt"
    if not path.exists():
        print(f"training {arch} (seed {seed}) …", file=sys.stderr, flush=True)
        models.train_and_keep(arch, text, seed, STEPS, OLDER, cache)
    model = models.untrained(arch, text.rows, seed=seed)
    kept = torch.load(path, weights_only=True)
    model.load_state_dict(kept["model"])
    return model.eval(), kept["optimizer"]


def kinds(plant: faults.Planter):
    return {
        "clean": plant.untouched,
        "random-ids-6": plant.random_ids,
        "random-ids-1": lambda s: plant.random_ids(s, 1, 0.375),
        "never-trained-6": lambda s: plant.never_trained(s, 1, 6),
        "never-trained-40": plant.never_trained,
        "never-trained-120": lambda s: plant.never_trained(s, 2, 120),
        "padded-row-6": lambda s: plant.padded_row(s, 6),
        "padded-row-40": plant.padded_row,
        "mojibake": plant.mojibake,
        "one-id": plant.one_id,
        "repeated-ngrams": plant.ngrams,
        "foreign-rows": plant.foreign,
        "outside-id": plant.outside,
        "negative-id": lambda s: plant.outside(s, negative=True),
        "labels-shifted": plant.labels_shifted,
        "labels-permuted": plant.labels_permuted,
        "padding-trained": plant.padding_trained,
        "all-masked": plant.all_masked,
    }


class Tally:
    """Results of all cases, by kind."""

    def __init__(self):
        self.rows = defaultdict(list)

    def add(self, arch, case, verdict, seconds):
        named, planted = set(verdict.positions), case.places
        listed = {p for c in verdict.listed for p in c.positions}
        n = verdict.numbers
        moved = n.get("loss", 0) > n.get("loss_band", 1) or n.get("grad_norm", 0) > n.get(
            "grad_norm_band", 1
        )
        ids = set(verdict.token_ids)
        self.rows[case.name].append(
            dict(
                arch=arch, kind=verdict.kind, right=faults.right(case, verdict), moved=moved,
                precision=len(named & planted) / len(named) if named else None,
                recall=len(named & planted) / len(planted) if planted else None,
                listed=len((named | listed) & planted) / len(planted) if planted else None,
                ids=len(ids), innocent=len(ids - case.ids), explained=n.get("explained"),
                placebo=n.get("placebo"), sufficient=n.get("sufficient"), coverage=n.get("share_coverage"),
                forward=verdict.forward_passes, backward=verdict.backward_passes, seconds=seconds,
                convicted=verdict.kind.startswith(("data", "batch")), confidence=verdict.confidence,
            )
        )  # fmt: skip

    def of(self, names=None, **conditions):
        return [
            r for name, rows in self.rows.items() if names is None or name in names
            for r in rows if all(r[k] == v for k, v in conditions.items())
        ]  # fmt: skip


def mean(values):
    values = [v for v in values if v is not None]
    return statistics.fmean(values) if values else math.nan


def median(values):
    values = [v for v in values if v is not None]
    return statistics.median(values) if values else math.nan


def line(what, least, got, ok):
    print(f"{what:64} {least:>16} {got:>30}  {'reached' if ok else 'MISSED'}")
