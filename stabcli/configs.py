"""Configs: what the configuration file of a run says of it, in JSON, TOML or plain ``key: value``.

The plain kind is what most YAML configurations are: keys, values, tables by indentation, lists of
plain values. A line that is more than that is not guessed at but counted and told.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stabcli.errors import LogError
from stabcli.facts import find_facts
from stabcli.run import BadLines, Fact
from stabcli.sources import Source

PLAIN = (".yaml", ".yml", ".cfg", ".conf", ".ini")
"""Endings of files of keys and values."""
LARGEST = 1 << 24
"""Bytes beyond which no file is a configuration."""
SHOWN = 5
"""Lines that could not be read which are kept with their reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A configuration, as far as it tells of a training run."""

    name: str
    """Name of the file."""
    source: str
    """The file as the user gave it."""
    facts: Mapping[str, Fact]
    """What it says of the run."""
    keys: int
    """Settings in it, known or not."""
    bad: BadLines = field(default_factory=BadLines)
    """Lines that could not be read."""


def is_config(path: str) -> bool:
    """Say whether a file is a configuration rather than a log.

    TOML and files of keys and values are, by their ending; a JSON file is where it holds one
    object without a history of steps.
    """
    file = Path(path)
    if not file.is_file() or file.stat().st_size > LARGEST:
        return False
    if file.suffix in (*PLAIN, ".toml"):
        return True
    if file.suffix != ".json":
        return False
    try:
        held = json.loads(file.read_text("utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(held, dict) and "log_history" not in held and "step" not in held


_NAMED = re.compile(
    r"(?i)(?:^|[._-])(?:config|configs|conf|args|arguments|hparams|hyperparameters|hyperparams|params"
    r"|flags|settings|overrides|metadata)(?:[._-]|$)"
)
"""Words of the names that configurations go by; others that end in JSON hold all sorts of things."""
_NOT_OF_RUNS = re.compile(
    r"(?i)^(tokenizer|generation|preprocessor|processor|feature_extractor|image_processor|special"
    r"|vocab|package|pyproject|docker|dataset|model\.safetensors)"
)


def is_configuration(source: Source) -> bool:
    """Say by name, and of JSON by what it holds, whether a file in a tree configures a run.

    Narrower than ``is_config``, which a user asked about a file by name.
    """
    if source.is_folder or not os.path.isfile(source.shown):
        return False
    name = source.name
    if _NOT_OF_RUNS.match(name) or not is_config(source.shown):
        return False
    return not name.endswith(".json") or _NAMED.search(name.removesuffix(".json")) is not None


def hydra_configs(folder: Path) -> list[Path]:
    """Return the configuration that Hydra keeps of a run in a hidden folder."""
    path = folder / ".hydra" / "config.yaml"
    return [path] if path.is_file() else []


def read_config(path: str) -> Config:
    """Read a configuration.

    Raises:
        LogError: It cannot be read, or holds no settings.
    """
    file = Path(path)
    try:
        if file.stat().st_size > LARGEST:
            raise LogError(f"{path}: too large for a configuration: is it a log")
        text = file.read_text("utf-8-sig")
    except UnicodeDecodeError:
        raise LogError(f"{path}: not text: give a JSON, TOML or key: value file") from None
    except OSError as error:
        raise LogError(f"{path}: cannot be read: {error.strerror or error}") from None
    bad: list[tuple[int, str]] = []
    if file.suffix == ".toml":
        held = _toml(path, text)
    elif text.lstrip().startswith("{"):
        held = _json(path, text)
    else:
        held = plain(text, bad)
    settled = _settled(held)
    keys = _count(held)
    facts = find_facts(settled, file.name)
    if file.name == METADATA:
        from stabcli.wandbfile import host_facts

        facts = host_facts(held, file.name)
    if not keys:
        raise LogError(f"{path}: no settings in it: give a JSON, TOML or key: value file")
    return Config(
        name=file.name,
        source=path,
        facts=facts,
        keys=keys,
        bad=BadLines(count=len(bad), first=tuple(bad[:SHOWN])),
    )


def _settled(held: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a configuration really settles of a training.

    W&B puts each value into a table of its own, ``lr: {value: 0.1}``. The configuration of a model
    says in which format it was stored, not trained. The steps between checkpoints or evaluations
    count only where it is steps that decide.
    """
    made = {
        k: v["value"] if isinstance(v, Mapping) and "value" in v else v for k, v in held.items()
    }
    if {"architectures", "model_type"} & made.keys() and "learning_rate" not in made:
        made = {_MODEL_WORDS.get(k, k): v for k, v in made.items() if k not in _STORED}
    if made.get("save_strategy", "steps") != "steps":
        made.pop("save_steps", None)
    if made.get("eval_strategy", made.get("evaluation_strategy", "steps")) != "steps":
        made.pop("eval_steps", None)
    return made


