"""Banners: what a text log says of its settings before its first step, whoever printed it.

Loops print their arguments in a handful of ways: ``Namespace(lr=0.1)``, ``{'lr': 0.1}``, a line
``lr: 0.1`` or ``lr = 0.1`` each, a table, a command line. Only names that mean one thing everywhere
are taken (``stabcli.facts``); a framework's own words are its reader's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from stabcli.facts import FACTS, find_facts
from stabcli.run import Fact

SEARCHED = 1 << 20
"""Bytes of a log before a first step that are searched."""

_AMBIGUOUS = frozenset(
    {"total_batch_size", "gpu", "parameters", "params", "stage", "outcome", "optimizer"}
)
"""Names that mean more than one thing where no reader vouches for the words: tokens or sequences."""
_WORDS = {n for known in FACTS.values() for n in known.names if n not in _AMBIGUOUS}
_NAMES = "|".join(sorted(_WORDS | {"bf16", "fp16"}, key=len, reverse=True))
_VALUE = r"""(?:'(?P<quoted>[^'\n]*)'|"(?P<double>[^"\n]*)"|(?P<bare>[^\s,'"(){}\[\]|]+))"""
_LINE = re.compile(
    rf"""(?:^ *|[\]\-|] +|\w+: )["']?(?P<key>{_NAMES})["']?(?: ?[:=] ?| +[:=] +){_VALUE}"""
    r""" *[,|]?(?: +#.*)?$"""
)
"""A line, behind a logger's prefix or none, that holds one setting and nothing else."""
_CALL = re.compile(rf"\b(?P<key>{_NAMES})={_VALUE}")
"""A setting among those of ``Namespace(…)`` or ``TrainArgs(…)``."""
_CALLED = re.compile(r"\b(?:Namespace|\w*Arg(?:ument)?s|\w*[Cc]onfig(?:uration)?)\(")
_ITEM = re.compile(rf"""['"](?P<key>{_NAMES})['"]: ?{_VALUE}""")
"""A setting of a dictionary."""
_DICTIONARY = re.compile(r"""\{['"]\w+['"]: |(?:^|\) ) *['"]\w+['"]: """)
_FLAG = re.compile(rf"\s--?(?P<key>{_NAMES.replace('_', '[-_]')})[ =]{_VALUE}")
_ROW = re.compile(rf"^\| *(?P<key>{_NAMES}) *\| *{_VALUE} *\|$")
_CODE = re.compile(r"^(?:import|from|def|class) \w", re.MULTILINE)
_LINES_OF_CODE = 3
"""Lines of source code from which a log is taken to begin with the script that wrote it."""
_SHORTEST = 3


def settings_said(path: Path, before: int, after: int = 0) -> dict[str, Fact]:
    """Return the facts that a text log states before the first step of a run.

    Args:
        path: The log.
        before: Line of that step, which and after which nothing is a setting.
        after: Line of the last step of the run before it in the same log.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        for _ in islice(file, after):
            pass
        text = file.read(SEARCHED).decode("utf-8", "replace")
    lines = text.split("\n")[: before - after - 1]
    code = len(_CODE.findall("\n".join(lines))) >= _LINES_OF_CODE
    found: dict[str, Fact] = {}
    for number, line in enumerate(lines, start=after + 1):
        for key, value in _said(line.rstrip("\r"), code=code):
            name = key.replace("-", "_")
            for fact, one in find_facts({name: value}, f"line {number}").items():
                if FACTS[fact].kind != "text" or not value.replace(".", "").isdigit():
                    found.setdefault(fact, one)
    return found


def _said(line: str, *, code: bool) -> Iterator[tuple[str, str]]:
    """Yield the settings in a line; of a log with source code only those of printed objects."""
    if len(line) < _SHORTEST:
        return
    patterns: list[re.Pattern[str]] = []
    if _CALLED.search(line) and not code:
        patterns.append(_CALL)
    if ("': " in line or '": ' in line) and _DICTIONARY.search(line):
        patterns.append(_ITEM)
    if " -" in line and not code:
        patterns.append(_FLAG)
    if not code:
        patterns += [_LINE, _ROW]
    for pattern in patterns:
        for found in pattern.finditer(line):
            value = found["quoted"] or found["double"] or found["bare"]
            if value and value not in ("None", "null"):
                yield found["key"], value
