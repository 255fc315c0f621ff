"""Post-mortems of training runs: read a log, find the incidents, price them, say what to do.

``read`` and ``scan`` are what other programs call; nothing slow is imported before they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from stabcli.diagnosis import Diagnosis
    from stabcli.run import Run

__version__ = "0.1.0"
__all__ = ["__version__", "read", "scan"]


def read(
    path: str | os.PathLike[str],
    *,
    reader: str | None = None,
    names: Mapping[str, str] | None = None,
    facts: Mapping[str, Any] | None = None,
    metrics: Sequence[str] = (),
) -> list[Run]:
    """Read every run of a log.

    Args:
        path: A file, a folder, a pattern, or ``-`` for standard input.
        reader: The format, where it is not to be found out (``stabcli formats``).
        names: Canonical name -> the log's own name, as ``--map``.
        facts: What is known of the run, as flags give it: ``{"gpus": 512, "parameters": "7B"}``.
        metrics: Columns to keep even in a very wide log.

    Returns:
        The runs, each with its rows as a Polars table. Files in a folder that are no logs are
        named in a warning.

    Raises:
        LogError: The log, or one in the folder, cannot be read; or there is none.
        SettingError: There is no such reader, fact or column.
    """
    import warnings

    from stabcli.assembly import Options
    from stabcli.errors import NothingThere, SettingError, UnknownFormat
    from stabcli.facts import given_fact
    from stabcli.readers import read_runs, readers
    from stabcli.settings import suggestion

    known = [r.name for r in readers]
    if reader is not None and reader not in known:
        meant = suggestion(reader, known, see="stabcli formats lists them")
        raise SettingError(f"reader {reader!r}: no such reader: {meant}")
    given = dict(given_fact(k, v, f"argument {k}") for k, v in (facts or {}).items())
    options = Options(names=dict(names or {}), facts=given, metrics=tuple(metrics))
    log = str(path)
    runs, unread = read_runs([log], options=options, format_name=reader)
    for error in unread:
        if not isinstance(error, UnknownFormat):
            raise error
        warnings.warn(str(error), stacklevel=2)
    if not runs:
        raise NothingThere(f"{log}: no log in this folder: check the path")
    return runs


def scan(
    path: str | os.PathLike[str],
    *,
    presets: Sequence[str] = ("default",),
    rules: Sequence[str] = (),
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    reader: str | None = None,
    names: Mapping[str, str] | None = None,
    facts: Mapping[str, Any] | None = None,
    metrics: Sequence[str] = (),
) -> list[Diagnosis]:
    """Read every run of a log and say what went wrong in it, what it cost, and what to do.

    Args:
        path: A file, a folder, a pattern, or ``-`` for standard input.
        presets: The presets whose rules to run.
        rules: Rules to run instead, by name.
        settings: Rule name -> setting -> value, where it is not the default.
        reader: As for ``read``.
        names: As for ``read``.
        facts: As for ``read``.
        metrics: As for ``read``.

    Returns:
        A diagnosis a run. ``skipped`` holds the rules that could not look: a run is not clean
        because nothing was found where nothing could be looked at.

    Raises:
        LogError: As for ``read``.
        SettingError: There is no such rule, preset, setting, reader, fact or column.
    """
    from stabcli.diagnosis import diagnose

    runs = read(path, reader=reader, names=names, facts=facts, metrics=metrics)
    return [diagnose(run, presets=presets, only=rules, settings=settings) for run in runs]
