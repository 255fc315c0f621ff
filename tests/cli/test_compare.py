"""Command compare: the table on one screen, in every format, and who is kept."""

import csv
import io
import json
from pathlib import Path

import pytest

from stabcli.cli import run
from tests.cli.commands import Stabcli
from tests.conftest import ROOT, SAMPLES
from tests.golden import block, golden

LORA = [f"sample_logs/hf-trainer/lora_{name}" for name in ("fine", "nan", "spike")]
AT = ["--at", "50,200"]
PRICED = ["--gpus", "1", "--tokens-per-step", "1024", "--gpu-hours-per-trillion", "70000"]
CLIPS = [
    "--run-fact",
    "A:grad_clip=1",
    "--run-fact",
    "B:grad_clip=1",
    "--run-fact",
    "C:grad_clip=0",
]


def test_the_three_fine_tunes_on_one_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Settings, loss at steps 50 and 200, result, GPU-hours wasted, and the right one kept."""
    monkeypatch.chdir(ROOT)
    status = run(["compare", *LORA, *AT, *PRICED, *CLIPS])
    out = capsys.readouterr().out

    assert status == 0
    golden("compare/lora.txt", out)
    assert out.startswith("KEEP  A lora_fine\n")
    for row in ("peak_lr", "warmup_steps", "grad_clip", "loss at step 50", "loss at step 200",
                "result", "GPU-hours wasted"):  # fmt: skip
        assert f"\n{row} " in out
    assert "unknown" not in out.partition("GPU-hours wasted")[2].partition("\n")[0]
    assert max(map(len, out.splitlines())) <= 80


def test_readme_shows_what_is_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Up to the curves; STABCLI_UPDATE=1 writes it anew."""
    monkeypatch.chdir(ROOT)
    arguments = ["compare", *LORA, *AT, "--gpus", "1"]
    assert run(arguments) == 0
    shown = capsys.readouterr().out.partition("\n\nloss  (")[0]

    command = " ".join(arguments).replace(" ".join(LORA), "sample_logs/hf-trainer/lora_*")
    block(ROOT / "README.md", "compare", f"```\n$ stabcli {command}\n{shown}\n…\n```\n")


