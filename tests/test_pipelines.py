"""What other people's pipelines run: the action's script, the hook, and the files around them."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, SAMPLES

ACTION = ROOT / ".github" / "actions" / "stabcli"
HOOKS = ROOT / ".pre-commit-hooks.yaml"
JOB = ROOT / ".gitlab" / "stabcli.yml"
CLEAN = SAMPLES / "jsonl" / "clean.jsonl"
SPIKE = SAMPLES / "jsonl" / "bad_batch.jsonl"

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash on this system")


def action(folder: Path, logs: str, arguments: str = "") -> tuple[int, str, dict[str, str]]:
    """Run the action's script; return its status, output and the outputs of the step."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    (programs / "stabcli").write_text(f'#!/bin/sh\nexec {sys.executable} -m stabcli "$@"\n')
    (programs / "stabcli").chmod(0o755)
    done = subprocess.run(
        ["bash", str(ACTION / "check.sh")],
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
        env={
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "LOGS": logs,
            "ARGUMENTS": arguments,
            "REPORTS": "reports here",
            "GITHUB_OUTPUT": str(folder / "output"),
            "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
            "GITHUB_WORKSPACE": str(ROOT),
        },
    )
    lines = (folder / "output").read_text().splitlines() if (folder / "output").exists() else []
    return done.returncode, done.stdout, dict(line.split("=", 1) for line in lines)


def test_action_fails_with_annotations_reports_and_summary(tmp_path):
    """A spike ends the step with 1; its line is annotated and every report is there."""
    status, out, outputs = action(tmp_path, f"{CLEAN}\n{SPIKE}\n", "--require\nloss")

    assert (status, outputs["status"]) == (1, "1")
    assert "::error file=sample_logs/jsonl/bad_batch.jsonl,line=606," in out
    assert "loss-spike" in (tmp_path / "summary.md").read_text()
    assert json.loads((tmp_path / outputs["json"]).read_text())["summary"]["runs"] == 2
    assert json.loads((tmp_path / outputs["sarif"]).read_text())["version"] == "2.1.0"
    assert (tmp_path / outputs["junit"]).read_text().startswith("<?xml")


def test_action_passes_and_cannot_judge(tmp_path):
    """A clean log ends with 0, what cannot be judged with 2, and inputs are never commands."""
    assert action(tmp_path, str(CLEAN))[0] == 0
    assert action(tmp_path, str(CLEAN), "--require\nmfu")[0] == 2
    status, _, _ = action(tmp_path, "$(touch pwned); `touch pwned`")

    assert status == 2
    assert not (tmp_path / "pwned").exists()


def test_action_hands_its_inputs_on():
    """Every input is given to the script as a variable, never pasted into it, and every output
    is one that the script sets.
    """
    text = (ACTION / "action.yml").read_text(encoding="utf-8")
    script = (ACTION / "check.sh").read_text(encoding="utf-8")
    inputs = re.findall(
        r"^  ([a-z-]+):$", text.partition("inputs:")[2].partition("outputs:")[0], re.MULTILINE
    )

    assert inputs == ["logs", "arguments", "reports", "python-version"]
    for line in text.splitlines():
        assert not (line.strip().startswith("run:") and "${{" in line), line
    for name in ("LOGS", "ARGUMENTS", "REPORTS"):
        assert f"{name}: ${{{{ inputs.{name.lower()} }}}}" in text
        assert f"${{{name}" in script
    for name in re.findall(r"steps\.check\.outputs\.([a-z]+)", text):
        assert f'echo "{name}=' in script


def test_no_variable_of_theirs_is_taken_for_a_setting():
    """A variable that begins like our settings would be an unknown setting."""
    for path in (ACTION / "action.yml", ACTION / "check.sh", JOB):
        assert "STABCLI_" not in path.read_text(encoding="utf-8"), path


def test_hook_and_job_name_commands_that_exist(tmp_path):
    """The hook runs `stabcli check` on names of logs; the job's flags are known."""
    hook = HOOKS.read_text(encoding="utf-8")
    entry = re.search(r"entry: (.+)", hook)
    files = re.search(r"files: (.+)", hook)
    assert entry
    assert files
    assert re.search(files[1], "runs/a/trainer_state.json")
    assert not re.search(files[1], "runs/a/config.json")
    command = entry[1].split()
    flags = re.findall(r"--output [a-z]+:\S+", JOB.read_text(encoding="utf-8"))
    assert len(flags) == 2
    done = subprocess.run(
        [sys.executable, "-m", *command, str(CLEAN), *" ".join(flags).split()],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )

    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "gl-code-quality-report.json").exists()
