"""Adding a rule, a reader or a format is adding one file; what that file owes is held here."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stabcli import __version__
from stabcli.readers import readers
from stabcli.report import reports
from stabcli.rules import PRESETS, Rule, rules
from stabcli.sources import open_source
from tests.conftest import ROOT, SAMPLES
from tests.golden import golden
from tests.samples import NOT_READERS, name, samples

HEADINGS = [
    "What it finds",
    "Why it matters",
    "What to do",
    "When it errs",
    "Settings",
    "Example",
    "Sources",
]
LINES = 400


@pytest.mark.parametrize("rule", list(rules), ids=lambda r: r.name)
def test_rule_page_has_every_heading_in_order(rule: Rule):
    """A rule says what it finds, why, what to do, when it errs, and where its figures are from."""
    assert re.findall(r"^## (.+)$", rule.page, re.MULTILINE) == HEADINGS
    assert all(rule.section(h) for h in HEADINGS if h != "Settings")


@pytest.mark.parametrize("rule", list(rules), ids=lambda r: r.name)
def test_rule_page_explains_exactly_its_settings(rule: Rule):
    """The settings in the page are those of the signature, in its order."""
    text = rule.page.partition("## Settings\n")[2].partition("\n## ")[0]

    assert re.findall(r"^(\w+):", text, re.MULTILINE) == list(rule.settings)


def version(text: str) -> tuple[int, ...]:
    """Return the numbers of a version, to compare."""
    return tuple(int(n) for n in re.findall(r"\d+", text)[:3])


@pytest.mark.parametrize("rule", list(rules), ids=lambda r: r.name)
def test_rule_belongs_somewhere(rule: Rule):
    """A rule is in a known preset and came with a version that exists."""
    assert rule.presets
    assert set(rule.presets) <= set(PRESETS)
    assert version(rule.since) <= version(__version__)


@pytest.mark.parametrize("rule", list(rules), ids=lambda r: r.name)
def test_summary_is_one_line_that_stands_alone(rule: Rule):
    """What `stabcli rules` lists fits a line and is a sentence."""
    assert rule.summary.endswith(".")
    assert len(rule.summary) <= 100


def test_each_reader_has_a_sample():
    """No sample, no reader; and no folder of samples without its reader."""
    named = {r.name for r in readers}
    folders = {p.name for p in SAMPLES.iterdir() if p.is_dir()} - NOT_READERS

    assert folders == named
    assert {p.parent.name for p in samples()} == named


@pytest.mark.parametrize("sample", samples(), ids=name)
def test_sample_is_claimed_by_its_reader_alone(sample: Path):
    """Every sample is claimed by the reader whose folder it lies in, and by no other."""
    source = open_source(sample)

    assert [r.name for r in readers if r.matches(source)] == [sample.parent.name]


def test_reports_are_the_formats_of_the_surface():
    """The output formats are those that were decided on."""
    assert [r.name for r in reports] == [
        "brief",
        "console",
        "github",
        "gitlab",
        "html",
        "json",
        "jsonl",
        "junit",
        "markdown",
        "sarif",
        "verdict",
    ]
    assert all(r.summary for r in reports)


def test_commands_and_flags_are_frozen():
    """A new command or flag is a decision: it shows in the diff of tests/golden/surface.txt."""
    from typer.main import get_command

    from stabcli.cli import make_app

    lines = []
    for verb, command in get_command(make_app()).commands.items():  # type: ignore[attr-defined]
        for parameter in command.params:
            lines.append(f"{verb} {' '.join(parameter.opts)}")
        if not command.params:
            lines.append(verb)

    golden("surface.txt", "\n".join(lines) + "\n")


HEAVY = ("polars", "numpy", "torch", "plotext", "rich", "pandas", "scipy")


def run_python(code: str) -> str:
    """Run code in a fresh interpreter and return what it printed."""
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize("arguments", [["--help"], ["scan", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]):
    """Help needs neither tables nor plots nor torch."""
    out = run_python(
        "import sys; from stabcli.cli import run; "
        f"status = run({arguments!r}); "
        f"print(status, [m for m in {HEAVY!r} if m in sys.modules])"
    )

    assert out.splitlines()[-1] == "0 []"


def test_version_imports_next_to_nothing():
    """The version is printed before the command-line library is imported."""
    out = run_python(
        "import sys; sys.argv = ['stabcli', '--version']; from stabcli.__main__ import main\n"
        "try:\n main()\nexcept SystemExit as end:\n print(end.code, 'typer' in sys.modules)"
    )

    assert out == f"stabcli {__version__}\n0 False\n"


def test_import_contract():
    """Imports point down only, rules and readers stand alone, only replay knows torch."""
    if importlib.util.find_spec("importlinter") is None:
        pytest.skip("import-linter is not installed; it is one of the dev extra")
    code = "from importlinter.cli import lint_imports_command as c; c(['--no-cache'])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.parametrize("folder", ["stabcli", "tests", "benchmarks"])
def test_no_file_is_too_long_to_be_read(folder: str):
    """No file is longer than 400 lines."""
    sizes = {
        str(p.relative_to(ROOT)): len(p.read_text(encoding="utf-8").splitlines())
        for p in (ROOT / folder).rglob("*.py")
    }

    assert {p: n for p, n in sizes.items() if n > LINES} == {}
