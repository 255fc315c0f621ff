"""Reader ``csv``: a header line and rows of numbers, whoever wrote them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl

from stabcli.assembly import FILE, LINE, Reading
from stabcli.attempts import PART
from stabcli.errors import LogError
from stabcli.facts import find_facts
from stabcli.metrics import METRICS, normalise, resolve
from stabcli.parts import taken_back
from stabcli.readers import BAD_SHOWN, is_text, reader, sibling
from stabcli.run import BadLines, Fact
from stabcli.sources import Source, open_source
from stabcli.tables import Table, find_header, is_number, read_table
from stabcli.trackers.layouts import is_aim

_CHART = re.compile(r"(?P<run>.+) - (?P<metric>.+?)(?P<end>__MIN|__MAX)?")
"""A column of a chart downloaded from W&B; names of runs may hold `` - `` themselves."""
_RUN_COLUMNS = ("run", "run_name", "run_id", "run_uuid", "experiment", "exp_name")
_TENSORBOARD = ["wall_time", "step", "value"]
_RESERVOIR = 1000
"""Points that TensorBoard keeps of a longer series when one is downloaded as CSV."""
_MONITOR = re.compile(r"(Train|Eval)_\w+\.csv")
"""A file of DeepSpeed's csv_monitor, which writes one metric a file."""
_SAMPLES = (
    "DeepSpeed's csv_monitor counts samples, not steps:"
    " divide by train_batch_size to get optimizer steps"
)
_FLAT = re.compile(r"(?m)^(\w+):[ \t]*([-+.\de]+)[ \t]*$")
"""A line of YAML that says ``name: number``."""


def matches(source: Source) -> bool:
    """Claim text whose first line names columns and whose next lines have as many fields.

    Of a folder only that of DeepSpeed's csv_monitor is one log: a file a metric.
    """
    if source.is_folder:
        return len(_monitor_files(source.path)) > 1
    header = find_header(source.head) if is_text(source.head) else None
    return header is not None and not is_aim(header.names)


def takes(folder: Path) -> list[Path]:
    """Return the files of DeepSpeed's csv_monitor."""
    return _monitor_files(folder)


@reader(
    matches,
    writes="Lightning, DeepSpeed, AlgoPerf, W&B and TensorBoard exports, own loops",
    takes=takes,
)
def csv(source: Source) -> Iterator[Reading]:
    """Read a table with a header line, its columns parted by commas, semicolons or tabs.

    Steps may come in several rows (training and validation apart), and the header may come
    again in the middle. A chart downloaded from W&B gives a run for each of its curves; a file
    that TensorBoard downloads says in its name what it measures.

    Raises:
        LogError: No line names columns.
    """
    if source.is_folder:
        yield _monitor(source)
        return
    table = _read(source)
    if not table.frame.height:
        return
    whole = Reading(
        name=source.name,
        table=taken_back(table.frame),
        facts=_hyperparameters(source),
        notes=tuple(table.notes),
        bad=_bad(table.bad),
    )
    for part in _curves(whole) or _runs(_algoperf(whole)):
        yield _with_names(part, source)


def _read(source: Source) -> Table:
    header = find_header(source.head)
    if header is None:
        raise LogError(
            f"{source.shown}: no header line that names two or more columns:"
            " give the file a first line such as step,loss"
        )
    return read_table(source.path, header, _unique)


def _bad(bad: list[tuple[int, str]]) -> BadLines:
    return BadLines(count=len(bad), first=tuple(bad[:BAD_SHOWN]))


def _unique(names: list[str]) -> list[str]:
    """Name the nameless, and tell apart what has one name; of a curve the run is renamed."""
    made: list[str] = []
    for number, name in enumerate(names, start=1):
        base = unique = name or f"column {number}"
        again = 1
        while unique in made:
            again += 1
            curve = _CHART.fullmatch(base)
            unique = f"{base} ({again})"
            if curve:
                unique = f"{curve['run']} ({again}) - {curve['metric']}{curve['end'] or ''}"
        made.append(unique)
    return made


def _with_names(reading: Reading, source: Source) -> Reading:
    """Add what the names of a reading's columns mean where ``resolve`` cannot know it."""
    columns = [c for c in reading.table.columns if not c.startswith("@")]
    known = resolve(columns)
    names: dict[str, str] = {}
    notes = list(reading.notes)
    if [normalise(c) for c in columns] == _TENSORBOARD:
        names.update(_tensorboard(reading.table.height, source, notes))
    if "step" not in known:
        names.update(_counted(reading.table, columns, notes))
    for metric, pattern in _FALLBACKS:
        found = [c for c in columns if re.fullmatch(pattern, c, re.IGNORECASE)]
        same = "objective_loss" if metric == "loss" else metric
        if found and not {metric, same} & {*known, *names}:
            names[metric] = found[0]
    if _MONITOR.fullmatch(source.name):
        notes.append(_SAMPLES)
    return replace(reading, names=names, notes=tuple(notes))


