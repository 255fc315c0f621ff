"""Reader ``hf-stdout``: what transformers' Trainer prints, dictionaries among progress bars."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from stabcli.assembly import LINE, Reading
from stabcli.readers import reader
from stabcli.run import Fact
from stabcli.sources import Source
from stabcli.textlog import BAR, OF, Grammar, Line, Says, claims, known, readings
from stabcli.textlog.grammar import Config
from stabcli.textlog.numbers import number

_END = "train_runtime"
"""Stands in the dictionary that ends a training: means over all of it, no step."""
_PAIR = r"'(?P<name>[^']+)':\s*(?P<value>'[^']*'|\w+\([^)]*\)|[^,{}\[\]]+)(?=[,}])"
_SPEED = "train_speed(iter/s)"
_SLOPE_ROWS = 3  # rows from which the slope of the epochs is told
_DIGIT = 0.01  # epochs, the last digit that older versions print
_NEAR = 0.2  # share of a logging interval by which a bar, drawn ten times a second, may lag


def _steps(frame: pl.DataFrame, config: Config, notes: list[str]) -> pl.DataFrame:
    """Give each dictionary the step that the bar before it showed, or else count them."""
    if _END in frame.columns:
        ended = frame.filter(pl.col(_END).is_not_null())
        frame = frame.filter(pl.col(_END).is_null()).drop(_END)
        if ended.height:
            times = ", ".join(str(n) for n in ended[LINE].head(3))
            notes.append(f"a training ended in line {times}: means over all of it are no step")
    if not frame.height or ("step" in frame.columns and not frame["step"].null_count()):
        return frame
    evaluated = [pl.col(c).is_not_null() for c in frame.columns if c.startswith("eval_")]
    is_eval = frame.select(pl.any_horizontal(evaluated)).to_series() if evaluated else None
    train = ~is_eval.to_numpy() if is_eval is not None else np.ones(frame.height, bool)
    step = np.full(frame.height, np.nan)
    step[train] = _of_training(frame.filter(pl.Series(train)), config, notes)
    given = pl.Series("step", step).fill_nan(None)
    if not train.any():
        given = pl.Series("step", np.arange(1, frame.height + 1), dtype=pl.Float64)
    given = given.fill_null(strategy="forward").fill_null(strategy="backward")
    return frame.with_columns(given)


def _of_training(frame: pl.DataFrame, config: Config, notes: list[str]) -> np.ndarray:
    """Return the steps of the rows of training."""
    height = frame.height
    begins = np.zeros(height, bool)
    begins[:1] = True
    if "epoch" in frame.columns:
        begins[1:] = np.diff(frame["epoch"].fill_null(strategy="forward").to_numpy()) < 0
    part = np.cumsum(begins)
    total = number(config["planned"][-1][0]) if "planned" in config else None
    if BAR in frame.columns and frame[BAR].null_count() == 0:
        shown = frame[BAR].to_numpy()
        of = frame[OF].to_numpy()
        rises = (np.diff(shown) > 0) | (np.diff(part) > 0) | (np.diff(of) != 0)
        if rises.all() and (height > 1 or shown[0] > 0):
            return _snapped(shown)
        total = total or float(np.median(of))
    steps = np.zeros(height)
    for number_of_part in np.unique(part):
        rows = part == number_of_part
        count = int(rows.sum())
        by_epochs = _by_epochs(frame.filter(pl.Series(rows)), config)
        if by_epochs is not None:
            steps[rows] = by_epochs
            every = int(by_epochs[-1] - by_epochs[-2])
            notes.append(
                f"no steps in the log: those of {count:,} rows follow from their epochs, one in {every}"
            )
            continue
        every = int(total // count) if total and total >= count else 1
        if total and not every * count <= total < every * (count + 1):
            every = 1
        steps[rows] = every * np.arange(1, count + 1)
        notes.append(
            f"no steps in the log: {count:,} rows were counted, one in {every} of {total:,.0f} steps"
            if total
            else f"no steps in the log: {count:,} rows were counted, each as one step"
        )
    return steps


def _by_epochs(frame: pl.DataFrame, config: Config) -> np.ndarray | None:
    """Return the steps of a stretch of training by its epochs; None where they do not tell them.

    The Trainer logs each k steps, and epochs to the second or fourth digit: their slope gives k,
    and all of them together the first step. How many steps an epoch has is told by the examples
    and the batch size, or by all steps and epochs.
    """
    if frame.height < _SLOPE_ROWS or "epoch" not in frame.columns or frame["epoch"].null_count():
        return None
    line = int(frame[LINE][0])
    examples, batch, total, epochs = (
        _said(config, key, line)
        for key in ("examples", "total_train_batch_size", "planned", "epochs")
    )
    if examples and batch:
        an_epoch = examples / batch
    elif total and epochs:
        an_epoch = total / epochs
    else:
        return None
    shown = frame["epoch"].to_numpy() * an_epoch
    rows = np.arange(frame.height)
    slope = (shown[-1] - shown[0]) / rows[-1]
    error = _DIGIT * an_epoch / rows[-1]
    every = _roundest(slope - error, slope + error)
    if every is None:
        return None
    first = max(1.0, round(float(np.median(shown - every * rows)) / every)) * every
    steps = first + every * rows
    far = np.abs(steps - shown).max() > _DIGIT * an_epoch + every
    return None if far or (total is not None and steps[-1] > total) else steps


def _said(config: Config, key: str, line: int) -> float | None:
    """Return the last number that a banner before a line gives."""
    before = [text for text, at in config.get(key, []) if at < line]
    return number(before[-1]) if before else None


def _roundest(low: float, high: float) -> int | None:
    """Return the roundest whole number between two, the nearest to their middle of those."""
    for unit in (1000, 500, 100, 50, 25, 10, 5, 2, 1):
        nearest = round((low + high) / 2 / unit) * unit
        if nearest >= 1 and low <= nearest <= high:
            return nearest
    return None


def _snapped(shown: np.ndarray) -> np.ndarray:
    """Move steps that a bar showed a little late to where the Trainer logs: each k steps."""
    gaps = np.diff(shown)
    every = float(np.median(gaps[gaps > 0])) if (gaps > 0).any() else 1.0
    nearest = np.round(shown / every) * every
    close = (np.abs(nearest - shown) <= _NEAR * every) & (nearest > 0)
    moved = np.where(close, nearest, shown)
    return moved if len(np.unique(moved)) == len(np.unique(shown)) else shown


def _finish(frame: pl.DataFrame, _: list[str]) -> pl.DataFrame:
    """Make times of ms-swift's speeds."""
    if _SPEED not in frame.columns:
        return frame
    return frame.with_columns(step_seconds=pl.when(pl.col(_SPEED) > 0).then(1 / pl.col(_SPEED)))


