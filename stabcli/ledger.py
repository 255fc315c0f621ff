"""Ledger: the steps, tokens and GPU time that each row of a run stands for.

A logged row stands for the steps since the row before it in its attempt. What a row cost is
taken from the best source at hand, and the ledger says which that was. Time that no source gives
is filled in from the run's usual pace only where that is said among the assumptions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from stabcli.clocks import FEWEST, Clock, read_clock
from stabcli.efficiency import flops_of_token, peak_tflops
from stabcli.run import Run
from stabcli.units import Seconds, number

HOUR: Seconds = 3600.0
TRILLION = 1e12
AROUND = 101
"""Rows whose usual tokens a step holds, where those come from tokens/s and a clock."""
COARSE: Seconds = 20.0
"""Usual time of a row below which a clock of whole seconds is off by more than 2 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What each of a run's n rows stands for, in the order of the frame."""

    steps: np.ndarray
    """Optimizer steps, int64 of shape (n,)."""
    tokens: np.ndarray | None
    """Training tokens, float64 of shape (n,)."""
    gpus: np.ndarray | None
    """GPUs in use, float64 of shape (n,)."""
    seconds: np.ndarray | None
    """Wall clock of the row, float64 of shape (n,); without ``gaps``."""
    gaps: np.ndarray | None
    """Seconds between the last row of the attempt before and the first steps of this one."""
    usual: np.ndarray | None
    """Seconds the row takes at the run's usual pace, where that is less; else ``seconds``."""
    stands: np.ndarray
    """Whether the time above the usual is a standstill, not slowness; bool of shape (n,)."""
    gpu_seconds: np.ndarray | None
    """GPU-seconds of the row, without ``gaps``."""
    gap_gpu_seconds: np.ndarray
    """GPU-seconds of ``gaps``; zeros where no clock shows them."""
    sources: Mapping[str, str]
    """Where ``tokens`` and ``gpu_hours`` come from, in words."""
    assumptions: tuple[str, ...]
    """What was assumed, and what is unknown for want of which flag."""


def ledger(run: Run) -> Ledger:
    """Return what each row of a run stands for."""
    return run.once("ledger", lambda: _drawn_up(run))


def _drawn_up(run: Run) -> Ledger:
    notes: list[str] = []
    sources: dict[str, str] = {}
    steps = steps_of_rows(run)
    tokens, sources["tokens"] = _tokens(run, steps)
    gpus, gpus_source = _gpus(run)
    clock = read_clock(run, steps, tokens, gpus, notes)
    if tokens is None:
        tokens, sources["tokens"] = _tokens_of_time(run, steps, clock)
    if _endless(tokens):
        notes.append(f"{sources['tokens']} adds up to no finite number of tokens: not believed")
        tokens, sources["tokens"] = None, "unknown"
    if tokens is None:
        notes.append("tokens: unknown: add --tokens-per-step N")
    gpu_seconds, source = _gpu_seconds(run, tokens, gpus, clock)
    if _endless(gpu_seconds):
        notes.append(f"{source} adds up to no finite time: not believed")
        gpu_seconds, source = None, None
    gaps = np.zeros(len(steps))
    if source is None:
        notes.append(_what_is_missing(tokens, gpus, clock))
        source = "unknown"
    elif clock is not None and source == clock.source and gpus is not None:
        before = np.concatenate([gpus[:1], gpus[:-1]])
        gaps = clock.gaps * before
        source = f"{clock.source} x {gpus_source}"
        if (gaps > 0).any():
            notes.append(
                "downtime counts the GPUs of the attempt before as held, and holds the steps that"
                " ran after its last logged row"
            )
    sources["gpu_hours"] = source
    return Ledger(
        steps=steps,
        tokens=tokens,
        gpus=gpus,
        seconds=clock.seconds if clock else None,
        gaps=clock.gaps if clock else None,
        usual=clock.usual if clock else None,
        stands=clock.stands if clock else np.zeros(len(steps), bool),
        gpu_seconds=gpu_seconds,
        gap_gpu_seconds=gaps,
        sources=sources,
        assumptions=tuple(notes),
    )


