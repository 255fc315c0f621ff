"""What is printed of every sample log, as somebody last looked at it and was content.

A rule that is new, or changed, shows here over all samples: the diff is the review of its false
alarms.
"""

import json
from pathlib import Path

import pytest

from stabcli.cli import run
from tests.conftest import ROOT
from tests.golden import golden
from tests.report.test_json import check
from tests.samples import name, samples


@pytest.mark.parametrize("sample", samples(), ids=name)
def test_sample_is_told_as_before(
    sample: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """The console report of a sample; STABCLI_UPDATE=1 accepts a new one."""
    monkeypatch.chdir(ROOT)
    status = run(["scan", str(sample.relative_to(ROOT))])
    shown = capsys.readouterr()
    errors = f"stderr:\n{shown.err}" if shown.err else ""

    golden(f"{name(sample)}.txt", f"{shown.out}{errors}exit status {status}\n")


@pytest.mark.parametrize("sample", samples(), ids=name)
def test_sample_as_json_fits_the_schema(
    sample: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """The JSON report of a real log is what the schema promises."""
    monkeypatch.chdir(ROOT)
    status = run(["scan", str(sample.relative_to(ROOT)), "--format", "json"])
    document = json.loads(capsys.readouterr().out)

    check(document)
    assert document["summary"]["exit"] == status
    assert document["runs"]