_FALLBACKS = (
    ("learning_rate", r"lr-\w+(/(pg|group)\d+)?"),
    ("loss", r"(train[_/])?loss_epoch"),
    ("val_loss", r"(val|valid|validation)[_/]loss_(epoch|step)"),
    ("val_loss", r"validation/ctc_loss"),
)
"""Canonical name -> spelling of the column to take where none of the usual names is there.

Lightning and Composer name a learning rate after its optimizer, and Lightning adds ``_step`` and
``_epoch`` to what it logs twice; AlgoPerf's speech workloads log a CTC loss and nothing else.
"""

_COUNTERS = ("epoch", "time/total_timesteps", "total_timesteps", "column_1", "unnamed:_0")
"""What may count rows where no column is called a step; the last two are pandas' row numbers."""


def _counted(table: pl.DataFrame, columns: list[str], notes: list[str]) -> dict[str, str]:
    """Find what counts the rows of a table without a step."""
    for name in sorted(columns, key=lambda c: normalise(c) not in _COUNTERS[:3]):
        values = table[name].drop_nulls()
        if normalise(name) not in _COUNTERS or not values.dtype.is_float() or not len(values):
            continue
        whole = values.is_finite().all() and (values == values.round(0)).all()
        if whole and 2 * values.n_unique() > len(values):
            notes.append(f"no column counts steps: {name!r} is taken in its place")
            return {"step": name}
    return {}


def _tensorboard(rows: int, source: Source, notes: list[str]) -> dict[str, str]:
    """Tell from the file's name what ``Value`` is; loss where the name does not say."""
    if rows == _RESERVOIR:
        notes.append(
            f"TensorBoard downloads at most {_RESERVOIR:,} points of a series, picked at random:"
            " spikes may be missing; scan the event files instead"
        )
    tag = normalise(source.name.removesuffix(".csv").rpartition("tag-")[2])
    for metric in METRICS:
        spelt = [n.replace("/", "_") for n in METRICS[metric].names]
        if metric not in ("step", "wall_time", "epoch") and (
            tag in spelt or tag.removeprefix("train_") in spelt
        ):
            return {metric: "Value"}
    notes.append("the file does not say what Value is: taken as the loss; --map NAME=Value")
    return {"loss": "Value"}


def _curves(reading: Reading) -> list[Reading]:
    """Part a chart downloaded from W&B into its runs; nothing where it is no such chart."""
    x, *rest = [c for c in reading.table.columns if not c.startswith("@")]
    parts = {c: m for c in rest if (m := _CHART.fullmatch(c))}
    if len(parts) < len(rest) or not any(m["end"] for m in parts.values()):
        return []
    made: list[Reading] = []
    for run in dict.fromkeys(m["run"] for m in parts.values()):
        own = {f"{m['metric']}{m['end'] or ''}": c for c, m in parts.items() if m["run"] == run}
        table = reading.table.select(LINE, x, **{n: pl.col(c) for n, c in own.items()})
        notes = [*reading.notes]
        sampled = 0
        for name in [n for n in own if not n.endswith(("__MIN", "__MAX"))]:
            low, high = f"{name}__MIN", f"{name}__MAX"
            if low not in own or high not in own:
                continue
            if not (table[low].dtype.is_float() and table[high].dtype.is_float()):
                continue  # text, which is told of where it is left out
            differ = int((table[low] != table[high]).sum())
            if name == "_step" or not differ:
                table = table.drop(low, high)
            sampled = max(sampled, differ)
        table = table.filter(pl.any_horizontal(pl.exclude(LINE, x).is_not_null()))
        if sampled:
            notes.append(
                f"{sampled:,} rows stand for several steps each: W&B thins out long curves;"
                " the extremes are in the columns ending in __MAX and __MIN"
            )
        elif _irregular(table[x]):
            notes.append(
                "steps come at irregular distances: W&B thins out long curves by chance, so that"
                " spikes may be missing"
            )
        if "step" not in resolve(table.columns):
            table = table.with_row_index("step", offset=1)
            notes.append(f"the chart is drawn over {x!r} and has no steps: its rows are counted")
        made.append(replace(reading, name=run, table=table, notes=tuple(notes)))
    return made


