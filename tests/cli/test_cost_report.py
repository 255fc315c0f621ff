"""Command cost-report: on one screen, in every format, never a figure without its inputs."""

import csv
import io
import json

import pytest

from stabcli.cli import run
from tests.conftest import SAMPLES
from tests.golden import golden

SPIKE = str(SAMPLES / "jsonl" / "synthetic_7b_spike.jsonl")
CLEAN = str(SAMPLES / "jsonl" / "clean.jsonl")
POLICY = "checkpoint-every=2000,stop-on=loss-spike"


@pytest.fixture
def typed(capsys, monkeypatch, tmp_path):
    """Run the command line in an empty folder; return status, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    for name in ("STABCLI_FORMAT", "STABCLI_GPUS"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments):
        status = run(["cost-report", *arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return call


def test_the_synthetic_spike_on_one_screen(typed, monkeypatch):
    """Lost, bounded by the policy, and void with the redo: all of it within 50 lines of 80."""
    monkeypatch.chdir(SAMPLES.parent)
    status, out, err = typed_here(typed, "sample_logs/jsonl/synthetic_7b_spike.jsonl",
                                  monkeypatch)  # fmt: skip

    assert (status, err) == (0, "")
    golden("cost_report/synthetic_7b_spike.txt", out)
    flat = " ".join(out.split())
    assert "wasted: 5,000 steps, 20B tokens, 808 GPU-hours" in flat
    assert "at most 2,000 steps, 8B tokens, 323 GPU-hours" in flat
    assert "are void" in flat
    assert len(out.splitlines()) <= 50
    assert max(map(len, out.splitlines())) <= 80


def typed_here(typed, log, monkeypatch):
    monkeypatch.chdir(SAMPLES.parent)
    return typed(log, "--what-if", POLICY)


def test_json_carries_every_figure_with_its_source(typed):
    """Total, classes, sources, plans, policies and breakers; unknown is null."""
    status, out, _ = typed(SPIKE, "--format", "json", "--what-if", POLICY)
    told = json.loads(out)["runs"][0]

    assert status == 0
    assert told["cost"]["total"]["steps"] == 5000
    assert told["cost"]["total"]["usd"] is None
    assert set(told["cost"]["sources"]) == {"tokens", "gpu_hours"}
    assert "wall clock" in told["cost"]["sources"]["gpu_hours"]
    assert sum(c["gpu_hours"] for c in told["cost"]["classes"]) == pytest.approx(
        told["cost"]["all"]["gpu_hours"]
    )
    assert told["what_if"][0]["saved"]["steps"] == 3000
    assert len(told["breakers"]) == 5
    grave = [i for i in told["incidents"] if i["plans"]]
    assert grave[0]["plans"][0]["roll_back_to"] == 118_000
    assert grave[0]["plans"][0]["redo"]["steps"] == 7000


def test_csv_adds_up(typed):
    """The lines of the classes add up to the line of all."""
    _, out, _ = typed(SPIKE, "--format", "csv", "--gpu-price", "2")
    rows = list(csv.DictReader(io.StringIO(out)))

    assert [r["class"] for r in rows] == ["lost", "productive", "all"]
    for field in ("steps", "tokens", "gpu_hours", "usd", "share"):
        assert sum(float(r[field]) for r in rows[:-1]) == pytest.approx(float(rows[-1][field]))


@pytest.mark.parametrize("by", ["class", "incident", "run"])
@pytest.mark.parametrize("form", ["console", "csv", "markdown", "json"])
def test_every_format_by_everything(typed, form, by):
    """Two runs, each format, each table: no crash, and the spike is there."""
    status, out, err = typed(SPIKE, CLEAN, "--format", form, "--by", by)

    assert (status, err) == (0, "")
    assert "synthetic" in out
    assert "5000" in out or "5,000" in out


def test_several_runs_have_a_total(typed):
    """The total is the sum, and unknown where one run's GPU-hours are."""
    _, out, _ = typed(SPIKE, SPIKE, "--by", "run", "--format", "json")
    last = json.loads(out)["lines"][-1]

    assert (last["name"], last["steps"], last["tokens"]) == ("all runs", 10_000, 40e9)


def test_unknown_says_which_flag(typed, tmp_path):
    """A bare log has unknown tokens and GPU-hours, and asks for what would make them known."""
    log = tmp_path / "bare.jsonl"
    log.write_text("\n".join(json.dumps({"step": s, "loss": 2.0}) for s in range(100)) + "\n")
    _, out, _ = typed(str(log))
    flat = " ".join(out.split())

    assert "tokens: unknown: add --tokens-per-step N" in flat
    assert "unknown" in flat.split("all", 1)[1]


def test_counts_as_people_type_them(typed, tmp_path):
    """7e9, 7B and 4M are the same counts; a share is 0.4 or 40%."""
    log = tmp_path / "bare.jsonl"
    log.write_text("\n".join(json.dumps({"step": s, "loss": 2.0}) for s in range(1, 251)) + "\n")
    told = [
        typed(str(log), "--params", n, "--tokens-per-step", t, "--gpu", "H100", "--mfu", m,
              "--flops-convention", "hf", "--format", "csv")[1]
        for n, t, m in (("7e9", "4000000000", "0.4"), ("7B", "4B", "40%"), ("7000M", "4e9", "40"))
    ]  # fmt: skip

    assert told[0] == told[1] == told[2]
    hours = float(list(csv.DictReader(io.StringIO(told[0])))[-1]["gpu_hours"])
    assert hours == pytest.approx(29_500, rel=0.005)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--gpu-price", "cheap"),
        ("--what-if", "stop-on=nothing"),
        ("--mfu", "140"),
        ("--energy", "pue=1"),
        ("--by", "week"),
        ("--format", "pdf"),
        ("--flops-convention", "mine"),
        ("--gpus", "many"),
    ],
)
def test_bad_flag_is_one_line_and_status_2(typed, arguments):
    """A wrong flag is named; nothing is printed to stdout."""
    status, out, err = typed(SPIKE, *arguments)

    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert arguments[0] in err


def test_absent_log(typed):
    """One line, status 2."""
    status, out, err = typed("no/such.jsonl")

    assert (status, out) == (2, "")
    assert "no such file" in err or "no/such.jsonl" in err


def test_a_price_below_zero_is_out_of_range(typed):
    """It is a number: what is wrong is said."""
    status, out, err = typed(CLEAN, "--gpu-price", "-3")

    assert (status, out) == (2, "")
    assert err == "stabcli: --gpu-price: takes a number from 0 on, not '-3'\n"


def test_an_mfu_that_cannot_be_right_is_never_a_plain_figure(typed):
    """The line says so, and of what it was made; the JSON has no figure."""
    flags = ["--gpus=1", "--gpu=H100", "--params=7e12", "--tokens-per-step=1M"]
    _, out, _ = typed(CLEAN, *flags)
    _, told, _ = typed(CLEAN, *flags, "--format", "json")

    assert " % cannot be right: check 1 GPU (--gpus), 7T parameters" in " ".join(out.split())
    assert out.count("cannot be right") == 1
    assert json.loads(told)["runs"][0]["mfu"]["computed"] is None
