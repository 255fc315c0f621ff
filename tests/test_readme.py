"""README tells what is so: its tables come from the registries, its commands exist."""

import ast
import re
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from stabcli.baseline import margins
from stabcli.cli import COMMANDS, run
from stabcli.criteria import LIMITS, limit
from stabcli.facts import FACTS
from stabcli.ignores import parse
from stabcli.presets import PRESETS
from stabcli.readers import readers
from stabcli.report import reports
from stabcli.rules import Rule, rules
from stabcli.settings import CHECK, load
from tests.conftest import ROOT
from tests.golden import block

README = ROOT / "README.md"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def needs(rule: Rule) -> str:
    """What a rule needs to look at."""
    return ", ".join(f"`{m}`" for m in rule.needs) or "any column"


def test_tables_are_what_the_registries_say():
    """The tables of rules and formats; STABCLI_UPDATE=1 writes them anew."""
    for preset in ("default", "seed"):
        listed = [r for r in rules if preset in r.presets]
        rows = [[f"`{r.name}`", needs(r), r.summary] for r in listed]
        name = "rules" if preset == "default" else f"rules {preset}"
        block(README, name, table(["Rule", "Needs", "Finds"], rows))
    rows = [
        [f"`{p}`", said, ", ".join(f"`{r.name}`" for r in rules if p in r.presets)]
        for p, said in list(PRESETS.items())[2:]
    ]
    block(README, "presets", table(["Preset", "Whose rule", "Rules"], rows))
    rows = [[f"`{r.name}`", r.writes] for r in readers]
    block(README, "formats", table(["Format", "Written by"], rows))
    rows = [[f"`{r.name}`", r.summary.replace("``", "`")] for r in reports]
    block(README, "reports", table(["Report", "Holds"], rows))


def test_settings_shown_are_settings(tmp_path: Path):
    """The settings file of the page is read as it stands, ignores, limits and margins included."""
    page = README.read_text(encoding="utf-8")
    (tmp_path / "stabcli.toml").write_text(page.partition("```toml\n")[2].partition("```")[0])
    found = load(tmp_path, {}, FACTS)

    assert set(found.check) <= set(CHECK)
    assert {k: limit(k, g.value, "") for k, g in found.check.items() if k in LIMITS} == {
        "max_wasted_share": 0.05
    }
    assert margins({k: (g.value, "") for k, g in found.margins.items()}).loss == 0.01
    assert parse(found.ignores[0].value, "", [r.name for r in rules]).last == 12100


def test_session_is_real(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """The session shown is what the command prints."""
    monkeypatch.chdir(ROOT)
    arguments = ["scan", "sample_logs/jsonl/synthetic_7b_spike.jsonl"]

    assert run(arguments) == 0
    shown = f"$ stabcli {' '.join(arguments)}\n{capsys.readouterr().out}"
    block(README, "session", f"```\n{shown}```\n")


def test_tree_is_the_tree():
    """Every module stands in the tree, in the order of the import contract, with its own words."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    lines = ["stabcli/"]
    for name in [n.strip() for layer in contract for n in layer.split("|")]:
        path = ROOT / "stabcli" / name
        shown = f"{name}/" if path.is_dir() else f"{name}.py"
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        lines.append(f"    {shown:<18}{about(file)}")
    lines += [f"    {name:<18}{what}" for name, what in BESIDE.items()]
    lines += [f"{name:<22}{what}" for name, what in AROUND.items()]

    block(README, "tree", "```\n" + "\n".join(lines) + "\n```\n")


BESIDE = {
    "demo/": "the log that `stabcli demo` reads",
    "schema.json": "the JSON Schema of `--format json`",
}
AROUND = {
    "tests/": "mirrors stabcli/; golden/ holds what was printed when last reviewed",
    "sample_logs/": "small logs, at least one a reader, and the scripts that make them",
    "benchmarks/": "readers beside their peers on the same files",
    ".ci/run": "tests, linter, types, import contract",
    ".github/actions/": "the action that checks runs on GitHub",
    ".gitlab/": "the job that checks runs on GitLab",
}


def about(file: Path) -> str:
    """The first sentence of a module's docstring, without the name it begins with."""
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    sentence = " ".join(docstring.partition("\n\n")[0].split())
    head, colon, tail = sentence.partition(": ")
    said = tail if colon and " " not in head else sentence
    acronym = said[1:2].isupper()
    return (said if acronym else said[:1].lower() + said[1:]).replace("``", "`").rstrip(".")


def test_every_command_named_exists():
    """Every `stabcli COMMAND` in a code block or in backticks is a command."""
    page = README.read_text(encoding="utf-8")
    named = set(re.findall(r"(?:`|\$ |^|&& )stabcli ([a-z-]+)", page, re.MULTILINE))

    assert named
    assert named <= set(COMMANDS)
