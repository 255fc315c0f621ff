"""Held out: a bare perplexity is of training or of validation, as the losses beside it say."""

import json
import math
from pathlib import Path

import pytest

from stabcli.readers import read_runs
from stabcli.run import Run

STEPS = range(1, 101)


def read(path: Path, rows: list[dict[str, float]]) -> Run:
    """Write rows and read the run in them."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_runs([str(path)])[0][0]


def loss(step: int) -> float:
    """Return a loss that falls."""
    return 3.0 - step / 100


@pytest.mark.parametrize("name", ["ppl", "perplexity", "train/ppl"])
@pytest.mark.parametrize("val", [True, False])
def test_e_to_the_training_loss_is_of_training(name: str, *, val: bool, tmp_path: Path):
    """It is no validation perplexity, and a note says so."""
    rows = [{"step": s, "loss": loss(s), name: round(math.exp(loss(s)), 2)} for s in STEPS]
    for row in rows[::20] if val else []:
        row["val_loss"] = row["loss"] + 0.5
    run = read(tmp_path / "log.jsonl", rows)

    assert not run.has("val_perplexity")
    assert run.frame[name].count() == len(STEPS)
    assert any("perplexity of training" in note for note in run.notes)


def test_beside_every_loss_it_is_of_training(tmp_path: Path):
    """A smoothed loss is not its logarithm; what stands in every row is still of training."""
    rows = [{"step": s, "loss": loss(s), "ppl": math.exp(loss(s) + 0.3)} for s in STEPS]

    assert not read(tmp_path / "log.jsonl", rows).has("val_perplexity")


@pytest.mark.parametrize("apart", [True, False])
def test_e_to_the_validation_loss_is_of_validation(tmp_path: Path, *, apart: bool):
    """In rows of its own or beside the training loss, and with a validation loss or without."""
    rows: list[dict[str, float]] = []
    for s in STEPS:
        rows.append({"step": s, "loss": loss(s)})
        if s % 20 == 0:
            found = {"val_loss": loss(s) + 0.5, "ppl": math.exp(loss(s) + 0.5)}
            if apart:
                rows.append({"step": s, "ppl": found["ppl"]})
            else:
                rows[-1] |= found
    run = read(tmp_path / "log.jsonl", rows)

    assert run.frame["val_perplexity"].count() == 5


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf, -1.0])
def test_what_is_no_perplexity_is_survived(value: float, tmp_path: Path):
    """Zeros, NaN and infinities beside the loss are read."""
    rows = [{"step": s, "loss": loss(s), "ppl": value} for s in STEPS]

    assert read(tmp_path / "log.jsonl", rows).frame.height == len(STEPS)
