"""Arguments that all commands on logs share, and what they ask for.

``@takes_logs`` adds them to a command, which gets them as one ``Asked``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, get_type_hints

import typer

from stabcli.errors import LogError, NothingThere, SettingError, UnknownFormat

if TYPE_CHECKING:
    from stabcli.assembly import Options
    from stabcli.joining import Gathered
    from stabcli.run import Fact, Run
    from stabcli.settings import Settings

P = ParamSpec("P")

FACT_FLAGS = {
    "gpus": "gpus",
    "gpu": "gpu",
    "params": "parameters",
    "tokens_per_step": "tokens_per_step",
    "gpu_hours_per_trillion": "gpu_hours_per_trillion",
}
"""Parameter -> the fact it gives; every other fact is given by ``--fact``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the user asked for by the shared arguments, before settings fill the gaps."""

    logs: tuple[str, ...]
    reader: str | None
    names: tuple[str, ...]
    metrics: tuple[str, ...]
    presets: tuple[str, ...]
    only: tuple[str, ...]
    assignments: tuple[str, ...]
    facts: tuple[tuple[str, str, str], ...]
    """Fact, value and the flag that gave it."""
    join: bool = True
    """Whether files that belong to one run become one run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What became of the logs."""

    runs: tuple[Run, ...]
    failed: tuple[str, ...] = ()
    """A line for each log that cannot be read."""
    left_out: tuple[str, ...] = ()
    """A line for each folder with files in it that are not logs."""
    empty: tuple[str, ...] = ()
    """A line for each pattern or folder with nothing in it to read, where that was allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """How to look at the runs: what ``stabcli.diagnosis.diagnose`` takes."""

    presets: tuple[str, ...] = ("default",)
    only: tuple[str, ...] = ()
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)


def _shared(
    logs: Annotated[
        list[str],
        typer.Argument(metavar="LOG", help="Files, folders, patterns, or - for stdin."),
    ],
    preset: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Set of rules: default, seed, one that others published; repeatable.",
        ),
    ] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Run this rule instead of a preset; repeatable."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="RULE.SETTING=VALUE", help="Change a setting; repeatable."),
    ] = None,
    map_: Annotated[
        list[str] | None,
        typer.Option(
            "--map", metavar="METRIC=NAME", help="Say which column is the loss, …; repeatable."
        ),
    ] = None,
    reader: Annotated[
        str | None, typer.Option(metavar="NAME", help="Read as this format instead of finding out.")
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Keep this column even in a very wide log; repeatable."),
    ] = None,
    gpus: Annotated[str | None, typer.Option(metavar="N", help="GPUs in the run.")] = None,
    gpu: Annotated[str | None, typer.Option(metavar="MODEL", help="GPU model, e.g. H100.")] = None,
    params: Annotated[
        str | None, typer.Option(metavar="N", help="Parameters of the model, e.g. 7B.")
    ] = None,
    tokens_per_step: Annotated[
        str | None, typer.Option(metavar="N", help="Tokens of one optimizer step, e.g. 4M.")
    ] = None,
    gpu_hours_per_trillion: Annotated[
        str | None, typer.Option(metavar="H", help="GPU-hours per 1e12 tokens, e.g. 40400.")
    ] = None,
    fact: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Anything else known of the run; repeatable."),
    ] = None,
    no_join: Annotated[
        bool, typer.Option("--no-join", help="Keep the files of one run apart.")
    ] = False,
) -> Asked:
    flags = {
        "gpus": gpus,
        "gpu": gpu,
        "params": params,
        "tokens_per_step": tokens_per_step,
        "gpu_hours_per_trillion": gpu_hours_per_trillion,
    }
    given = [
        (FACT_FLAGS[name], value, "--" + name.replace("_", "-"))
        for name, value in flags.items()
        if value is not None
    ]
    for text in fact or ():
        name, value = pair("--fact", text)
        given.append((name.replace("-", "_"), value, f"--fact {name}"))
    return Asked(
        logs=tuple(logs),
        reader=reader,
        names=tuple(map_ or ()),
        metrics=tuple(metric or ()),
        presets=tuple(preset or ()),
        only=tuple(rule or ()),
        assignments=tuple(set_ or ()),
        facts=tuple(given),
        join=not no_join,
    )