def _facts(config: Config) -> dict[str, Fact]:
    facts: dict[str, Fact] = {}
    parts = [
        config.get(k, [("", 0)])[0] for k in ("total_train_batch_size", "per_device", "accumulated")
    ]
    counts = [number(text) for text, _ in parts]
    if all(counts):
        whole, device, accumulated = (c or 1.0 for c in counts)
        gpus = whole / (device * accumulated)
        if gpus >= 1 and gpus == round(gpus):
            source = f"line {parts[0][1]}, total batch / (batch per device x accumulation)"
            facts["gpus"] = Fact(value=int(gpus), source=source)
    if "parameters" not in config and "trainable" in config:
        text, line = config["trainable"][0]
        count = number(text)
        if count:
            facts["parameters"] = Fact(value=int(count), source=f"line {line}, trainable only")
    return facts


GRAMMAR = known(
    Grammar(
        name="hf-stdout",
        lines=(
            Line(
                mark="global_step/max_steps",
                pattern=r"\{(?=[^{}]*'global_step/max_steps':\s*'?(?P<step>\d+)/(?P<total>\d+))",
                pair=_PAIR,
                without=frozenset({"total_flos", "global_step/max_steps"}),
            ),
            Line(
                mark="{'",
                pattern=r"\{(?=[^{}]*'(?:loss|eval_loss|train_loss|reward|train_runtime|eval_\w+)':)",
                pair=_PAIR,
                without=frozenset({"total_flos"}),
                step="bar",
            ),
        ),
        says=(
            Says(mark="Num examples", pattern=r"Num examples = (?P<examples>[\d,]+)"),
            Says(mark="Num Epochs", pattern=r"Num Epochs = (?P<epochs>[\d,]+)"),
            Says(mark="optimization steps", pattern=r"Total optimization steps = (?P<planned>[\d,]+)"),
            Says(mark="Total steps", pattern=r"Total steps = (?P<planned>[\d,]+)"),
            Says(mark="Total train batch", pattern=r"Total train batch size .*= (?P<total_train_batch_size>[\d,]+)"),
            Says(mark="batch size per device", pattern=r"batch size per device = (?P<per_device>\d+)"),
            Says(mark="Accumulation steps", pattern=r"Gradient Accumulation steps = (?P<accumulated>\d+)"),
            Says(mark="trainable parameters", pattern=r"Number of trainable parameters = (?P<trainable>[\d,]+)"),
            Says(mark="world size: ", pattern=r"Process rank: \d+, world size: (?P<world_size>\d+)"),
            Says(mark="compute dtype: ", pattern=r"compute dtype: torch\.(?P<dtype>\w+)"),
            Says(mark="Num GPUs used", pattern=r"Num GPUs used = (?P<num_gpus>\d+)"),
            Says(mark="Trainable parameters = ", pattern=r"Trainable parameters = [\d,]+ of (?P<parameters>[\d,]+)"),
            Says(mark="Trainable parameters = ", pattern=r"Trainable parameters = (?P<trainable>[\d,]+)"),
            Says(mark="checkpoint-", pattern=r"(?i)\bsav\w+ .*?checkpoint-(?P<saved>\d+)\b"),
            Says(mark="all params:", pattern=r"all params: (?P<parameters>[\d,]+)"),
        ),
        steps=_steps,
        finish=_finish,
        facts=_facts,
        bars=True,
        planned="planned",
        ends=f"'{_END}'",
    )
)  # fmt: skip


def matches(source: Source) -> bool:
    """Claim a text log with lines such as ``{'loss': 2.09, 'learning_rate': 0.0005, …}``."""
    return claims(source, GRAMMAR)


@reader(matches, writes="transformers' Trainer, TRL, axolotl, LLaMA-Factory: console")
def hf_stdout(source: Source) -> Iterator[Reading]:
    """Read dictionaries; the steps come from the progress bars, for the dictionaries have none.

    Where there are no bars, or standard output was written apart from them, the steps follow from
    the epochs and what the banner says of examples, batch size and steps; or else rows are counted:
    each stands for the planned steps over the number of rows, or for one. A note says so.
    """
    yield from readings(source, GRAMMAR)
