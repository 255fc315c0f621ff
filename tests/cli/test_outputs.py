"""`--output`: several reports of one look, none of them half written, nothing of others lost."""

import json
import os
import stat

import pytest

from stabcli.report import reports
from tests.cli.commands import Stabcli


def test_every_format_in_one_pass(stabcli: Stabcli, monkeypatch: pytest.MonkeyPatch):
    """Each report is written, and the log is looked at once."""
    from stabcli import diagnosis

    looked = []
    real = diagnosis.diagnose
    monkeypatch.setattr(
        diagnosis, "diagnose", lambda run, **how: looked.append(run) or real(run, **how)
    )
    wanted = [w for r in reports for w in ("--output", f"{r.name}:out.{r.name}")]
    result = stabcli("check", stabcli.spiked(), *wanted)

    assert (result.status, len(looked)) == (1, 1)
    assert result.out.startswith("FAIL")
    for r in reports:
        assert (stabcli.folder / f"out.{r.name}").stat().st_size, r.name


def test_marks_are_of_one_format_each(stabcli: Stabcli):
    """What shows a file to be ours is in the head of each of its reports and of no other's."""
    wanted = [w for r in reports for w in ("--output", f"{r.name}:out.{r.name}")]
    for log in (stabcli.spiked(), stabcli.healthy()):
        stabcli("check", log, "--force", *wanted)
        heads = {r.name: (stabcli.folder / f"out.{r.name}").read_bytes()[:4096] for r in reports}
        for r in reports:
            if r.mark is not None:
                holding = [name for name, head in heads.items() if r.mark.encode() in head]
                assert set(holding) <= {r.name}, r.name
                assert holding or (r.name == "gitlab" and log.name == "healthy.jsonl")


def test_files_of_others_are_not_overwritten(stabcli: Stabcli):
    """A file that is no report of the same kind stays as it is, unless --force is given."""
    log = stabcli.spiked()
    (stabcli.folder / "mine.json").write_text('{"name": "stabcli"}')
    refused = stabcli("scan", log, "--output", "json:mine.json")

    assert (refused.status, refused.out) == (2, "")
    assert "--force" in refused.err
    assert (stabcli.folder / "mine.json").read_text() == '{"name": "stabcli"}'
    assert stabcli("scan", log, "--output", "json:mine.json", "--force").status == 0
    assert json.loads((stabcli.folder / "mine.json").read_text())["runs"]


def test_a_report_may_replace_one_of_its_kind(stabcli: Stabcli):
    """A second look replaces the first report, but not one of another format."""
    log = stabcli.spiked()
    (stabcli.folder / "empty.json").touch()

    assert stabcli("check", log, "--output", "json:empty.json").status == 1
    assert stabcli("check", log, "--output", "json:empty.json").status == 1
    assert stabcli("check", log, "--output", "sarif:empty.json").status == 2
    healthy = stabcli.healthy()
    for again in (0, 0):  # a clean report of GitLab is an empty list
        assert stabcli("check", healthy, "--output", "gitlab:quality.json").status == again
    assert stabcli("check", log, "--output", "brief:notes.txt").status == 1
    assert stabcli("check", log, "--output", "brief:notes.txt").status == 2


def test_nothing_half_written_stays(stabcli: Stabcli, monkeypatch: pytest.MonkeyPatch):
    """Where writing breaks off, the old file is whole, no other is left, and the end is 2."""
    log = stabcli.spiked()
    stabcli("check", log, "--output", "json:a.json")
    before = (stabcli.folder / "a.json").read_text()

    def full(path, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    result = stabcli("check", log, "--output", "json:a.json", "--output", "sarif:b.sarif")

    assert result.status == 2
    assert "a.json: cannot be written: No space left on device" in result.err
    assert "b.sarif: cannot be written" in result.err
    assert (stabcli.folder / "a.json").read_text() == before
    assert sorted(p.name for p in stabcli.folder.iterdir()) == ["a.json", log.name]


def test_links_and_devices_stay_what_they_are(stabcli: Stabcli):
    """A link is written through, and a device is never replaced by a file."""
    log = stabcli.spiked()
    (stabcli.folder / "real.json").touch()
    (stabcli.folder / "link.json").symlink_to("real.json")
    wanted = ["--output", "json:link.json", "--output", f"sarif:{os.devnull}"]

    assert stabcli("check", log, *wanted).status == 1
    assert (stabcli.folder / "link.json").is_symlink()
    assert json.loads((stabcli.folder / "real.json").read_text())["runs"]
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_permissions_are_those_of_any_new_file(stabcli: Stabcli):
    """Others may read a report as far as the user's mask lets them."""
    old = os.umask(0o027)
    try:
        stabcli("check", stabcli.spiked(), "--output", "json:a.json")
    finally:
        os.umask(old)

    assert stat.S_IMODE((stabcli.folder / "a.json").stat().st_mode) == 0o640


def test_dash_is_stdout(stabcli: Stabcli):
    """A second report may follow the first on stdout."""
    out = stabcli("check", stabcli.spiked(), "--output", "github:-").out

    assert out.startswith("FAIL")
    assert "\n::error file=spiked.jsonl,line=301," in out


def test_reports_of_what_cannot_be_read(stabcli: Stabcli):
    """Nothing read is written all the same, and no report of it looks like a pass."""
    wanted = [w for r in reports for w in ("--output", f"{r.name}:out.{r.name}")]
    result = stabcli("check", "missing.jsonl", *wanted)
    told = {r.name: (stabcli.folder / f"out.{r.name}").read_text() for r in reports}

    assert (result.status, result.out) == (2, "")
    for name in set(told) - {"brief", "console"}:
        assert "missing.jsonl" in told[name], name


def test_summary_of_a_job_on_github(stabcli: Stabcli, monkeypatch: pytest.MonkeyPatch):
    """With annotations, the Markdown report is added to the summary, within its size."""
    summary = stabcli.folder / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    log = stabcli.spiked()
    stabcli("check", log)
    assert not summary.exists()
    summary.write_text("before\n")
    stabcli("check", log, "--format", "github")
    text = summary.read_text()

    assert text.startswith("before\n")
    assert "loss-spike" in text
    summary.write_text("x" * ((1 << 20) - 600))
    stabcli("check", log, "--format", "github")
    assert (1 << 20) - 600 < summary.stat().st_size <= 1 << 20
    assert "Cut here" in summary.read_text()
    summary.write_text("x" * ((1 << 20) + 5))
    stabcli("check", log, "--format", "github")
    assert summary.stat().st_size == (1 << 20) + 5


def test_files_are_relative_to_the_workspace(stabcli: Stabcli, monkeypatch: pytest.MonkeyPatch):
    """Code scanning wants paths from the root of the repository, wherever the command ran."""
    (stabcli.folder / "runs").mkdir()
    stabcli.spiked("runs/a.jsonl")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(stabcli.folder))
    monkeypatch.chdir(stabcli.folder / "runs")

    assert "file=runs/a.jsonl," in stabcli("check", "a.jsonl", "--format", "github").out
