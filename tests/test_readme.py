"""README tells what is so: its tables come from the registries, its commands exist."""

import re
from collections.abc import Iterable, Sequence

from stabcli.cli import COMMANDS
from stabcli.readers import readers
from stabcli.rules import Rule, rules
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
    rows = [[f"`{r.name}`", r.writes] for r in readers]
    block(README, "formats", table(["Format", "Written by"], rows))


def test_tree_names_every_module():
    """The tree in README has a line for every module and package of stabcli, and no other."""
    page = README.read_text(encoding="utf-8")
    tree = page.partition("## The tree\n")[2].partition("```\n")[2].partition("```")[0]
    named = set(re.findall(r"^    (\w+)(?:\.py|/)", tree.partition("\ntests/")[0], re.MULTILINE))
    package = ROOT / "stabcli"
    there = {p.stem for p in package.glob("*.py") if not p.stem.startswith("__")}
    there |= {p.parent.name for p in package.glob("*/__init__.py")} | {"demo"}

    assert named == there


def test_every_command_named_exists():
    """Every `stabcli COMMAND` in a code block or in backticks is a command."""
    page = README.read_text(encoding="utf-8")
    named = set(re.findall(r"(?:`|\$ |^|&& )stabcli ([a-z-]+)", page, re.MULTILINE))

    assert named
    assert named <= set(COMMANDS)
