"""Settings: flags win over ``STABCLI_*``, those over a settings file, that over the defaults.

The file is the nearest ``stabcli.toml``, or ``pyproject.toml`` with a ``[tool.stabcli]``, in
the working directory or above it. A key nobody knows is an error: a threshold that is spelt
wrong would otherwise be ignored in silence.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stabcli.errors import SettingError

PREFIX = "STABCLI_"
"""What the environment's settings begin with."""
NOT_SETTINGS = ("STABCLI_UPDATE", "STABCLI_SHARED", "STABCLI_MUTATIONS")
"""Variables that the project's own tests read."""

WORDS = ("format", "reader", "fail_on")
"""Settings that are one word."""
LISTS = ("preset", "metric")
"""Settings that are one word or several."""
TABLES = ("map", "facts", "rules", "check", "ignore")
"""Settings that are tables, in a file only; ``ignore`` is an array of them."""
CHECK = (
    "require",
    "baseline",
    "max_wasted_gpu_hours",
    "max_wasted_share",
    "min_mfu",
    "max_final_loss",
    "max_discarded_steps",
)
"""What ``[check]`` in a file, or the environment, may ask of a run."""


NAMED = 12
"""Names up to which a message lists them where a command lists them all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A value and where it was given."""

    value: Any
    source: str
    """``stabcli.toml``, ``STABCLI_GPUS``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that was set outside of the command line."""

    words: Mapping[str, Given] = field(default_factory=dict)
    """``format``, ``reader``, ``fail_on``: strings."""
    lists: Mapping[str, Given] = field(default_factory=dict)
    """``preset``, ``metric``: tuples of strings."""
    facts: Mapping[str, Given] = field(default_factory=dict)
    """Name of a fact -> value."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Canonical name -> the log's own name (``[map]``)."""
    rules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Rule -> setting -> value (``[rules.<name>]``)."""
    check: Mapping[str, Given] = field(default_factory=dict)
    """What is asked of a run (``[check]``): one of ``CHECK`` -> value, not yet checked."""
    margins: Mapping[str, Given] = field(default_factory=dict)
    """How much worse than a baseline is still well (``[check.margins]``), not yet checked."""
    ignores: tuple[Given, ...] = ()
    """Tables of the findings that do not count (``[[ignore]]``), not yet checked."""
    file: str | None = None
    """The settings file that was read."""

    def word(self, name: str) -> str | None:
        """Return a one-word setting, or None where it was not set."""
        return str(self.words[name].value) if name in self.words else None

    def place(self, name: str, *, flag: object) -> str:
        """Say where a setting was made: by the flag, if that was given, or else outside of it."""
        found = self.words.get(name) or self.lists.get(name)
        if flag or found is None:
            return f"--{name.replace('_', '-')}"
        return found.source if found.source.startswith(PREFIX) else f"{found.source}: {name} ="

    def list(self, name: str) -> tuple[str, ...]:
        """Return a setting of several words; empty where it was not set."""
        return tuple(self.lists[name].value) if name in self.lists else ()


def load(folder: Path, environment: Mapping[str, str], facts: Collection[str]) -> Settings:
    """Read the settings file and the environment.

    Args:
        folder: Where to begin looking for a file, going up.
        environment: The environment's variables.
        facts: Names of the facts there are.

    Raises:
        SettingError: A file is not TOML, a key is unknown, or a value is of the wrong kind.
    """
    file, table = _nearest(folder)
    words: dict[str, Given] = {}
    lists: dict[str, Given] = {}
    known_facts: dict[str, Given] = {}
    names: Mapping[str, Any] = {}
    rules: Mapping[str, Any] = {}
    check: dict[str, Given] = {}
    margins: dict[str, Given] = {}
    ignores: tuple[Given, ...] = ()
    shown = file or ""
    for key, value in table.items():
        name = key.replace("-", "_")
        if name in WORDS:
            words[name] = Given(value=_word(shown, key, value), source=shown)
        elif name in LISTS:
            lists[name] = Given(value=_words(shown, key, value), source=shown)
        elif name == "map":
            names = {k: _word(shown, f"map.{k}", v) for k, v in _table(shown, key, value).items()}
        elif name == "facts":
            for fact, given in _table(shown, key, value).items():
                _known(f"{shown}: facts.{fact}", "fact", fact, facts)
                known_facts[fact] = Given(value=given, source=shown)
        elif name == "rules":
            inner = _table(shown, key, value)
            rules = {r: _table(shown, f"rules.{r}", v) for r, v in inner.items()}
        elif name == "check":
            check, margins = _check(shown, _table(shown, key, value))
        elif name == "ignore":
            if not isinstance(value, list):
                raise SettingError(f"{shown}: ignore: write [[ignore]], with two brackets")
            tables = [_table(shown, "ignore", v) for v in value]
            ignores = tuple(Given(value=t, source=shown) for t in tables)
        else:
            _known(f"{shown}: {key}", "setting", name, (*WORDS, *LISTS, *TABLES))
    for variable, text in environment.items():
        if not variable.startswith(PREFIX) or variable in NOT_SETTINGS or not text:
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name in WORDS:
            words[name] = Given(value=text, source=variable)
        elif name in LISTS:
            parts = tuple(p.strip() for p in text.split(",") if p.strip())
            lists[name] = Given(value=parts, source=variable)
        elif name in CHECK:
            check[name] = Given(value=text, source=variable)
        else:
            variables = {f"{PREFIX}{n.upper()}" for n in (*WORDS, *LISTS, *CHECK, *facts)}
            _known(variable, "setting", variable, variables)
            known_facts[name] = Given(value=text, source=variable)
    return Settings(
        words=words,
        lists=lists,
        facts=known_facts,
        names=names,
        rules=rules,
        check=check,
        margins=margins,
        ignores=ignores,
        file=file,
    )


def suggestion(name: str, known: Collection[str], *, see: str = "") -> str:
    """Say which known names were probably meant, or list them all; ``see`` is what lists many."""
    from difflib import get_close_matches

    if close := get_close_matches(name, known, n=1, cutoff=0.8):
        return f"did you mean {close[0]}?"
    word = name.lower()
    within = sorted(k for k in known if len(word) > 1 and word in k.lower())
    if within and see:
        more = f" (or {len(within) - NAMED:,} more)" if within[NAMED:] else ""
        return f"did you mean {', '.join(within[:NAMED])}{more}?"
    likeness = 0.7 if len(known) <= NAMED else 0.6  # a short list says more than a far guess
    if close := get_close_matches(name, known, n=1, cutoff=likeness):
        return f"did you mean {close[0]}?"
    if see and len(known) > NAMED:
        return see
    return f"one of {', '.join(sorted(known))}"


def _check(shown: str, table: Mapping[str, Any]) -> tuple[dict[str, Given], dict[str, Given]]:
    """Return what ``[check]`` and ``[check.margins]`` say."""
    asked: dict[str, Given] = {}
    margins: dict[str, Given] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name == "margins":
            for margin, given in _table(shown, "check.margins", value).items():
                where = f"{shown}: check.margins.{margin}"
                margins[margin] = Given(value=given, source=where)
            continue
        _known(f"{shown}: check.{key}", "setting", name, (*CHECK, "margins"))
        asked[name] = Given(value=value, source=f"{shown}: check.{key}")
    return asked, margins


def _known(where: str, noun: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise SettingError(f"{where}: no such {noun}: {suggestion(name, known)}")


def _nearest(folder: Path) -> tuple[str | None, Mapping[str, Any]]:
    """Return the nearest settings file, as it is shown to people, and what it sets."""
    folder = folder.resolve()
    for level in (folder, *folder.parents):
        own = level / "stabcli.toml"
        if own.is_file():
            return _shown(own, folder), _read(own, folder)
        project = level / "pyproject.toml"
        if project.is_file():
            table = _read(project, folder).get("tool", {}).get("stabcli")
            if table is not None:
                shown = f"{_shown(project, folder)} [tool.stabcli]"
                return shown, _table(shown, "tool.stabcli", table)
    return None, {}


def _shown(path: Path, folder: Path) -> str:
    return os.path.relpath(path, folder)


def _read(path: Path, folder: Path) -> Mapping[str, Any]:
    import tomllib

    shown = _shown(path, folder)
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{shown}: not valid TOML: {error}") from None
    except OSError as error:
        raise SettingError(f"{shown}: cannot be read: {error.strerror or error}") from None


def _word(where: str, key: str, value: object) -> str:
    if not isinstance(value, str):
        raise SettingError(f"{where}: {key}: takes a word, not {value!r}")
    return value


def _words(where: str, key: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and all(isinstance(v, str) for v in value):
        return tuple(value)
    raise SettingError(f"{where}: {key}: takes a word or a list of words, not {value!r}")


def _table(where: str, key: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise SettingError(f"{where}: {key}: takes a table, not {value!r}")
    return value