def _irregular(x: pl.Series) -> bool:
    """Say whether most rows are not as far apart as others."""
    gaps = x.drop_nulls().diff().drop_nulls() if x.dtype.is_float() else pl.Series([])
    if len(gaps) < 20:
        return False
    return bool(2 * gaps.value_counts(sort=True)["count"][0] < len(gaps))


def _algoperf(reading: Reading) -> Reading:
    """Put NaN back where AlgoPerf had one: pandas writes it as an empty cell.

    AlgoPerf logs training rows and, with the bookkeeping of an evaluation beside them, evaluation
    rows. A training row without a loss, or an evaluation that counted its examples and has no
    loss, had a NaN there.
    """
    table = reading.table
    if not {"global_step", "loss", "score", "accumulated_submission_time"} <= {*table.columns}:
        return reading
    training = pl.all_horizontal(
        pl.col(c).is_null()
        for c in table.columns
        if c in ("score", "preemption_count") or c.startswith(("accumulated_", "total_"))
    )
    hidden: dict[str, pl.Expr] = {c: training for c in ("loss", "grad_norm") if c in table.columns}
    for split in ("validation", "test"):
        examples = f"{split}/num_examples"
        for metric in (f"{split}/loss", f"{split}/ctc_loss"):
            if {examples, metric} <= {*table.columns}:
                hidden[metric] = pl.col(examples).is_not_null()
    told: list[str] = []
    made: list[pl.Expr] = []
    for name, where in hidden.items():
        empty = where & pl.col(name).is_null()
        if count := int(table.select(empty.sum()).item()):
            told.append(f"{count:,} in {name!r}")
            made.append(pl.when(empty).then(float("nan")).otherwise(pl.col(name)).alias(name))
    if not made:
        return reading
    note = f"pandas writes NaN as an empty cell: read as NaN were {', '.join(told)}"
    return replace(reading, table=table.with_columns(made), notes=(*reading.notes, note))


def _runs(reading: Reading) -> list[Reading]:
    """Part a table in which a column of text says which run a row belongs to."""
    for name in reading.table.columns:
        if normalise(name) in _RUN_COLUMNS and reading.table[name].dtype == pl.String:
            runs = reading.table.filter(pl.col(name).is_not_null()).partition_by(
                name, maintain_order=True, as_dict=True
            )
            if len(runs) > 1:
                return [replace(reading, name=str(k[0]), table=t) for k, t in runs.items()]
    return [reading]


def _hyperparameters(source: Source) -> dict[str, Fact]:
    """Read what stands plainly in the ``hparams.yaml`` that Lightning writes beside its table."""
    path = sibling(source, "hparams.yaml")
    if path is None:
        return {}
    said = _FLAT.findall(path.read_text("utf-8", errors="replace"))
    return find_facts({k: v for k, v in said if is_number(v)}, "hparams.yaml")


def _monitor_files(folder: Path) -> list[Path]:
    """Return its files, that of the loss first, so that a row is cited from there."""
    found = [p for p in folder.iterdir() if _MONITOR.fullmatch(p.name) and p.is_file()]
    return sorted(found, key=lambda p: ("train_loss" not in p.name, p.name))


def _monitor(source: Source) -> Reading:
    """Join the files of DeepSpeed's csv_monitor, which holds one metric in each."""
    parts: list[pl.DataFrame] = []
    notes = [_SAMPLES]
    bad: list[tuple[int, str]] = []
    for path in _monitor_files(source.path):
        try:
            table = _read(open_source(path))
        except LogError as error:
            notes.append(f"left out: {error}")
            continue
        notes += [f"{path.name}: {note}" for note in table.notes]
        bad += [(line, f"{path.name}: {why}") for line, why in table.bad]
        if table.frame.height and "step" in table.frame.columns:
            started = (pl.col("step").diff() < 0).fill_null(value=False).cum_sum()
            parts.append(
                table.frame.with_columns(started.alias(PART), pl.lit(path.name).alias(FILE))
            )
    if not parts:
        raise LogError(f"{source.shown}: no row in any of its csv files: check the folder")
    notes.append(f"line numbers are as in {parts[0][FILE][0]}, as far as it has the step")
    joined = pl.concat(parts, how="diagonal").sort(PART, "step", maintain_order=True)
    files = tuple(source.path / name for name in joined[FILE].unique(maintain_order=True))
    return Reading(name=source.name, table=joined, notes=tuple(notes), bad=_bad(bad), files=files)
