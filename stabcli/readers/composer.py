"""Reader ``composer``: the console of Composer and llm-foundry, a line a value."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from stabcli.assembly import Reading
from stabcli.readers import reader
from stabcli.sources import Source
from stabcli.textlog import Grammar, Line, Says, claims, known, readings
from stabcli.textlog.grammar import Config
from stabcli.textlog.records import MARK, joined

_VALUE = r"(?P<name>\S[^:]{0,250}):\s(?P<value>.*\S)"
_BATCH = "time/batch"
"""Batches done before the one of the row, where a schedule counts in tokens, samples or epochs."""
_HEADS = (0, 1, 2, 3)
"""Kinds of lines that begin a record."""
_COARSE = 0.001
"""A learning rate below this has no two digits left when it is printed to four decimal places."""


def _steps(frame: pl.DataFrame, _: Config, notes: list[str]) -> pl.DataFrame:
    """Make rows of records, and count batches where the heads count something else."""
    rows = joined(frame, _HEADS, notes)
    if _BATCH in rows.columns and "count" in rows.columns:
        own = pl.col("step") if "step" in rows.columns else pl.lit(None, pl.Float64)
        step = pl.coalesce(own, pl.col(_BATCH) + 1)
        rows = rows.with_columns(step=step.fill_null(strategy="forward"))
        notes.append(f"heads count no batches: steps are {_BATCH!r} and one")
    return rows.drop("count", strict=False)


def _finish(frame: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    """Call the first learning rate so; one that was rounded too coarsely to be used is not."""
    rates = [c for c in frame.columns if c.startswith("lr-")]
    if not rates:
        return frame
    highest = frame[rates[0]].max()
    if isinstance(highest, float) and highest >= _COARSE:
        return frame.rename({rates[0]: "lr/group0"})
    notes.append(f"{rates[0]!r} is printed to four decimal places: too coarse to be looked at")
    return frame


GRAMMAR = known(
    Grammar(
        name="composer",
        lines=(
            Line(
                mark="batch=",
                pattern=r"^\[batch=(?P<step>(?P<record>\d+))(?:/(?P<total>\d+))?\]:\s*$",
                names={"record": MARK},
            ),
            Line(
                mark="][batch=",
                pattern=r"^\[epoch=(?P<epoch>\d+)(?:/\d+)?\]\[batch=(?P<step>(?P<record>\d+))"
                r"(?:/\d+)?\]:\s*$",
                names={"record": MARK},
            ),
            Line(
                mark="]:",
                pattern=r"^\[(?:token|sample|epoch|iteration|second)=(?P<count>(?P<record>\d+))"
                r"(?:/\d+)?\]:\s*$",
                names={"record": MARK},
                step="last",
            ),
            Line(
                mark="[Eval batch=",
                pattern=r"^\[Eval batch=(?P<record>\d+)(?:/\d+)?\]",
                names={"record": MARK},
                step="last",
                main=False,
            ),
            Line(
                mark=" Train ",
                pattern=r"^\s+Train (?=\S[^:]*/)",
                pair=_VALUE,
                step="last",
                main=False,
            ),
            Line(
                mark=" Eval ",
                pattern=r"^\s+Eval (?=\S[^:]*/)",
                pair=_VALUE,
                step="last",
                main=False,
            ),
        ),
        says=(
            Says(mark="batch_size:", pattern=r"^\s*global_train_batch_size: (?P<batch_sequences>\d+)"),
            Says(mark="max_seq_len:", pattern=r"^\s*max_seq_len: (?P<sequence_length>\d+)"),
            Says(mark="n_params:", pattern=r"^\s*n_params: (?P<parameters>\d+)"),
            Says(mark="n_gpus:", pattern=r"^\s*n_gpus: (?P<gpus>\d+)"),
            Says(mark="clipping_threshold:", pattern=r"^\s*clipping_threshold: (?P<grad_clip>[\d.]+)"),
            Says(mark="t_warmup:", pattern=r"^\s*t_warmup: (?P<warmup_steps>\d+)ba\b"),
            Says(mark="save_interval:", pattern=r"^\s*save_interval: (?P<checkpoint_every>\d+)ba\b"),
            Says(mark="seed:", pattern=r"^\s*seed: (?P<seed>\d+)\s*$"),
            Says(mark="lr:", pattern=r"^\s+lr: (?P<peak_lr>[\d.e+-]+)\s*$"),
            Says(mark="weight_decay:", pattern=r"^\s+weight_decay: (?P<weight_decay>[\d.e+-]+)\s*$"),
            Says(mark="precision:", pattern=r"^\s*precision: (?P<precision>\w+)\s*$"),
        ),
        names={
            "loss": "loss/train/total",
            "val_loss": "metrics/eval/LanguageCrossEntropy",
            "mfu": "throughput/device/mfu",
            "tokens_per_second": "throughput/tokens_per_sec",
        },
        scales={"mfu": 1.0},
        steps=_steps,
        finish=_finish,
    )
)  # fmt: skip


def matches(source: Source) -> bool:
    """Claim a text log with heads such as ``[batch=100/4800]:``."""
    return claims(source, GRAMMAR)


@reader(matches, writes="Composer, llm-foundry: console")
def composer(source: Source) -> Iterator[Reading]:
    """Read a head and the values below it as one row; all values are printed to four decimal places."""
    yield from readings(source, GRAMMAR)
