"""Reader ``nemo-rl``: the console of NeMo RL, a list of results a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import polars as pl

from stabcli.assembly import Reading
from stabcli.readers import reader
from stabcli.sources import Source
from stabcli.textlog import Grammar, Line, claims, known, passes, readings
from stabcli.textlog.grammar import Config
from stabcli.textlog.layout import TOTAL
from stabcli.textlog.records import MARK, joined
from stabcli.textlog.sniffing import sample_lines

_HEAD = "== Step "
_ITEM = r"(?P<name>[^\s:][^:]{0,120}?):[ \t]+(?P<value>[^\s,(]+(?:[ \t]?%)?)(?=[ \t]*(?:\(|$)|[ \t]+[A-Za-z])"
_NAMES = {
    "reward": ("Avg Reward", "Avg Filtered Reward"),
    "response_length": ("Mean Generation Length",),
    "step_seconds": ("Total step time",),
    "val_loss": ("Validation loss", "Validation Loss"),
}


def _steps(frame: pl.DataFrame, _: Config, notes: list[str]) -> pl.DataFrame:
    """Make a row of a step and what is listed below it.

    Where epochs have headings, steps are counted anew in each; else they go on.
    """
    rows = joined(frame, {0, 1}, notes)
    if "at" not in rows.columns:
        return rows.clear()
    if "epoch" not in rows.columns:
        return rows.rename({"at": "step", "of": TOTAL})
    rows = rows.with_columns(pl.col("epoch", "epochs").fill_null(strategy="forward"))
    return passes.numbered(rows.filter(pl.col("at").is_not_null()), notes)


GRAMMAR = known(
    Grammar(
        name="nemo-rl",
        lines=(
            Line(
                mark=_HEAD,
                pattern=r"^={5,} Step (?P<at>(?P<record>\d+))/(?P<of>\d+) ={5,}",
                names={"record": MARK},
                step="bar",
                main=False,
            ),
            Line(
                mark="== Epoch ",
                pattern=r"^={5,} Epoch (?P<epoch>\d+)/(?P<epochs>\d+) ={5,}",
                step="bar",
                main=False,
            ),
            Line(
                mark="•",
                pattern=r"^[ \t]*•[ \t]+(?=(?:[Ll]oss|Avg Reward|Total step time):[ \t]+\S)",
                pair=_ITEM,
                step="bar",
            ),
            Line(
                mark="•",
                pattern=r"^[ \t]*•[ \t]+(?=[^\s:][^:]{0,120}:[ \t]+\S)",
                pair=_ITEM,
                step="bar",
                main=False,
            ),
            Line(
                mark="- ",
                pattern=r"^[ \t]{2,}-[ \t]+(?=[^:]{0,120}/sec[^:]{0,40}:[ \t]+\S)",
                pair=_ITEM,
                step="bar",
                main=False,
            ),
        ),
        steps=_steps,
        tier=1,  # such lists stand in logs of others, too
    )
)


def matches(source: Source) -> bool:
    """Claim a text log with heads such as ``===== Step 5/400 =====`` and lists of results below."""
    return claims(source, GRAMMAR) and any(_HEAD in line for line in sample_lines(source.path))


@reader(matches, writes="NeMo RL: console")
def nemo_rl(source: Source) -> Iterator[Reading]:
    """Read the results, times and rates listed below each step; a policy's loss is an objective's."""
    for reading in readings(source, GRAMMAR):
        columns = reading.table.columns
        names = {
            metric: next((n for n in spelt if n in columns), "") for metric, spelt in _NAMES.items()
        }
        loss = "objective_loss" if names["reward"] else "loss"
        names[loss] = next((n for n in ("Loss", "loss") if n in columns), "")
        yield replace(reading, names={m: n for m, n in names.items() if n})
