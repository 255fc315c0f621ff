"""Reader ``megatron``: the console of Megatron-LM and of what grew out of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from stabcli.assembly import HIDDEN, Reading
from stabcli.readers import reader
from stabcli.run import Fact
from stabcli.sources import Source
from stabcli.textlog import KIND, Grammar, Line, Says, claims, known, readings
from stabcli.textlog.grammar import Config
from stabcli.textlog.machines import DOTTED

_LOSSES = ("lm loss", "lm-loss", "lm_loss", "loss", "sft loss", "masked lm loss")
"""What the forks call the loss, the likeliest first."""
_NOT_LOSS = ("val loss", "z_loss", "load_balancing_loss", "seq_load_balancing_loss",
             "global_load_balancing_loss")  # fmt: skip
_NORM, _SCALE = "grad norm", "loss scale"
_SKIPPED, _NANS = "number of skipped iterations", "number of nan iterations"
_PERPLEXITY_CAP = np.exp(20.0) * (1 - 1e-6)
"""Validation perplexity is exp(min(20, loss)), and Python's min(20, nan) is 20."""


def _finish(frame: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    frame = _without_placeholders(frame, notes)
    frame = _uncapped(frame, notes)
    return _hidden(frame, notes)


def _without_placeholders(frame: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    """Take out the gradient norm and loss scale that DeepSpeed's engine leaves to itself."""
    if not {_NORM, _SCALE} <= set(frame.columns):
        return frame
    if frame[_SCALE].count() and (frame[_SCALE] == -1.0).all() and (frame[_NORM] == 0.0).all():
        notes.append(f"{_NORM!r} is always 0 and {_SCALE!r} -1: not known to this log, left out")
        return frame.drop(_NORM, _SCALE)
    return frame


def _uncapped(frame: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    """Make the perplexity NaN where the validation loss is: it is printed as 4.85e8."""
    if not {"val PPL", "val loss"} <= set(frame.columns):
        return frame
    capped = (pl.col("val PPL") >= _PERPLEXITY_CAP) & ~pl.col("val loss").is_finite()
    hit = capped.fill_null(value=False)
    count = int(frame.select(hit.sum()).item())
    if count:
        notes.append(f"{count:,} validation perplexities are capped at exp(20), the loss NaN")
        value = pl.when(hit).then(float("nan")).otherwise(pl.col("val PPL"))
        frame = frame.with_columns(value.alias("val PPL"))
    return frame


def _hidden(frame: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    """Mark the iterations whose loss was left out because it was NaN.

    Megatron prints a loss only if it is at least 0, which NaN is not, and counts NaN only in
    skipped iterations. Where all iterations of a row were skipped there is no loss to print.
    """
    rows = frame[KIND] == 0.0
    loss = [c for c in _LOSSES if c in frame.columns]
    if not loss:
        other = [c for c in frame.columns if c.endswith(("loss", "Loss")) and c not in _NOT_LOSS]
        loss = other[:1] or [_LOSSES[0]]
    name = loss[0]
    if name not in frame.columns:
        frame = frame.with_columns(pl.lit(None, pl.Float64).alias(name))
    known_loss = frame.select(pl.coalesce(pl.col(c) for c in loss if c in frame.columns))
    absent = rows & known_loss.to_series().is_null()
    if _SKIPPED in frame.columns and absent.any():
        skipped = frame[_SKIPPED].fill_null(0.0)
        window = _window(frame, rows)
        absent &= (skipped < window) | (skipped == 0.0)
    count = int(absent.sum())
    if count:
        notes.append(
            f"{count:,} iterations have no loss though not all of them were skipped:"
            " Megatron leaves out a loss that is NaN"
        )
    elif not frame[name].count():
        return frame.drop(name)
    return frame.with_columns(absent.alias(HIDDEN))


def _window(frame: pl.DataFrame, rows: pl.Series) -> pl.Series:
    """Return how many iterations each row stands for: the distance to the row before."""
    steps = pl.Series(np.where(rows.to_numpy(), frame["step"].to_numpy(), np.nan))
    before = steps.fill_nan(None).fill_null(strategy="forward").shift(1)
    gap = (steps.fill_nan(None) - before).fill_null(1.0)
    return pl.Series(np.where(gap.to_numpy() > 0, gap.to_numpy(), 1.0))


_TRUE = ("True", "1")


def _facts(config: Config) -> dict[str, Fact]:
    """Read what the dump of arguments says only together."""
    facts: dict[str, Fact] = {}
    for key, name in (("bf16", "bf16"), ("fp16", "fp16"), ("fp8", "fp8")):
        value, line = config.get(key, [("", 0)])[0]
        if value in _TRUE or (key == "fp8" and value not in ("", "None", "False")):
            facts["precision"] = Fact(value=name, source=f"line {line}, {key}")
    shards = dict(each[0].rsplit(":", 1) for each in config.get("shard", []))
    if shards:
        line = config["shard"][0][1]
        total = sum(int(n) for n in shards.values())
        facts["parameters"] = Fact(value=total, source=f"line {line}, sum over the ranks")
    size, length = (config.get(k, [("", 0)])[0] for k in ("global_batch_size", "seq_length"))
    rampup = config.get("rampup_batch_size", [("None", 0)])[0][0]
    if size[0].isdigit() and length[0].isdigit() and rampup == "None":
        source = f"lines {size[1]} and {length[1]}, global_batch_size x seq_length"
        facts["tokens_per_step"] = Fact(value=int(size[0]) * int(length[0]), source=source)
    samples, rows = (
        config.get(k, [("", 0)])[0] for k in ("lr_warmup_samples", "global_batch_size")
    )
    if samples[0].isdigit() and int(samples[0]) and rows[0].isdigit() and rampup == "None":
        source = f"lines {samples[1]} and {rows[1]}, lr_warmup_samples / global_batch_size"
        facts["warmup_steps"] = Fact(value=-(-int(samples[0]) // int(rows[0])), source=source)
    neox = config.get("train_batch_size", [("", 0)])[0]
    if neox[0].isdigit() and length[0].isdigit() and not size[0]:
        source = f"lines {neox[1]} and {length[1]}, train_batch_size x seq_length"
        facts["tokens_per_step"] = Fact(value=int(neox[0]) * int(length[0]), source=source)
    return facts


_VALIDATION = Line(
    mark="validation",
    pattern=r"validation (?:loss|results) at (?:the end of training|iteration (?P<step>\d+))"
    r"(?P<_set>[^|]*)",
    separator="|",
    names={
        "lm loss value": "val loss", "lm loss PPL": "val PPL",
        "lm_loss value": "val loss", "lm_loss_ppl value": "val PPL",
    },
    step="last",
    main=False,
)  # fmt: skip


def _unexpected(what: str, column: str) -> Line:
    """Return the line of the check that ends a training at a value that is not finite."""
    return Line(
        mark="Unexpected result",
        pattern=rf"iteration (?P<step>\d+): Unexpected result (?P<value>nan|-?inf) .*?{what}",
        names={"value": column},
        main=False,
    )


GRAMMAR = known(
    Grammar(
        name="megatron",
        lines=(
            Line(
                mark="iteration",
                pattern=r"(?<![,\w] )\biteration\s+(?P<step>\d+)/\s*(?:(?P<total>\d+)|infinity)\s*(?=\|)",
                separator="|",
                names={"lr": "learning rate"},
            ),
            _VALIDATION,
            _unexpected("loss", "lm loss"),
            _unexpected("grad norm", "grad norm"),
        ),
        says=(
            DOTTED,
            Says(
                mark="number of parameters",
                pattern=r"number of parameters on .*rank (?P<shard>\([\d, ]+\): \d+)",
            ),
            Says(mark="world size", pattern=r"using world size: (?P<world_size>\d+)"),
            Says(mark="exiting program", pattern=r"(?P<outcome>exiting program at iteration \d+)"),
            Says(
                mark="saved checkpoint", pattern=r"saved checkpoint .*?iteration\s+(?P<saved>\d+)"
            ),
        ),
        starts="- end of arguments -",
        names={
            "val_loss": "val loss",
            "val_perplexity": "val PPL",
            "tflops_per_gpu": "throughput per GPU (TFLOP/s/GPU)",
            "tokens_per_second_per_gpu": "tokens per gpu per second (tgs)",
            "step_seconds": "elapsed time per iteration (ms)",
        },
        finish=_finish,
        facts=_facts,
    )
)


def matches(source: Source) -> bool:
    """Claim a text log with Megatron's iteration lines."""
    return claims(source, GRAMMAR)


@reader(matches, writes="Megatron-LM, Megatron-Bridge, Megatron-DeepSpeed, BigScience, GPT-NeoX")
def megatron(source: Source) -> Iterator[Reading]:
    """Read iteration lines, validation lines and the dump of arguments.

    Losses are means over the iterations since the line before. A loss that was NaN is left out
    of its line: such rows are marked as hiding one.
    """
    yield from readings(source, GRAMMAR)
