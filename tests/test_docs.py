"""The documentation is true: every example in a rule's page is run and its output compared."""

import inspect
import json
import re
import shlex
from pathlib import Path

import pytest

from stabcli.cli import run
from stabcli.cost import CLASSES, MEANING
from stabcli.rules import Rule, rules
from tests.conftest import ROOT
from tests.golden import HINT, UPDATE


def example(rule: Rule) -> tuple[str, list[str]]:
    """Return the command of a rule's example, and the lines it is said to print."""
    text = rule.page.partition("## Example\n")[2].partition("\n\n")[0]
    command, *output = text.splitlines()
    return command, [line.rstrip() for line in output]


def rewrite(path: Path, output: list[str]) -> None:
    """Put ``output`` under the command of the example in the file of a rule."""
    source = path.read_text(encoding="utf-8")
    body = "".join(f"    {line}\n" if line else "\n" for line in output)
    new, times = re.subn(
        r"(    ## Example\n    \$ [^\n]*\n)(?:    \S[^\n]*\n)*",
        lambda match: match[1] + body,
        source,
    )
    assert times == 1, f"{path} has no example to rewrite"
    path.write_text(new, encoding="utf-8")


@pytest.mark.parametrize("rule", list(rules), ids=lambda r: r.name)
def test_example_is_true(
    rule: Rule, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """A rule's example, run from the root of the project, prints what the page says."""
    command, said = example(rule)
    assert command.startswith("$ stabcli scan sample_logs/"), command
    assert f"--rule {rule.name}" in command, "an example selects its own rule"
    monkeypatch.chdir(ROOT)

    status = run(shlex.split(command)[2:])
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    if UPDATE and status == 0:
        rewrite(Path(inspect.getfile(rule.check)), printed)
        said = printed

    assert status == 0
    assert said == printed, HINT
    assert any(f" {rule.name} " in line for line in printed), "an example shows its rule at work"
    assert not any(line.startswith("skipped") for line in printed)


def test_rewriting_touches_the_example_alone(tmp_path: Path):
    """What STABCLI_UPDATE=1 writes goes under the command, and nowhere else."""
    page = 'def f():\n    """A.\n\n    ## Example\n    $ stabcli scan a\n    old\n    older\n\n    ## Sources\n    - b\n    """\n'
    path = tmp_path / "f.py"
    path.write_text(page, encoding="utf-8")
    rewrite(path, ["new  line", "two"])

    assert path.read_text(encoding="utf-8") == page.replace(
        "    old\n    older\n", "    new  line\n    two\n"
    )


@pytest.mark.parametrize("name", CLASSES)
def test_each_class_of_the_bill_is_told_once_and_alike(
    name: str, capsys: pytest.CaptureFixture[str]
):
    """README, the schema and ``explain`` say of each class what the bill says beside it."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.count(f"| `{name}` | {MEANING[name]} |\n") == 1

    schema = json.dumps(json.loads((ROOT / "stabcli/schema.json").read_text(encoding="utf-8")))
    assert schema.count(f"{name}: {MEANING[name]}") == 1

    assert run(["explain", name]) == 0
    assert MEANING[name] in " ".join(capsys.readouterr().out.split())