def _endless(figures: np.ndarray | None) -> bool:
    return figures is not None and not np.isfinite(figures.sum())


def steps_of_rows(run: Run) -> np.ndarray:
    """Return the steps each row stands for: those since the row before it in its attempt.

    The first row of an attempt stands for one logging interval, or for all steps up to it where
    that is less.
    """
    step = run.frame["step"].to_numpy()
    attempt = run.frame["attempt"].to_numpy()
    interval = run.log_interval or 1
    covered = np.diff(step, prepend=step[:1])
    first = np.concatenate([[True], attempt[1:] != attempt[:-1]])
    covered[first] = np.clip(step[first], 1, interval)
    return np.maximum(covered, 0).astype(np.int64)


def given(run: Run, fact: str) -> bool:
    """Say whether the user gave a fact by a flag or a setting, which overrules what the rows say."""
    known = run.facts.get(fact)
    if known is None or ", " in known.source:
        return False
    return known.source.startswith(("--", "STABCLI_", "argument ")) or known.source.endswith(
        ".toml"
    )


def _tokens(run: Run, steps: np.ndarray) -> tuple[np.ndarray | None, str]:
    """Return the tokens of every row, and where they come from."""
    per_step = run.fact("tokens_per_step")
    if per_step and given(run, "tokens_per_step"):
        return steps * per_step, "--tokens-per-step"
    if (counted := _counter(run, "tokens_seen", steps)) is not None:
        return counted, f"column {run.word('tokens_seen')}"
    if (batch := _filled(run, "batch_tokens")) is not None:
        return steps * batch, f"column {run.word('batch_tokens')}"
    length = run.fact("sequence_length")
    if length:
        where = f" x sequence length {length:,.0f}"
        if (counted := _counter(run, "samples_seen", steps)) is not None:
            return counted * length, f"column {run.word('samples_seen')}{where}"
        if (batch := _filled(run, "batch_sequences")) is not None:
            return steps * batch * length, f"column {run.word('batch_sequences')}{where}"
    if per_step:
        return steps * per_step, f"tokens_per_step: {run.facts['tokens_per_step'].source}"
    sequences = run.fact("batch_sequences")
    if length and sequences:
        return steps * sequences * length, f"{sequences:,.0f} sequences a step{where}"
    return None, "unknown"


def _counter(run: Run, metric: str, steps: np.ndarray) -> np.ndarray | None:
    """Return the increase of a running total in every row; None where it does not rise.

    Rows without the total get their share of the rise around them; the steps before the first
    total of an attempt, and those after its last, get the usual rise of a step.
    """
    if not run.has(metric):
        return None
    total = run.array(metric)
    attempt = run.frame["attempt"].to_numpy()
    known = np.isfinite(total)
    rise = np.full(len(total), np.nan)
    for a in np.unique(attempt[known]):
        rows = np.flatnonzero(attempt == a)
        reached = np.cumsum(steps[rows])
        at = np.flatnonzero(known[rows])
        if len(at) < 2:
            continue
        inner = rows[at[0] + 1 : at[-1] + 1]
        rise[inner] = np.diff(np.interp(reached[at[0] : at[-1] + 1], reached[at], total[rows][at]))
    inner_rows = np.isfinite(rise)
    if not inner_rows.any() or (rise[inner_rows] < 0).any() or not rise[inner_rows].sum() > 0:
        return None
    usual = float(np.median(rise[inner_rows] / np.maximum(steps[inner_rows], 1)))
    return np.where(inner_rows, rise, steps * usual)


