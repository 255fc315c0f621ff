"""Charts: what of a run is drawn, as data for the page's script and as a still picture without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stabcli.metrics import METRICS
from stabcli.report import _words
from stabcli.report._html_budget import FEWEST_POINTS, allotted
from stabcli.report._html_markup import Child, Markup, el, join
from stabcli.report._html_points import Broken, beside, broken, thinned
from stabcli.rules import STATISTIC
from stabcli.run import Run
from stabcli.units import number, printable

FIRST = (
    "loss",
    "objective_loss",
    "val_loss",
    "grad_norm",
    "learning_rate",
    "reward",
    "val_reward",
    "entropy",
    "kl",
    "tokens_per_second",
    "tokens_per_second_per_gpu",
    "mfu",
)
"""What is drawn first, where it was logged; the other metrics follow in their usual order."""
CLOCKS = frozenset({"epoch", "elapsed_seconds", "tokens_seen", "samples_seen"})
"""Counters, which only rise: not worth a picture."""
LEVELS = frozenset(
    {
        "batch_tokens",
        "batch_sequences",
        "sequence_length",
        "data_stage",
        "gpus",
        "skipped_steps",
        "loss_scale",
    }
)
"""Not worth a picture while they never change."""
OPEN = 6
"""Charts on view; the others are folded away until somebody opens them."""
MOST = 12
"""Charts of one run."""
FINE = "non-scaling-stroke"
"""Lines of a still picture stay as wide as they are, however it is stretched."""
STILL_POINTS = 320
"""Points of the still picture."""
MARGIN = 30
"""Rows on either side of an incident that are kept."""
STEEP = 20.0
"""Largest value over the 95th percentile from which a chart opens on a logarithmic scale."""
BOUNDARIES = 300
"""Most restarts that are drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """An incident as it is shown in charts."""

    number: int
    """The number it goes by in the page, from 1."""
    anchor: str
    """Where its explanation stands."""
    rule: str
    severity: str
    attempt: int
    first: int
    last: int
    metrics: tuple[str, ...]
    """What its findings are about."""
    tags: tuple[str, ...]

    @property
    def banded(self) -> bool:
        """Whether it is drawn as a band through the charts, not as a tick above them."""
        return self.severity != "notice" and STATISTIC not in self.tags


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One metric as it is drawn."""

    metric: str
    figure: Markup
    """Caption and still picture."""
    data: dict[str, Any]
    """What the script draws."""


def chosen(run: Run, marks: Sequence[Mark]) -> tuple[list[str], list[str]]:
    """Return the metrics to draw, and those that were logged but are not drawn."""
    own = [m for m in run.measurements if run.has(m)]
    concerned = [m for mark in marks if mark.banded for m in mark.metrics]
    order = [*FIRST[:3], *concerned, *FIRST[3:], *METRICS, *own]
    worth = [m for m in dict.fromkeys(order) if m in own and (m in concerned or _worth(run, m))]
    drawn = worth[:MOST]
    return drawn, [m for m in own if m not in drawn]


def _worth(run: Run, metric: str) -> bool:
    if metric in CLOCKS:
        return False
    return metric not in LEVELS or run.frame[metric].drop_nulls().n_unique() > 1


def chart(run: Run, metric: str, marks: Sequence[Mark], *, anchor: str, most: int) -> Chart:
    """Draw one metric of a run with at most ``most`` points."""
    rows = np.flatnonzero(run.logged(metric))
    steps = run.frame["step"].to_numpy()[rows]
    attempts = run.frame["attempt"].to_numpy()[rows]
    values = run.array(metric)[rows]
    gaps = broken(steps, attempts, values)
    finite = np.flatnonzero(np.isfinite(values))
    spans = [(m.attempt, m.first, m.last) for m in marks if m.banded]
    near = beside(steps[finite], attempts[finite], spans, MARGIN)
    one = (steps[finite], attempts[finite], values[finite])
    kept = finite[thinned(*one, most=most, near=near)] if len(finite) else finite
    still = finite[thinned(*one, most=STILL_POINTS)] if len(finite) else finite
    drawn = _said(len(rows), len(kept), len(finite), near=bool(len(near)) and len(kept) < len(rows))
    summary = _summary(steps, attempts, values, finite, gaps, several=len(run.attempts) > 1)
    word = _words.short(run.word(metric))
    known = METRICS.get(metric)
    unit = known.unit if known else ""
    picture = _still(run, marks, steps, attempts, values, still, gaps, f"{word}: {summary}")
    figure = el(
        "figure",
        el(
            "figcaption",
            el("b", word, title=known.meaning if known else None),
            el("span", unit, class_="unit") if unit else None,
        ),
        el("div", picture, class_="plot"),
        el("p", summary, el("span", f" {drawn}", class_="drawn"), class_="summary"),
        class_="chart",
        id=anchor,
    )
    data = {
        "id": anchor,
        "word": word,
        "log": _steep(values[finite]),
        "parts": _parts(run, rows, kept, values),
        "bad": [_bad(run, metric, rows, g) for g in gaps],
    }
    return Chart(metric=metric, figure=figure, data=data)


def _said(rows: int, kept: int, finite: int, *, near: bool) -> str:
    """Say how many rows are drawn, and what is never left out."""
    if not finite:
        return "No finite value to draw."
    if kept == finite:
        return f"All {_words.plural(rows, 'row')} drawn."
    beside_them = ", and the rows beside incidents while there is room" if near else ""
    return (
        f"{rows:,} rows drawn as {kept:,} points: every minimum and maximum is kept{beside_them}."
    )


def _summary(
    steps: np.ndarray,
    attempts: np.ndarray,
    values: np.ndarray,
    finite: np.ndarray,
    gaps: Sequence[Broken],
    *,
    several: bool,
) -> str:
    """Say in words what the picture shows."""

    def at(index: int) -> str:
        attempt = f", attempt {attempts[index]}" if several else ""
        return f"step {steps[index]:,}{attempt}"

    parts = []
    if len(finite):
        low, high = finite[values[finite].argmin()], finite[values[finite].argmax()]
        start, end = finite[0], finite[-1]
        parts = [
            f"{number(values[start])} at {at(start)} to {number(values[end])} at {at(end)}",
            f"lowest {number(values[low])} ({at(low)})",
            f"highest {number(values[high])} ({at(high)})",
        ]
    if gaps:
        count = sum(g.count for g in gaps)
        parts.append(f"{_words.plural(count, 'row')} not finite, first at {at(gaps[0].first)}")
    return "; ".join(parts) + "."


def _steep(finite: np.ndarray) -> bool:
    """Say whether a linear scale would show little but the largest values."""
    if len(finite) < 8 or finite.min() <= 0:
        return False
    return bool(finite.max() > STEEP * np.quantile(finite, 0.95))


def _parts(
    run: Run, rows: np.ndarray, kept: np.ndarray, values: np.ndarray
) -> list[dict[str, Any]]:
    """Encode the points, an attempt at a time.

    ``s`` steps and ``l`` lines as differences (lines sparsely, from what the log's interval
    predicts), ``v`` values to five digits, ``g`` points before which a value was not finite,
    ``d`` the first point that a later attempt took back, ``f`` the file from a point on.
    """
    if not len(kept):
        return []
    frame, interval = run.frame, run.log_interval or 1
    at = rows[kept]
    steps = frame["step"].to_numpy()[at]
    attempts = frame["attempt"].to_numpy()[at]
    discarded = frame["discarded"].to_numpy()[at] if "discarded" in frame.columns else None
    lines = frame["line"].gather(at) if "line" in frame.columns else None
    files = frame["file"].gather(at).to_list() if "file" in frame.columns else None
    before = np.cumsum(~np.isfinite(values))[kept]
    cuts = np.concatenate([[0], np.flatnonzero(np.diff(attempts)) + 1, [len(at)]])
    found = []
    for a, b in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        part: dict[str, Any] = {
            "a": int(attempts[a]),
            "s": np.diff(steps[a:b], prepend=0).tolist(),
            "v": [float(f"{v:.5g}") for v in values[kept[a:b]].tolist()],
        }
        if gaps := np.flatnonzero(np.diff(before[a:b])).tolist():
            part["g"] = [g + 1 for g in gaps]
        if discarded is not None and discarded[a:b].any():
            part["d"] = int(discarded[a:b].argmax())
        if lines is not None and not lines[a:b].null_count():
            part["l"] = _lines(steps[a:b], lines[a:b].to_numpy(), interval)
        if files is not None:
            part["f"] = [
                [i, _words.short(files[a + i] or "")]
                for i in range(b - a)
                if i == 0 or files[a + i] != files[a + i - 1]
            ]
        found.append(part)
    return found


def _lines(steps: np.ndarray, lines: np.ndarray, interval: int) -> list[int]:
    """Encode line numbers: the first, then index and error of each that is not as predicted.

    A line is predicted to stand as many lines below the one before as whole intervals lie
    between their steps.
    """
    errors = np.diff(lines) - np.diff(steps) // interval
    wrong = np.flatnonzero(errors)
    pairs = np.stack([wrong + 1, errors[wrong]], axis=1).ravel().tolist()
    return [int(lines[0]), *pairs]


def _bad(run: Run, metric: str, rows: np.ndarray, gap: Broken) -> list[Any]:
    """Encode a stretch that is not finite: attempt, steps, rows, line of the first, what."""
    first, last = rows[gap.first], rows[gap.last]
    file, line = run.place(metric, int(first))
    if "file" in run.frame.columns and file != run.frame["file"][int(first)]:
        line = None  # the page names the file of the row
    return [
        int(run.frame["attempt"][int(first)]),
        int(run.frame["step"][int(first)]),
        int(run.frame["step"][int(last)]),
        gap.count,
        line,
        gap.what,
    ]


def _still(
    run: Run,
    marks: Sequence[Mark],
    steps: np.ndarray,
    attempts: np.ndarray,
    values: np.ndarray,
    kept: np.ndarray,
    gaps: Sequence[Broken],
    label: str,
) -> Markup:
    """Draw the picture that stands there until the script replaces it."""
    low, high = int(run.frame["step"].min()), int(run.frame["step"].max())  # type: ignore[arg-type]
    width, height = 1000.0, 120.0

    def across(step: float) -> float:
        return round(2 + (step - low) / max(1, high - low) * (width - 4), 1)

    bands: dict[str, str] = {}
    for m in marks:
        if m.banded:
            wide = max(2.0, across(m.last) - across(m.first))
            outline = f"M{across(m.first):g},0h{wide:.4g}v{height:g}h-{wide:.4g}z"
            bands[m.severity] = bands.get(m.severity, "") + outline
    shapes: list[Child] = [
        el("path", d=path, class_=f"band {severity}", vector_effect=FINE)
        for severity, path in bands.items()
    ]
    if len(kept):
        shown = np.clip(values[kept], -1e300, 1e300)
        logarithmic = _steep(values[kept])
        shown = np.log10(shown) if logarithmic else shown
        bottom, top = float(shown.min()), float(shown.max())
        down = (4 + (top - shown) / ((top - bottom) or 1.0) * (height - 16)).round(1)
        cut = np.flatnonzero(np.diff(attempts[kept]) != 0) + 1
        across_all = (2 + (steps[kept] - low) / max(1, high - low) * (width - 4)).round(1)
        path = "".join(
            "M" + " ".join(f"{x:g},{y:g}" for x, y in zip(xs, ys, strict=True))
            for xs, ys in zip(np.split(across_all, cut), np.split(down, cut), strict=True)
        )
        shapes.append(el("path", d=path, class_="line", vector_effect=FINE))
    shapes += [
        el(
            "path",
            d=f"M{across(steps[g.first]) - 3},{height - 9}l6,6m0,-6l-6,6",
            class_="cross",
            vector_effect=FINE,
        )
        for g in gaps
    ]
    return el(
        "svg",
        join(*shapes),
        viewBox=f"0 0 {width:g} {height:g}",
        preserveAspectRatio="none",
        class_="still",
        role="img",
        aria_label=label,
    )


def of_run(
    run: Run, marks: Sequence[Mark], *, anchor: str, points: int
) -> tuple[list[Chart], list[str]]:
    """Draw a run with at most ``points`` points in all; return what is not drawn as well."""
    drawn, left = chosen(run, marks)
    fits = min(len(drawn), points // FEWEST_POINTS)
    left = [m for m in run.measurements if m in {*left, *drawn[fits:]}]
    rows = [run.frame[m].count() for m in drawn[:fits]]
    found = [
        chart(run, metric, marks, anchor=f"{anchor}-{n}", most=most)
        for n, (metric, most) in enumerate(zip(drawn, allotted(rows, points), strict=False), 1)
    ]
    return found, left


def run_data(run: Run, marks: Sequence[Mark], charts: Sequence[Chart], anchor: str) -> Any:
    """Return what the script needs of one run."""
    steps = run.frame["step"]
    return {
        "id": anchor,
        "interval": run.log_interval or 1,
        "first": steps.min(),
        "last": steps.max(),
        "attempts": [[a.attempt, a.first_step, a.last_step] for a in run.attempts[:BOUNDARIES]],
        "marks": [
            {
                "n": m.number,
                "id": m.anchor,
                "rule": printable(m.rule),
                "sev": m.severity,
                "a": m.attempt,
                "first": m.first,
                "last": m.last,
                "band": m.banded,
            }
            for m in marks
            if STATISTIC not in m.tags
        ],
        "charts": [c.data for c in charts],
    }