METADATA = "wandb-metadata.json"
"""What W&B says of the host of a run."""
_STORED = ("dtype", "torch_dtype", "precision")
_MODEL_WORDS = {"n_routed_experts": "num_experts", "moe_topk": "top_k"}


def _toml(path: str, text: str) -> Mapping[str, Any]:
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise LogError(f"{path}: not valid TOML: {error}") from None


def _json(path: str, text: str) -> Mapping[str, Any]:
    try:
        held = json.loads(text)
    except json.JSONDecodeError as error:
        raise LogError(f"{path}:{error.lineno}: not valid JSON: {error.msg}") from None
    except (ValueError, RecursionError):
        raise LogError(f"{path}: not valid JSON: nested too deeply") from None
    return held if isinstance(held, dict) else {}


def _count(held: Mapping[str, Any]) -> int:
    """Count the settings, those of inner tables too."""
    count, stack = 0, [held]
    while stack:
        for value in stack.pop().values():
            if isinstance(value, Mapping):
                stack.append(value)
            else:
                count += 1
    return count


_PAIR = re.compile(
    r"""(?P<key>"[^"]+"|'[^']+'|[\w./@-][\w ./@-]*?)\s*(?::(?=\s|$)|=)\s*(?P<value>.*)"""
)
_TABLE = re.compile(r"\[([\w.-]+)\]")


def plain(text: str, bad: list[tuple[int, str]]) -> dict[str, Any]:
    """Return what a file of keys and values says.

    Args:
        text: The file.
        bad: Receives the lines that could not be read, with the reason.
    """
    root: dict[str, Any] = {}
    tables: list[tuple[int, dict[str, Any]]] = [(-1, root)]
    open_key: tuple[int, dict[str, Any], str] | None = None  # a key whose value comes below
    block: int | None = None  # indentation of a key whose text fills the lines below
    for number, raw in enumerate(text.splitlines(), start=1):
        line = _uncommented(raw.expandtabs(2))
        indent = len(line) - len(line.lstrip())
        line = line.strip()
        if not line or line in ("---", "...") or (block is not None and indent > block):
            continue
        block = None
        if (section := _TABLE.fullmatch(line)) is not None:
            table = root.setdefault(section[1], {})
            tables = [(-1, table if isinstance(table, dict) else {})]
            continue
        if line.startswith("- ") or line == "-":
            if open_key is None or indent < open_key[0] or not _append(open_key, line[1:].strip()):
                bad.append((number, "a list of tables, which is not read"))
            continue
        pair = _PAIR.fullmatch(line)
        if pair is None:
            bad.append((number, "no key: value"))
            continue
        while indent <= tables[-1][0]:
            tables.pop()
        if open_key is not None and indent > open_key[0]:
            inner: dict[str, Any] = {}
            open_key[1][open_key[2]] = inner
            tables.append((open_key[0], inner))
        open_key = None
        key, value = pair["key"].strip("\"'"), pair["value"].strip()
        table = tables[-1][1]
        if value in ("", "|", ">", "|-", ">-"):
            if value:
                block = indent
                bad.append((number, f"{key}: a block of text, which is not read"))
            else:
                open_key = (indent, table, key)
                table.setdefault(key, None)
            continue
        table[key] = _scalar(value)
    return root


def _uncommented(line: str) -> str:
    """Return a line without the comment at its end."""
    quote = ""
    for at, char in enumerate(line):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'" and (at == 0 or not line[at - 1].isalnum()):
            quote = char
        elif char == "#" and (at == 0 or line[at - 1].isspace()):
            return line[:at].rstrip()
    return line.rstrip()


def _append(open_key: tuple[int, dict[str, Any], str], text: str) -> bool:
    """Add an item to the list of a key; say whether it was a plain value."""
    _, table, key = open_key
    if not text or _PAIR.fullmatch(text) is not None:
        return False
    items = table.get(key)
    table[key] = [*(items if isinstance(items, list) else []), _scalar(text)]
    return True


_WORDS: Mapping[str, Any] = {
    "true": True, "yes": True, "on": True, "false": False, "no": False, "off": False,
    "null": None, "none": None, "~": None,
}  # fmt: skip


def _scalar(text: str) -> Any:
    """Return the value that a text stands for: a number, a switch, a list, or the text."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    if text.startswith("[") and text.endswith("]"):
        return [_scalar(item.strip()) for item in text[1:-1].split(",") if item.strip()]
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text