def _filled(run: Run, metric: str) -> np.ndarray | None:
    """Return a column whose gaps hold what was logged last in the attempt, or else next."""
    if not run.has(metric):
        return None
    column = run.frame.select(
        pl.when(pl.col(metric).is_finite() & (pl.col(metric) > 0))
        .then(pl.col(metric))
        .fill_null(strategy="forward")
        .over("attempt")
        .fill_null(strategy="backward")
        .fill_null(strategy="forward")
    )[metric]
    return column.to_numpy() if column.null_count() == 0 else None


def _gpus(run: Run) -> tuple[np.ndarray | None, str]:
    """Return the GPUs of every row, and where the count comes from."""
    fact = run.fact("gpus")
    if fact and given(run, "gpus"):
        return np.full(run.frame.height, fact), f"{_gpus_in_words(fact)} (--gpus)"
    if (column := _filled(run, "gpus")) is not None:
        low, high = column.min(), column.max()
        count = f"{low:,.0f}" if low == high else f"{low:,.0f} to {high:,.0f}"
        return column, f"{count} GPUs (column {run.word('gpus')})"
    if fact:
        return np.full(
            run.frame.height, fact
        ), f"{_gpus_in_words(fact)} ({run.facts['gpus'].source})"
    return None, "unknown"


def _gpus_in_words(count: float) -> str:
    return f"{count:,.0f} GPU" + ("" if count == 1 else "s")


def _tokens_of_time(
    run: Run, steps: np.ndarray, clock: Clock | None
) -> tuple[np.ndarray | None, str]:
    """Return tokens as time x tokens/s, where nothing else gives them.

    A step holds what is usual around it, the median of ``AROUND`` rows of its attempt: so a pause
    that a row waits for holds no tokens, a slow step holds as many as a fast one, and a batch that
    grows is followed. Whole seconds of short steps have a median that is off by up to half a
    second; there it is the mean over the rows within a second of the median.
    """
    rate = _filled(run, "tokens_per_second")
    if rate is None or clock is None:
        return None, "unknown"
    told = pl.DataFrame(
        {
            "attempt": run.frame["attempt"],
            "steps": steps,
            "seconds": clock.seconds,
            "tokens": rate * clock.seconds,
        }
    ).with_columns(middle=_around(pl.col("seconds").rolling_median))
    whole = (clock.seconds == np.round(clock.seconds)).mean() > 0.9
    if whole and np.median(clock.seconds) < COARSE:
        near = (pl.col("seconds") - pl.col("middle")).abs() <= 1.0
        told = told.with_columns(pl.when(near).then(pl.col("steps", "tokens")))
        a_step = _around(pl.col("tokens").rolling_mean) / _around(pl.col("steps").rolling_mean)
    else:
        known = pl.when(pl.col("steps") > 0)
        told = told.with_columns(a_step=known.then(pl.col("tokens") / pl.col("steps")))
        a_step = _around(pl.col("a_step").rolling_median)
    usual = told.select(a_step.alias("usual"))["usual"].to_numpy()
    in_all = (clock.usual * rate).sum() / max(1, steps.sum())  # of attempts of too few rows
    return steps * np.where(
        np.isfinite(usual), usual, in_all
    ), f"column {run.word('tokens_per_second')} x {clock.source}"


def _around(rolled: Callable[..., pl.Expr]) -> pl.Expr:
    return rolled(AROUND, center=True, min_samples=FEWEST).over("attempt")


