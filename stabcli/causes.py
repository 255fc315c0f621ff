"""Causes: what may have brought an incident about, and the rows that say so.

A ladder of three steps. *Observed*: the log shows the cause itself at work where the incident
began. *Supported*: something in the log speaks for it that would be odd otherwise. *Hypothesis*:
it fits, as others do. That an event did not happen again when its steps were redone is on no step
of the ladder: batches and weights meet only once, and sums on GPUs differ from run to run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from stabcli.endings import CLOCKS
from stabcli.evidence import (
    CAUSES,
    STANDINGS,
    Cause,
    CauseName,
    Row,
    Standing,
    lone_process,
    of_process,
    of_reporting,
    of_reward,
)
from stabcli.incidents import NEAR_ROWS, Incident, family
from stabcli.levels import centred
from stabcli.mixture import only_source
from stabcli.rules import RESCALED, STATISTIC, Finding
from stabcli.run import Run
from stabcli.series import signals, warmup_end
from stabcli.troubles import gravity
from stabcli.units import number
from stabcli.waiting import held_up

BEFORE_STEPS = 200
"""Steps before an incident in which a leap of the learning rate is taken to have led to it."""
SHORT_ROWS = 8
"""Rows up to which an incident is short enough for one batch and its echo."""
PLANNED = ("batch_tokens", "batch_sequences", "sequence_length", "data_stage", "gpus")
"""Columns that change by plan."""
REDONE = 32
"""Losses of steps done twice, without which their order is not compared."""
FOLLOWS = 0.3
"""Correlation below which the losses of steps done twice do not follow one another."""


def causes(run: Run, incidents: Sequence[Incident]) -> tuple[tuple[Cause, ...], ...]:
    """Return for each incident the causes its evidence supports, the surest first.

    Notices, statistics of a whole run, and what is no event of the model or its speed, get none,
    and neither does what is no instability.
    """
    findings = [f for i in incidents for f in i.findings]
    orders: dict[int, tuple[Cause, ...]] = {}
    return tuple(_ranked(run, i, findings, orders) for i in incidents)


def _ranked(
    run: Run,
    incident: Incident,
    findings: list[Finding],
    orders: dict[int, tuple[Cause, ...]],
) -> tuple[Cause, ...]:
    if incident.severity == "notice" or STATISTIC in incident.tags or not incident.unstable:
        return ()
    found: list[Cause]
    if incident.family == "speed":
        found = [*_of_fault(run, incident, ("gpu-fault", "communication", "straggler"))]
        found += _of_speed(run, incident)
    elif incident.family == "hardware":
        found = [*_of_line(incident)]
    elif incident.family == "numerics":
        reach = max(BEFORE_STEPS, 20 * (run.log_interval or 1))
        own = {id(f) for f in incident.findings}
        before = [
            f
            for f in findings
            if id(f) in own  # a notice may have come long before the rest of it
            or (
                f.attempt == incident.attempt
                and f.first <= incident.first + NEAR_ROWS * (run.log_interval or 1)
                and f.last >= incident.first - reach
            )
        ]
        found = [*_of_fault(run, incident, ("gpu-fault", "wrong-result"))]
        found += [*of_process(run, incident), *of_reporting(incident)]
        found += _of_rate(run, incident, before)
        found += _of_format(run, incident, before)
        found += [*_of_data(incident, before), *_of_plan(run, incident)]
        if incident.attempt not in orders:
            orders[incident.attempt] = tuple(_of_order(run, incident.attempt))
        found += [*_of_restart(run, incident), *orders[incident.attempt]]
        found += [*_of_hardware(run, incident, findings), *_of_source(run, incident)]
        found += _of_batch(run, incident)
    elif incident.family == "policy":
        found = [*of_reward(run, incident)]
    else:
        return ()
    best: dict[CauseName, Cause] = {}
    for cause in sorted(found, key=lambda c: STANDINGS.index(c.standing)):
        best.setdefault(cause.name, cause)
    return tuple(
        sorted(best.values(), key=lambda c: (STANDINGS.index(c.standing), CAUSES.index(c.name)))
    )


def _row(f: Finding) -> Row:
    return Row(metric=f.metric, attempt=f.attempt, step=f.peak, value=f.value)


def _of_fault(run: Run, incident: Incident, kinds: Sequence[str]) -> Iterator[Cause]:
    """Look for what the text of the run says of hardware shortly before, or while it lasted."""
    reach = max(BEFORE_STEPS, 20 * (run.log_interval or 1))
    for told in run.troubles:
        if told.kind not in kinds or told.step is None or told.attempt != incident.attempt:
            continue
        sure = gravity(told.kind, told.text)
        if sure is not None and incident.first - reach <= told.step <= incident.last:
            what = told.kind.replace("-", " ")
            where = f"{Path(told.file).name}, line {told.line:,}"
            why = f"the text tells of a {what} after step {told.step:,} ({where})"
            row = Row(metric="step", attempt=told.attempt, step=told.step, value=told.step)
            standing: Standing = "hypothesis" if sure == "unclear" else "supported"
            yield Cause(name="hardware", standing=standing, why=why, rows=(row,))


def _of_line(incident: Incident) -> Iterator[Cause]:
    """Tell what a line says, where nothing else went wrong near it."""
    told = incident.worst
    row = Row(metric="step", attempt=told.attempt, step=told.first, value=told.first)
    # Collectives also time out where a program lets one process wait for another.
    standing: Standing = "supported" if told.metric == "communication" else "observed"
    why = f"the text says so at line {told.line:,} ({told.metric.replace('-', ' ')})"
    yield Cause(name="hardware", standing=standing, why=why, rows=(row,))


def _of_rate(run: Run, incident: Incident, before: list[Finding]) -> Iterator[Cause]:
    for f in before:
        if f.metric == "learning_rate" and "lowered" not in f.tags and f.first <= incident.first:
            was = number(f.expected) if f.expected is not None else "another"
            why = f"the learning rate went from {was} to {number(f.value)} at step {f.peak:,}"
            if "resume" in f.tags:
                why = (
                    f"the learning rate is {number(f.value)} at step {f.peak:,},"
                    f" where the attempt before had, or would have had, {was}"
                )
            yield Cause(name="learning-rate", standing="observed", why=why, rows=(_row(f),))
            return
    norms = [f for f in incident.findings if f.metric == "grad_norm"]
    if incident.first <= warmup_end(run, incident.attempt) and run.has("learning_rate"):
        why = "the learning rate was still rising when it began"
        yield Cause(name="learning-rate", standing="supported", why=why, rows=_at(run, incident))
    elif norms and "gradual-onset" in incident.tags:
        why = "gradients grew and the level left its band before anything leapt"
        rows = tuple(_row(f) for f in norms[:1])
        yield Cause(name="learning-rate", standing="supported", why=why, rows=rows)
    elif incident.ending in ("diverged", "new-basin") and incident.shown.metric == "loss":
        if RESCALED in incident.worst.tags or lone_process(run, incident) is not None:
            return  # what was not finite in one process, or is only counted anew, is no instability
        why = "the run did not find back by itself"
        rows = (_row(incident.worst),)
        yield Cause(name="learning-rate", standing="hypothesis", why=why, rows=rows)


def _at(run: Run, incident: Incident) -> tuple[Row, ...]:
    """Return the learning rate of the row at which an incident began."""
    steps, attempts = run.frame["step"].to_numpy(), run.frame["attempt"].to_numpy()
    rate = run.array("learning_rate")
    at = np.flatnonzero(
        (attempts == incident.attempt) & (steps <= incident.first) & np.isfinite(rate)
    )
    if not len(at):
        return ()
    i = int(at[-1])
    row = Row(
        metric="learning_rate",
        attempt=incident.attempt,
        step=int(steps[i]),
        value=float(rate[i]),
    )
    return (row,)


def _of_format(run: Run, incident: Incident, before: list[Finding]) -> Iterator[Cause]:
    for f in before:
        if f.metric == "loss_scale" and f.severity != "notice":
            why = f"the loss scale had fallen to {number(f.value)}"
            yield Cause(name="number-format", standing="observed", why=why, rows=(_row(f),))
            return
    bad = [f for f in incident.findings if not math.isfinite(f.value) or "hidden" in f.rule]
    if not bad:
        return
    known = run.facts.get("precision")
    precision = str(known.value).lower() if known is not None else ""
    rows = (_row(bad[0]),)
    if "16" in precision and "bf" not in precision:
        why = f"values are not finite, and {precision} overflows at 65,504"
        yield Cause(name="number-format", standing="supported", why=why, rows=rows)
    elif bad[0].first == incident.first:
        why = "the first thing to go wrong was a value that is not finite"
        yield Cause(name="number-format", standing="hypothesis", why=why, rows=rows)


def _of_data(incident: Incident, before: list[Finding]) -> Iterator[Cause]:
    for f in [*before, *incident.findings]:
        if f.rule == "repeated-data":
            why = "the loss of steps done twice was lower the second time"
            yield Cause(name="repeated-data", standing="observed", why=why, rows=(_row(f),))
            return
    for f in before:
        if f.rule == "masked-data" and f.first <= incident.first:
            why = f"{number(f.value)} of the data was masked out at step {f.peak:,}"
            yield Cause(name="bad-batch", standing="supported", why=why, rows=(_row(f),))
            break
    for f in incident.findings:
        if f.rule == "loss-drop":
            why = "the loss fell faster than training explains"
            yield Cause(name="repeated-data", standing="hypothesis", why=why, rows=(_row(f),))
            return


def _of_plan(run: Run, incident: Incident) -> Iterator[Cause]:
    steps = run.frame["step"].to_numpy()
    near = NEAR_ROWS * (run.log_interval or 1)
    mine = run.frame["attempt"].to_numpy() == incident.attempt
    at = np.flatnonzero(mine & (np.abs(steps - incident.first) <= near))
    for metric in PLANNED:
        if not run.has(metric):
            continue
        values = run.array(metric)[at]
        logged = at[np.isfinite(values)]
        values = values[np.isfinite(values)]
        moved = np.flatnonzero(np.diff(values))
        if len(moved) == 1:
            i = int(moved[0]) + 1
            why = f"{metric} went from {number(values[i - 1])} to {number(values[i])}"
            row = Row(
                metric=metric,
                attempt=incident.attempt,
                step=int(steps[logged[i]]),
                value=float(values[i]),
            )
            yield Cause(name="schedule", standing="observed", why=why, rows=(row,))


def _of_restart(run: Run, incident: Incident) -> Iterator[Cause]:
    mine = next((a for a in run.attempts if a.attempt == incident.attempt), None)
    if mine is None or mine is run.attempts[0]:
        return
    if incident.first - mine.first_step > 20 * (run.log_interval or 1):
        return
    row = Row(metric="step", attempt=mine.attempt, step=mine.first_step, value=mine.first_step)
    why = f"it began right after the restart at step {mine.first_step:,}: state, data or code"
    yield Cause(name="restart", standing="supported", why=why, rows=(row,))
    came, went = _other_columns(run, mine.attempt)
    if came or went:
        parts = [f"logs {', '.join(came[:2])}"] if came else []
        parts += [f"no longer logs {', '.join(went[:2])}"] if went else []
        why = f"since that restart the run {' and '.join(parts)}: its code or configuration changed"
        yield Cause(name="config-change", standing="supported", why=why, rows=(row,))


def _other_columns(run: Run, attempt: int) -> tuple[list[str], list[str]]:
    """Return which columns an attempt logs in half of its rows, and the one before it nowhere.

    And the other way round. Attempts of fewer than ten rows show nothing.
    """
    attempts = run.frame["attempt"].to_numpy()
    mine, before = attempts == attempt, attempts == attempt - 1
    if mine.sum() < 10 or before.sum() < 10:
        return [], []
    came, went = [], []
    for metric in run.measurements:
        logged = run.logged(metric)
        now, then = float(logged[mine].mean()), float(logged[before].mean())
        if then == 0 and now > 0.5:
            came.append(run.word(metric))
        if now == 0 and then > 0.5:
            went.append(run.word(metric))
    return came, went


def _of_order(run: Run, attempt: int) -> Iterator[Cause]:
    """Compare the noise of losses of steps done twice: the same batches have the same noise."""
    if not run.has("loss") or attempt == run.attempts[0].attempt:
        return
    parts = {s.attempt: s.finite() for s in signals(run, "loss")}
    mine = parts.get(attempt)
    if mine is None or not mine.resumed or not len(mine):
        return
    for parent in reversed([p for a, p in parts.items() if a < attempt]):
        _, here, there = np.intersect1d(mine.steps, parent.steps, return_indices=True)
        if len(here) < REDONE:
            continue
        a, b = mine.values[here], parent.values[there]
        a, b = a - centred(a, 9), b - centred(b, 9)
        if not a.std() > 0 or not b.std() > 0:
            return
        # Ranks: one spike in one of the two must not decide.
        ranks = [np.argsort(np.argsort(x)) for x in (a, b)]
        alike = float(np.corrcoef(ranks[0], ranks[1])[0, 1])
        if alike < FOLLOWS:
            step = int(mine.steps[here[0]])
            why = (
                f"losses of the {len(here):,} steps done twice do not follow one another"
                f" (correlation {alike:.2f}): other batches, or another order"
            )
            row = Row(
                metric="loss", attempt=mine.attempt, step=step, value=float(mine.values[here[0]])
            )
            yield Cause(name="reordered-data", standing="supported", why=why, rows=(row,))
        return


def _of_hardware(run: Run, incident: Incident, findings: list[Finding]) -> Iterator[Cause]:
    """Point at a machine whose speed gave way just before values did."""
    reach = NEAR_ROWS * (run.log_interval or 1)
    for f in findings:
        slow = family(f) == "speed" and f.severity != "notice" and f.attempt == incident.attempt
        if slow and 0 <= incident.first - f.first <= reach:
            when = incident.first - f.first
            before = "at the same step" if not when else f"{when:,} steps before"
            why = f"the speed gave way {before}: a device that fails does both"
            yield Cause(name="hardware", standing="supported", why=why, rows=(_row(f),))
            return


def _of_source(run: Run, incident: Incident) -> Iterator[Cause]:
    """Look whether one source of the data alone brought it."""
    leap = only_source(run, incident.attempt, incident.first, incident.last)
    if leap is not None:
        row = Row(metric=leap.metric, attempt=incident.attempt, step=leap.step, value=leap.value)
        why = (
            f"of {leap.of} sources only {leap.metric} leapt, from {number(leap.before)}"
            f" to {number(leap.value)}"
        )
        yield Cause(name="bad-batch", standing="supported", why=why, rows=(row,))


def _of_batch(run: Run, incident: Incident) -> Iterator[Cause]:
    rows = (_row(next(f for f in incident.findings if f.text is None)),)
    if "recurs-at-same-step" in incident.tags:
        why = "it came again at the same step in another attempt"
        yield Cause(name="bad-batch", standing="supported", why=why, rows=rows)
        return
    interval = run.log_interval or 1
    lasts = incident.last - incident.first
    if "gradual-onset" not in incident.tags and lasts < SHORT_ROWS * interval:
        why = "it came from one row to the next and was short; replay of the batch can tell"
        yield Cause(name="bad-batch", standing="hypothesis", why=why, rows=rows)


def _of_speed(run: Run, incident: Incident) -> Iterator[Cause]:
    yield from _of_plan(run, incident)
    if incident.shown.metric in CLOCKS:
        why = "a hung collective or file system, a lost node, a queue; the log does not tell which"
        told = (_row(incident.worst),)
        yield Cause(name="slow-hardware", standing="hypothesis", why=why, rows=told)
        return
    f = incident.shown
    held = held_up(run, f.metric, f.attempt, (f.first, f.last), (f.value, f.expected))
    if held and held.part:
        rows = (Row(metric=held.metric, attempt=f.attempt, step=s, value=v) for s, v in held.rows)
        why = f"{held.says}: {held.part:.0%} of what the steps lost"
        standing: Standing = "observed" if held.part >= 0.5 else "supported"
        yield Cause(name="data-loading", standing=standing, why=why, rows=tuple(rows))
    why = "a slow node, a full network or a slow data loader; the log does not tell which"
    if held:
        why = f"a slow node or a full network; {held.says}"
    yield Cause(name="slow-hardware", standing="hypothesis", why=why, rows=(_row(incident.lead),))