def takes_logs(command: Callable[Concatenate[Asked, P], int]) -> Callable[..., int]:
    """Give a command the shared arguments; it gets them as its first parameter."""
    shared = inspect.signature(_shared)
    own = list(inspect.signature(command).parameters.values())[1:]

    @functools.wraps(command)
    def with_shared(**arguments: Any) -> int:
        asked = _shared(**{name: arguments.pop(name) for name in shared.parameters})
        return command(asked, **arguments)  # type: ignore[call-arg]

    theirs = list(shared.parameters.values())
    hints = get_type_hints(command, include_extras=True)
    hints |= get_type_hints(_shared, include_extras=True)
    parameters = [
        p.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[p.name])
        for p in [theirs[0], *own, *theirs[1:]]
    ]
    with_shared.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_shared.__annotations__ = {p.name: p.annotation for p in parameters}
    return with_shared


def settings() -> Settings:
    """Return what the environment and the nearest settings file say."""
    import os
    from pathlib import Path

    from stabcli.facts import FACTS
    from stabcli.settings import load

    return load(Path.cwd(), os.environ, FACTS)


def read(
    asked: Asked, chosen: Settings, *, allow_empty: bool = False, together: bool = True
) -> Read:
    """Read every log; one that cannot be read does not keep the others from being read.

    Args:
        asked: What the user asked for.
        chosen: The settings.
        allow_empty: Whether a pattern that matches nothing, or a folder without logs, is no
            failure.
        together: Whether logs that were given apart may turn out to be one run.

    Raises:
        SettingError: A flag or a setting is wrong.
    """
    from stabcli.cli._output import Patience
    from stabcli.readers import expand, gather, readers, settle
    from stabcli.settings import suggestion

    reader = asked.reader or chosen.word("reader")
    names = [r.name for r in readers]
    if reader is not None and reader not in names:
        where = chosen.place("reader", flag=asked.reader)
        raise SettingError(
            f"{where} {reader}: no such reader: {suggestion(reader, names, see=_FORMATS)}"
        )
    options = _options(asked, chosen)
    _no_peak(options.facts)
    watch = Patience()
    gathered: list[Gathered] = []
    failed: list[str] = []
    empty: list[str] = []
    for log in asked.logs:
        try:
            for path in expand(log):
                try:
                    found = gather(path, options=options, format_name=reader, watch=watch)
                    if not (found.runs or found.failed or found.configs == [path]):
                        empty.append(f"{path}: no log in this folder: check the path")
                    gathered.append(found)
                except LogError as error:
                    failed.append(str(error))
        except NothingThere as error:
            empty.append(str(error))
    if together and gathered:
        for more in gathered[1:]:
            gathered[0].add(more)
        del gathered[1:]
    runs: list[Run] = []
    left_out: list[str] = []
    for found in gathered:
        settled, unread = settle(found, options=options, join=asked.join)
        runs += settled
        for line in unread:
            (left_out if isinstance(line, UnknownFormat) else failed).append(str(line))
    if not runs and not failed and not empty:
        failed.append(f"{asked.logs[0]}: a configuration and no log: stabcli audit takes it alone")
    if not allow_empty:
        failed += empty
        empty = []
    if runs:
        _kept(runs, options.metrics, chosen.place("metric", flag=asked.metrics))
    return Read(
        runs=tuple(runs), failed=tuple(failed), left_out=tuple(left_out), empty=tuple(empty)
    )


_FORMATS = "stabcli formats lists them"