def _gpu_seconds(
    run: Run, tokens: np.ndarray | None, gpus: np.ndarray | None, clock: Clock | None
) -> tuple[np.ndarray | None, str | None]:
    """Return the GPU-seconds of every row by the first source that gives them."""
    if clock is not None and gpus is not None:
        return clock.seconds * gpus, clock.source
    if tokens is None:
        return None, None
    if (rate := _filled(run, "tokens_per_second_per_gpu")) is not None:
        return tokens / rate, f"tokens / column {run.word('tokens_per_second_per_gpu')}"
    if hours := run.fact("gpu_hours_per_trillion"):
        where = run.facts["gpu_hours_per_trillion"].source
        return tokens * (hours * HOUR / TRILLION), (
            f"{hours:,.0f} GPU-hours per 1T tokens ({where})"
        )
    flops = flops_of_token(run)
    if flops is None:
        return None, None
    if (done := _filled(run, "tflops_per_gpu")) is not None:
        return tokens * flops.value / (done * 1e12), (
            f"tokens x {flops.formula} / column {run.word('tflops_per_gpu')}"
        )
    top, where = peak_tflops(run)
    utilisation = run.fact("mfu")
    if top and (share := utilisation or _filled(run, "mfu")) is not None:
        said = (
            f"{100 * utilisation:.3g} % MFU ({run.facts['mfu'].source})"
            if utilisation
            else f"column {run.word('mfu')}"
        )
        return tokens * flops.value / (top * 1e12 * share), (
            f"tokens x {flops.formula} / ({number(top)} TFLOP/s ({where}) x {said})"
        )
    return None, None


def _what_is_missing(
    tokens: np.ndarray | None, gpus: np.ndarray | None, clock: Clock | None
) -> str:
    """Name the flag that would make GPU-hours known with the least typing."""
    if clock is not None and gpus is None:
        return "GPU-hours: unknown: add --gpus N"
    if tokens is None:
        return "GPU-hours: unknown: the log has no clock: add --tokens-per-step N and --gpu-hours-per-trillion H"
    return (
        "GPU-hours: unknown: the log has no clock: add --gpu-hours-per-trillion H,"
        " or --gpu NAME, --params N and --mfu X"
    )


def contradictions(run: Run, book: Ledger) -> list[str]:
    """Say where facts contradict one another by more than a quarter."""
    found: list[str] = []
    if book.seconds is None or book.usual is None or book.tokens is None:
        return found
    usual = book.usual
    with np.errstate(divide="ignore", invalid="ignore"):
        pace = book.tokens / usual
        if run.has("tokens_per_second") and "x column" not in book.sources["gpu_hours"]:
            ratio = _median(run.array("tokens_per_second") / pace)
            hint = "check --tokens-per-step"
            if book.gpus is not None and ratio and _same(ratio * float(np.median(book.gpus)), 1):
                hint = "it looks like the tokens/s of one GPU"
            _object(found, ratio, f"{run.word('tokens_per_second')} x time", hint)
        if run.has("tokens_per_second_per_gpu") and book.gpus is not None:
            ratio = _median(run.array("tokens_per_second_per_gpu") * book.gpus / pace)
            _object(
                found,
                ratio,
                f"{run.word('tokens_per_second_per_gpu')} x GPUs x time",
                "check --gpus and --tokens-per-step",
            )
    stated = run.fact("gpu_hours_per_trillion")
    if stated and book.gpu_seconds is not None:
        total = float(book.tokens.sum())
        rate = float((usual * book.gpus).sum() if book.gpus is not None else 0) / HOUR
        if total > 0 and rate > 0 and not _same(rate / total * TRILLION / stated, 1):
            found.append(
                f"contradiction: the log's clock gives {rate / total * TRILLION:,.0f} GPU-hours"
                f" per 1T tokens, {run.facts['gpu_hours_per_trillion'].source} says"
                f" {stated:,.0f}: {book.sources['gpu_hours']} was used"
            )
    return found


def _median(ratio: np.ndarray) -> float | None:
    known = ratio[np.isfinite(ratio) & (ratio > 0)]
    return float(np.median(known)) if len(known) else None


def _same(a: float, b: float) -> bool:
    return bool(0.8 <= a / b <= 1.25)


def _object(found: list[str], ratio: float | None, what: str, hint: str) -> None:
    if ratio is not None and not _same(ratio, 1):
        found.append(
            f"contradiction: {what} makes {ratio:.3g} times the tokens counted otherwise: {hint}"
        )
