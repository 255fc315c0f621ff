"""Passes: loops that count anew in each pass over the data, iterations or samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stabcli.textlog.grammar import Config
from stabcli.textlog.layout import TOTAL
from stabcli.textlog.numbers import number

SAMPLES = "samples_seen"
"""Column of the samples of a pass that are done, and of all passes once they are numbered."""
_WHOLE = "@whole"
_MOST = 1 << 31  # passes
_OFF = 1.5
"""Points that a rounded percentage may be off the share that ``at/of`` gives."""
_BATCHES = 16
"""Batch sizes are multiples of it; intervals in which loops print (10, 50, 100, …) are not."""
_LARGE, _APART = 10_000, 200
"""Length of a pass, and distance of its lines, from which they count samples."""


@dataclass(frozen=True, slots=True)
class Unit:
    """What an iteration is in a log that counts samples."""

    samples: float
    """How many of them."""
    is_step: bool
    """Whether they are those of a step; else those between two lines."""


def numbered(frame: pl.DataFrame, notes: list[str], *, from_zero: bool = False) -> pl.DataFrame:
    """Number iterations through all passes: those of the passes before, and its own.

    Args:
        frame: Rows with ``at`` (iterations of the pass that are done), ``of`` (those it has) and,
            where the log names them, ``epoch`` and ``epochs`` (passes planned), in the order of
            the log.
        notes: Receives what was decided.
        from_zero: Whether the first epoch is 0 even where the log does not show it.

    Returns:
        The rows with ``step`` and, where it is known, the last step planned; without ``at``,
        ``of`` and ``epochs``.
    """
    at, of = (frame[c].to_numpy() for c in ("at", "of"))
    fell = np.diff(at) < 0
    if "epoch" in frame.columns and frame["epoch"].null_count() == 0:
        epoch = frame["epoch"].to_numpy().clip(0, _MOST).astype(int)
        epoch = epoch - (0 if (epoch == 0).any() or from_zero else 1)
    else:
        epoch = np.concatenate(([0], np.cumsum(fell)))
    anew = np.diff(epoch) > 0
    usual = float(np.median(of))
    goes_on = anew.any() and not (fell & anew).any() and at.max() > usual / 2 and (at < of).any()
    before = np.zeros(len(at)) if goes_on else _before(epoch, of)
    if "epochs" in frame.columns and not goes_on:
        left = frame["epochs"].fill_null(strategy="forward") - pl.Series(epoch)
        frame = frame.with_columns((left * pl.Series(of) + pl.Series(before)).alias(TOTAL))
    if _WHOLE in frame.columns:
        seen = pl.Series(_before(epoch, frame[_WHOLE].to_numpy()))
        frame = frame.with_columns(pl.col(SAMPLES) + seen)
    lengths = np.unique(of)
    if lengths[-1] <= 1:
        notes.append("nothing counts steps: epochs were taken as the steps")
    elif anew.any() and not goes_on:
        notes.append(
            "iterations are counted anew in each epoch: steps go on through all epochs, of"
            f" {lengths[0]:,.0f} {f'to {lengths[-1]:,.0f} ' if len(lengths) > 1 else ''}iterations each"
        )
    frame = frame.with_columns(pl.Series("step", before + at))
    return frame.drop("at", "of", "epochs", _WHOLE, strict=False)


def _before(epoch: np.ndarray, of: np.ndarray) -> np.ndarray:
    """Return the iterations of all epochs before that of each row; unseen ones were like the next."""
    seen, first = np.unique(epoch, return_index=True)
    lengths = of[first]
    # Epoch e of those seen begins behind the one seen before it and the unseen ones between.
    begins = np.cumsum(np.concatenate(([seen[0] * lengths[0]], np.diff(seen) * lengths[:-1])))
    return np.asarray(begins[np.searchsorted(seen, epoch)], float)


def are_samples(frame: pl.DataFrame, config: Config) -> bool:
    """Say whether lines such as ``[640/60000 (1%)]`` count samples, not iterations.

    PyTorch's example, which such lines come from, counts samples; some of its many children count
    batches. Samples are certain where the percentage, which is taken from the batches, is another
    one than ``at/of``, and where a batch size was said that ``at`` goes by; they are likely where
    it goes by multiples of 16, or at wide intervals through a long pass.

    Args:
        frame: Rows with ``at``, ``of`` and ``percent``.
        config: What the log says of itself.
    """
    at, of, percent = (frame[c].to_numpy() for c in ("at", "of", "percent"))
    every = _interval(at)
    if every <= 1:
        return False
    if (np.abs(100 * at - percent * of) > _OFF * of).any():
        return True
    batch = _said_batch(config)
    if batch is not None and batch > 1:
        return every % batch == 0
    return every % _BATCHES == 0 or (every >= _APART and float(np.median(of)) >= _LARGE)


def iterations(frame: pl.DataFrame, config: Config, notes: list[str]) -> pl.DataFrame:
    """Return rows whose ``at`` and ``of`` count iterations where they counted samples.

    An iteration is a step where the log says the size of a batch, or where the first ``at`` of
    each pass shows it, as in loops that count a batch once it is done. Else it is what lies
    between two lines, and a note says so. Samples are kept beside. The last batch of a pass may
    be short, and these loops count as if all had been: it lies as far from the line before as
    any other.

    Args:
        frame: Rows with ``at``, ``of`` and, where it is known, ``epoch``, in the order of the log.
        config: What the log says of itself.
        notes: Receives what was decided.
    """
    at, of = frame["at"].to_numpy(), frame["of"].to_numpy()
    every = _interval(at)
    begins, ends = _edges(frame)
    gap = np.diff(at, prepend=at[0])
    short = ends & ~begins & (at < of) & ((gap <= 0) | (gap % max(every, 1.0) != 0))
    unit = _unit(at, of, begins, short, config)
    seen = np.where(short, np.concatenate(([0.0], at[:-1])) + every, at)
    if at.max() > of.max():  # each of several processes counts those of all
        of = np.full(len(of), seen.max() + unit.samples)
    length = np.ceil(of / unit.samples)
    what = (
        f"a step is {unit.samples:,.0f} of them"
        if unit.is_step
        else f"the log does not say how many make a step, and lines, {unit.samples:,.0f} samples"
        " apart, were counted as steps; samples_seen has the samples"
    )
    notes.append(f"counts such as {at[-1]:.0f}/{of[-1]:.0f} are of samples, not of steps: {what}")
    done = np.minimum(np.round(seen / unit.samples), length)
    made = {"at": done, "of": length, SAMPLES: np.minimum(seen, of), _WHOLE: of}
    return frame.with_columns(pl.Series(k, v, dtype=pl.Float64) for k, v in made.items())


def _edges(frame: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Say of each row whether it is the first, and whether it is the last, of its pass.

    Where no epochs are named, a pass begins where ``at`` falls, and the last rows are not known.
    """
    if "epoch" in frame.columns and frame["epoch"].null_count() == 0:
        anew = np.diff(frame["epoch"].to_numpy()) != 0
        return np.concatenate(([True], anew)), np.concatenate((anew, [True]))
    anew = np.diff(frame["at"].to_numpy()) < 0
    return np.concatenate(([True], anew)), np.zeros(frame.height, bool)


def _unit(
    at: np.ndarray, of: np.ndarray, begins: np.ndarray, short: np.ndarray, config: Config
) -> Unit:
    """Return what one iteration is in a log that counts samples."""
    every = _interval(at)
    batch = _said_batch(config)
    if batch is not None and every % batch == 0:
        return Unit(batch, is_step=True)
    first = float(at[0])
    alike = 0 < first < every and bool((at[begins] == first).all())
    if alike and not (at[~short & (at < of)] % first).any():
        return Unit(first, is_step=True)
    return Unit(every or max(1.0, float(np.median(of))), is_step=False)


def _said_batch(config: Config) -> float | None:
    """Return the batch size that the log says, where it says one."""
    said = config.get("batch_size") or config.get("train_batch_size") or []
    sizes = {number(text) for text, _ in said}
    size = sizes.pop() if len(sizes) == 1 else None
    return size if size is not None and 1 <= size < _MOST else None


def _interval(at: np.ndarray) -> float:
    """Return what usually lies between two lines of one pass; 0 where it has one line."""
    gaps = np.diff(at)
    return float(np.median(gaps[gaps > 0])) if (gaps > 0).any() else 0.0