def _kept(runs: Iterable[Run], metrics: Iterable[str], place: str) -> None:
    """Make sure that each column to keep is in one of the runs.

    Raises:
        SettingError: One is not.
    """
    from stabcli.settings import suggestion

    own = {name for run in runs for name in (*run.measurements, *run.columns.values())}
    for name in metrics:
        if name not in own:
            meant = suggestion(name, own, see="stabcli export writes all that there are")
            raise SettingError(f"{place} {name}: no such column of numbers: {meant}")


def _no_peak(facts: Mapping[str, Fact]) -> None:
    """Say of a GPU that the user named what is not known of it."""
    from stabcli.cli._output import complain
    from stabcli.hardware import PEAKS, peak

    gpu = facts.get("gpu")
    if gpu is None or "peak_tflops" in facts or peak(str(gpu.value)) is not None:
        return
    known = ", ".join(sorted(p.name for p in PEAKS))
    complain(
        f"{gpu.source} {gpu.value}: no peak FLOP/s is known of such a GPU, and so no MFU: add"
        f" --fact peak_tflops=X, or name one of {known}"
    )


def given_facts(asked: Asked, chosen: Settings) -> dict[str, Fact]:
    """Return what flags and settings say of the runs.

    Raises:
        SettingError: There is no such fact, or a value is none of its kind.
    """
    from stabcli.facts import given_fact

    facts = dict(given_fact(name, g.value, g.source) for name, g in chosen.facts.items())
    return facts | dict(given_fact(name, value, flag) for name, value, flag in asked.facts)


def _options(asked: Asked, chosen: Settings) -> Options:
    from stabcli.assembly import Options

    return Options(
        names={**chosen.names, **dict(pair("--map", text) for text in asked.names)},
        places={
            name: f"{chosen.file}: map: {name}"
            for name in chosen.names
            if name not in {pair("--map", text)[0] for text in asked.names}
        },
        facts=given_facts(asked, chosen),
        metrics=asked.metrics or chosen.list("metric"),
    )


def analysis(asked: Asked, chosen: Settings) -> Analysis:
    """Say which rules to run, and with which settings.

    Raises:
        SettingError: A rule, preset or setting does not exist.
    """
    from stabcli.rules import LISTED, checked_settings, rules, select
    from stabcli.settings import suggestion

    known = {r.name: r for r in rules}
    for name, given in chosen.rules.items():
        if name not in known:
            where = f"{chosen.file}: rules.{name}"
            raise SettingError(f"{where}: no such rule: {suggestion(name, known, see=LISTED)}")
        checked_settings(known[name], given, where=f"{chosen.file}: rules.")
    values: dict[str, dict[str, Any]] = {name: dict(v) for name, v in chosen.rules.items()}
    for text in asked.assignments:
        where, value = pair("--set", text)
        rule, dot, setting = where.partition(".")
        if not dot:
            raise SettingError(f"--set {text}: no setting named: write RULE.SETTING=VALUE")
        if rule not in known:
            raise SettingError(f"--set {text}: no such rule: {suggestion(rule, known, see=LISTED)}")
        one = {setting.replace("-", "_"): _BOOLEANS.get(value, value)}
        checked_settings(known[rule], one, where="--set ")
        values.setdefault(rule, {}).update(one)
    presets = asked.presets or chosen.list("preset") or ("default",)
    select(presets, asked.only, where=chosen.place("preset", flag=asked.presets))
    return Analysis(presets=presets, only=asked.only, settings=values)


_BOOLEANS = {"true": True, "false": False}


def pair(flag: str, text: str) -> tuple[str, str]:
    """Return the two sides of ``NAME=VALUE``.

    Raises:
        SettingError: One of them is missing.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise SettingError(f"{flag} {text}: no value in it: write NAME=VALUE")
    return name.strip(), value.strip()


def choose(flag: str, value: str, known: Iterable[str]) -> str:
    """Return ``value`` where it is one of ``known``.

    Raises:
        SettingError: It is not.
    """
    from stabcli.settings import suggestion

    names = list(known)
    if value not in names:
        raise SettingError(f"{flag} {value}: no such choice: {suggestion(value, names)}")
    return value
