"""Runs: from the rows of a text log to its runs: ranks, restarts, several trainings in one file."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from stabcli.assembly import HIDDEN, LINE, Reading
from stabcli.attempts import PART
from stabcli.facts import find_facts
from stabcli.run import BadLines, Fact
from stabcli.sources import Source
from stabcli.textlog.grammar import Grammar
from stabcli.textlog.layout import TOTAL
from stabcli.textlog.reading import Log, read
from stabcli.textlog.rows import BAR, KIND, OF, RANK, filled_steps, restarts

_INNER = (RANK, KIND, TOTAL, BAR, OF)
_FEW = 0.1
"""Share of the rows (of a few rows: two, or a fifth) up to which a value that they lack is told of;
beyond it, it is just not always logged."""
_SHOWN = 3
"""Missing values that are named."""


def readings(source: Source, grammar: Grammar) -> Iterator[Reading]:
    """Read a text log and yield its runs in the order in which they begin."""
    log = read(source.path, grammar)
    frame = log.frame
    if not frame.height:
        return
    backwards = {i for i, line in enumerate(grammar.lines) if line.step == "next"}
    frame = filled_steps(frame, backwards)
    told: list[str] = []
    if grammar.steps is not None:
        frame = grammar.steps(frame, log.config, told)
    if "step" not in frame.columns or not frame.height:
        return
    frame = frame.filter(pl.col("step").is_not_null())
    told += _lacking(
        frame, log.missing
    )  # before a format drops, or marks as hidden, what it knows of
    parts = _apart(frame, log)
    before = 0
    for i, part in enumerate(parts):
        first, last = int(part[LINE][0]), int(part[LINE][-1])
        notes: list[str] = []
        if not i:
            notes.append(f"{_matched(frame):,} of {log.lines:,} lines are logged steps")
            notes += dict.fromkeys(told)
        if len(parts) > 1:
            notes.append(f"run {i + 1} of {len(parts)} in this log, from line {first:,}")
        if i + 1 == len(parts):
            notes += log.notes
        name = source.name if not i else f"{source.name} ({i + 1})"
        until = (
            last if i + 1 < len(parts) else log.lines
        )  # the last checkpoint follows the last step
        facts = _facts(_said(log, before, until), grammar)
        bad = log.bad if i + 1 == len(parts) else BadLines()
        yield _reading(name, part, log, grammar, facts, notes, bad)
        before = last


def _matched(frame: pl.DataFrame) -> int:
    return frame[LINE].n_unique()


def _lacking(frame: pl.DataFrame, missing: list[tuple[int, str]]) -> list[str]:
    """Tell of values that a few lines lack and nearly all others like them hold.

    A damaged name or separator hides a value without a trace of it in the line. Lines are like
    others if they are of the same kind, and all of them where nearly all are.
    """
    columns = [c for c in frame.columns if c != "step" and not c.startswith("@")]
    groups = [(pl.lit(value=True), frame)]
    if KIND in frame.columns and frame[KIND].n_unique() > 1:
        kinds = frame[KIND].value_counts(sort=True)[KIND].to_list()
        rare = frame.filter(pl.col(KIND) != kinds[0])  # the commonest kind is all but the others
        groups += [(pl.col(KIND) == k, rare.filter(pl.col(KIND) == k)) for k in kinds[1:]]
        groups.append((pl.col(KIND) == kinds[0], rare))
    lacking = set(missing)
    for i, (own, part) in enumerate(groups):
        height, held = part.height, {c: part[c].count() for c in columns}
        if i and i + 1 == len(groups):
            height = frame.height - height
            held = {c: frame[c].count() - count for c, count in held.items()}
        lacking.update(_lacking_in(frame, own, height, held))
    if not lacking:
        return []
    first = sorted(lacking)[:_SHOWN]
    shown = ", ".join(f"{column!r} in line {line:,}" for line, column in first)
    more = ", …" if len(lacking) > _SHOWN else ""
    return [f"values missing that lines like theirs hold, {len(lacking):,} in all: {shown}{more}"]


def _lacking_in(
    frame: pl.DataFrame, own: pl.Expr, height: int, held: dict[str, int]
) -> Iterator[tuple[int, str]]:
    """Yield line and column of what a few of some rows lack; those with columns of their own not.

    Args:
        frame: All rows.
        own: Which of them.
        height: How many of them there are.
        held: In how many of them each column has a value.
    """
    most = min(max(2, int(_FEW * height)), height // 5)
    usual = [c for c, count in held.items() if height - count <= most]
    short = [c for c in usual if held[c] < height]
    if not short:
        return
    other = [c for c, count in held.items() if c not in usual and count > 1]
    rows = frame.filter(own & pl.any_horizontal(pl.col(c).is_null() for c in short)).filter(
        (pl.sum_horizontal(pl.col(c).is_not_null() for c in usual) * 4 >= len(usual))
        & ~pl.any_horizontal(pl.lit(value=False), *(pl.col(c).is_not_null() for c in other))
    )
    for column in short:
        for line in rows.filter(pl.col(column).is_null())[LINE].to_list():
            yield line, column


def _reading(
    name: str,
    frame: pl.DataFrame,
    log: Log,
    grammar: Grammar,
    facts: dict[str, Fact],
    notes: list[str],
    bad: BadLines,
) -> Reading:
    if TOTAL in frame.columns and frame[TOTAL].count():
        planned = frame[TOTAL].is_not_null().arg_true()[-1]
        fact = Fact(value=int(frame[TOTAL][planned]), source=f"line {frame[LINE][planned]}")
        facts.setdefault("total_steps", fact)
    frame = grammar.finish(frame, notes)
    if log.starts:
        frame = frame.with_columns(pl.Series(PART, restarts(frame[LINE], log.starts)))
    frame = _one_voice(frame, notes)
    hiding = HIDDEN in frame.columns  # then a loss may be null in every row
    kept = [c for c in frame.columns if c not in _INNER and (hiding or frame[c].count())]
    return Reading(
        name=name,
        table=frame.select(kept),
        names={c: o for c, o in grammar.names.items() if o in kept},
        scales=grammar.scales,
        facts=facts,
        notes=tuple(notes),
        bad=bad,
    )


def _said(log: Log, after: int, until: int) -> dict[str, list[tuple[str, int]]]:
    """Return what a run says of itself; what it does not say again holds from the run before."""
    said: dict[str, list[tuple[str, int]]] = {}
    for key, all_said in log.config.items():
        own = [each for each in all_said if after < each[1] <= until]
        earlier = [each for each in all_said if each[1] <= after]
        if own or earlier:
            said[key] = own or earlier[-1:]
    return said


def _facts(config: dict[str, list[tuple[str, int]]], grammar: Grammar) -> dict[str, Fact]:
    """Read the facts that are said in as many words, then those that need arithmetic."""
    facts: dict[str, Fact] = {}
    for key, said in config.items():
        value, line = said[0]
        for name, fact in find_facts({key: value}, f"line {line}").items():
            facts.setdefault(name, fact)
    if "saved" in config:
        steps = sorted({int(number) for number, _ in config["saved"] if number.isdigit()})
        source = f"line {config['saved'][0][1]} and others"
        facts["checkpoints"] = Fact(value=tuple(steps), source=source)
    computed = grammar.facts(config)
    return {k: f for k, f in {**facts, **computed}.items() if f is not None}


def _apart(frame: pl.DataFrame, log: Log) -> list[pl.DataFrame]:
    """Part the rows of trainings that began from the start after another had ended.

    A training has ended where the log says so, or where its last planned step was reached. One
    that goes back without that was restarted and is the same run.
    """
    step = frame["step"].to_numpy()
    lines = frame[LINE].to_numpy()
    back = np.flatnonzero(np.diff(step) < 0) + 1
    if not len(back):
        return [frame]
    total = frame[TOTAL].to_numpy() if TOTAL in frame.columns else np.full(len(step), np.nan)
    ends = np.array(log.ends, dtype=np.int64)
    cuts = [0]
    for i in back.tolist():
        begun = step[cuts[-1]]
        before = step[cuts[-1] : i]
        said = np.any((ends > lines[cuts[-1]]) & (ends <= lines[i]))
        planned = total[cuts[-1] : i]
        reached = np.any(before >= planned - 1)
        if (said or reached) and step[i] <= max(begun, 1):
            cuts.append(i)
    return [frame[a:b] for a, b in zip(cuts, [*cuts[1:], len(step)], strict=True)]


def _one_voice(frame: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    """Of several processes that print each step, keep one row a step.

    The median of a value is kept, a non-finite one before any other, and the largest loss.
    """
    if RANK not in frame.columns or frame[RANK].n_unique() < 2:
        return frame
    attempt = pl.col("step").diff().fill_null(0) < 0
    frame = frame.with_columns(again=attempt.cast(pl.Int64).cum_sum().over(RANK))
    values = [c for c in frame.columns if not c.startswith("@") and c not in ("step", "again")]
    many = frame.group_by("again", "step", KIND).agg(pl.col(RANK).n_unique())[RANK].max()
    if not isinstance(many, int) or many < 2:
        return frame.drop("again")
    broken = frame.filter(pl.any_horizontal(~pl.col(c).is_finite() for c in values))
    kept = [c for c in frame.columns if c.startswith("@")]
    bad = pl.any_horizontal((~pl.col(c).is_finite()).fill_null(value=False) for c in values)
    merged = frame.group_by("again", "step", KIND, maintain_order=True).agg(
        # What is not finite is cited by the line in which it stands.
        *[pl.coalesce(pl.col(c).filter(bad).first(), pl.col(c).first()) for c in kept if c != KIND],
        *[
            pl.coalesce(
                pl.col(c).filter(~pl.col(c).is_finite()).first(), pl.col(c).drop_nulls().median()
            ).alias(c)
            for c in values
        ],
        *([pl.col("loss").max().alias("loss_max")] if "loss" in values else []),
    )
    notes.append(f"{many} processes logged the same steps: the median of each value was taken")
    if broken.height:
        notes.append(
            f"rank {int(broken[RANK][0] or 0)} was the first with a non-finite value,"
            f" at step {int(broken['step'][0])}"
        )
    merged = merged.sort("again", "step", maintain_order=True)
    return merged.rename({"again": PART}) if PART not in merged.columns else merged.drop("again")
