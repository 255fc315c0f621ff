"""Held out: whether a perplexity that only bears that name is of validation or of training."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from stabcli.metrics import normalise
from stabcli.spellings import as_number

_BARE = frozenset({"ppl", "perplexity", "train_ppl", "train/ppl", "train_perplexity",
                   "train/perplexity", "training_perplexity"})  # fmt: skip
_AGREE = 0.02
"""Relative distance of a loss and the logarithm of its perplexity, both rounded."""
_MOST = 0.9
"""Share of the rows in which they must agree, or which must hold both."""


def of_training(table: pl.DataFrame, columns: Mapping[str, str]) -> bool:
    """Say whether the column taken for ``val_perplexity`` is e to the training loss of its row.

    It is where its logarithm is that loss in nearly all rows that hold both; or where none is to
    be compared with, if nothing else is of validation and nearly every loss has one beside it.

    Args:
        table: The raw rows of a log.
        columns: Canonical name -> the log's own.
    """
    name, loss = columns.get("val_perplexity"), columns.get("loss")
    if name is None or loss is None or normalise(name) not in _BARE:
        return False
    value, beside = as_number(table[name]), as_number(table[loss])
    if value is None or beside is None:
        return False
    both = pl.DataFrame({"ppl": value, "loss": beside}).drop_nulls()
    if not both.height:
        return False
    near = np.abs(both["ppl"].clip(1e-9).log() - both["loss"]) <= _AGREE * both["loss"].abs()
    if near.mean() >= _MOST:
        return True
    return "val_loss" not in columns and both.height >= _MOST * beside.count()