def test_two_runs_of_one_seed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Where they first differ, by how much, and in what shape."""
    monkeypatch.chdir(ROOT)
    logs = [f"sample_logs/jsonl/{n}.jsonl" for n in ("clean", "bad_batch", "restart")]
    assert run(["compare", *logs]) == 0
    golden("compare/one_seed.txt", capsys.readouterr().out)


def test_json(stabcli: Stabcli):
    """Every figure for programs: strict JSON, NaN as text, unknown as null."""
    result = stabcli("compare", *(SAMPLES.parent / log for log in LORA), *AT, "--format", "json")
    told = json.loads(result.out, parse_constant=pytest.fail)

    assert (result.status, result.err) == (0, "")
    assert told["keep"] == ["A"]
    assert [p["at"] for p in told["points"]] == [50, 200]
    assert told["points"][0]["values"]["B"]["value"] == "NaN"
    assert told["runs"][0]["tokens"] is None
    assert told["pairs"][0]["relative_difference"]["largest"] == "Infinity"
    assert {tuple(p["runs"]): p["verdict"] for p in told["pairs"]}["A", "C"] == "same-shape"


def test_csv(stabcli: Stabcli):
    """A line a run; empty where unknown."""
    logs = [SAMPLES.parent / log for log in LORA]
    result = stabcli("compare", *logs, *AT, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(result.out)))

    assert [r["keep"] for r in rows] == ["yes", "no", "no"]
    assert [r["wasted steps"] for r in rows] == ["0", "292", "1"]
    assert rows[1]["loss at 200 steps"] == "nan"
    assert rows[0]["tokens"] == ""


def test_markdown_is_a_table_whatever_a_run_is_called(stabcli: Stabcli):
    """Names and notes are shown, not obeyed."""
    stabcli.healthy("a|b`<i>.jsonl")
    stabcli.spiked("b.jsonl")
    result = stabcli("compare", "a|b`<i>.jsonl", "b.jsonl", "--format", "markdown")
    table = [line for line in result.out.splitlines() if line.startswith("| ")]

    assert result.status == 0
    assert {line.replace("\\|", "").count("|") for line in table} == {4}
    outside = "\n".join(line for line in result.out.splitlines() if line not in table)
    assert "<i>" not in outside
    assert "``a\\|b`<i>.jsonl``" in table[0]


@pytest.mark.parametrize("form", ["console", "json", "csv", "markdown"])
def test_degenerate_runs_in_every_format(stabcli: Stabcli, form: str):
    """One row, all NaN, constant, another metric: a table, and no crash."""
    stabcli.log("one.jsonl", [{"step": 1, "loss": 2.0}])
    stabcli.log("nan.jsonl", ({"step": i, "loss": float("nan")} for i in range(50)))
    stabcli.log("flat.jsonl", ({"step": i, "loss": 2.0} for i in range(50)))
    stabcli.log("norms.jsonl", ({"step": i, "grad_norm": 1.0} for i in range(50)))
    result = stabcli(
        "compare", "one.jsonl", "nan.jsonl", "flat.jsonl", "norms.jsonl", "--format", form
    )

    assert (result.status, result.err) == (0, "")
    assert "norms.jsonl" in result.out or "norms" in result.out


def test_runs_of_one_name_are_told_by_their_paths(stabcli: Stabcli):
    """Two folders, each with its metrics.jsonl."""
    for folder in ("a", "b"):
        (stabcli.folder / folder).mkdir()
        stabcli.healthy(f"{folder}/metrics.jsonl")
    told = json.loads(
        stabcli("compare", "a/metrics.jsonl", "b/metrics.jsonl", "--format", "json").out
    )

    assert [r["name"] for r in told["runs"]] == ["a/metrics.jsonl", "b/metrics.jsonl"]


def test_ascii_where_nothing_else_shows(stabcli: Stabcli, monkeypatch: pytest.MonkeyPatch):
    """Frames, dashes and plus-minus have plain spellings."""
    monkeypatch.setattr("stabcli.cli.compare.plain_ascii", lambda: True)
    stabcli.healthy("a.jsonl")
    stabcli.log("b.jsonl", ({"step": i, "grad_norm": 1.0} for i in range(50)))

    assert stabcli("compare", "a.jsonl", "b.jsonl").out.isascii()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a.jsonl"], "one run alone"),
        (["a.jsonl", "none.jsonl"], "none.jsonl: no such file"),
        (["a.jsonl", "b.jsonl", "--at", "soon"], "--at soon: takes steps"),
        (["a.jsonl", "b.jsonl", "--run-fact", "C:seed=1"], "no run of that letter"),
        (["a.jsonl", "b.jsonl", "--run-fact", "seed=1"], "no run of that letter"),
        (["a.jsonl", "b.jsonl", "--run-fact", "A:seed"], "write NAME=VALUE"),
        (["a.jsonl", "b.jsonl", "--run-fact", "A:sead=1"], "no such fact"),
        (["a.jsonl", "b.jsonl", "--format", "html"], "no such choice"),
    ],
)
def test_wrong_usage_is_one_line_and_2(stabcli: Stabcli, arguments: list[str], said: str):
    """What is wrong is named, and nothing is printed."""
    stabcli.healthy("a.jsonl")
    stabcli.healthy("b.jsonl")
    result = stabcli("compare", *arguments)

    assert (result.status, result.out) == (2, "")
    assert result.err.count("\n") == 1
    assert said in result.err


def test_one_unreadable_log_does_not_keep_two_others_apart(stabcli: Stabcli):
    """They are compared; the exit status says that one is missing."""
    stabcli.healthy("a.jsonl")
    stabcli.spiked("b.jsonl")
    result = stabcli("compare", "a.jsonl", "none.jsonl", Path("b.jsonl"))

    assert result.status == 2
    assert result.out.startswith("KEEP")
    assert "none.jsonl" in result.err
