"""`check`: how it ends, and what it says for it."""

import datetime as dt
import json

import pytest

from tests.cli.commands import Stabcli
from tests.conftest import SAMPLES

CLEAN = SAMPLES / "jsonl" / "clean.jsonl"
SPIKE = SAMPLES / "jsonl" / "synthetic_7b_spike.jsonl"
BARE = SAMPLES / "csv" / "run-tiny-tag-train_grad_norm.csv"
HIDDEN = SAMPLES / "hf-trainer" / "hidden_nan.json"


@pytest.mark.parametrize("log", [CLEAN, SAMPLES / "hf-trainer" / "grpo.json", BARE])
def test_clean_samples_pass(stabcli: Stabcli, log):
    """A clean log ends with 0 and says PASS."""
    result = stabcli("check", log)

    assert (result.status, result.err) == (0, "")
    assert result.out.startswith("PASS  ")


@pytest.mark.parametrize(
    "log",
    [SPIKE, HIDDEN, SAMPLES / "csv" / "diverged_metrics.csv", SAMPLES / "csv" / "slow_stretch.csv"],
)
def test_samples_with_incidents_fail(stabcli: Stabcli, log):
    """A log with an error in it ends with 1, says FAIL and what was found."""
    result = stabcli("check", log)

    assert (result.status, result.err) == (1, "")
    assert result.out.startswith("FAIL  ")
    assert "fail        fail-on error: " in result.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([BARE, "--require", "loss,grad_norm"], "the log has no loss"),
        ([BARE, "--max-wasted-gpu-hours", "5"], "GPU-hours: unknown: "),
        ([BARE, "--max-final-loss", "5"], "the log has no loss"),
        ([BARE, "--min-mfu", "40%"], "MFU is unknown: add --params N"),
        (
            [
                CLEAN,
                "--gpus=1",
                "--gpu=H100",
                "--params=7e12",
                "--tokens-per-step=1M",
                "--min-mfu=0.1",
            ],
            "cannot be right: check 1 GPU (--gpus)",
        ),
        ([BARE, "--require", "mfu-low"], "the rule did not look: the log has no mfu"),
        ([BARE, "--rule", "mfu-low"], "no rule could look"),
        ([BARE, "--baseline", CLEAN], "the log does not tell the loss"),
        ([SPIKE, "--require", "mfu"], "the log has no mfu"),
    ],
)
def test_what_cannot_be_told_is_2(stabcli: Stabcli, arguments, said):
    """A figure that is unknown is under no limit: 2, and the missing fact is named."""
    result = stabcli("check", *arguments)

    assert result.status == 2
    assert result.out.startswith("CANNOT JUDGE  ")
    assert said in " ".join(result.out.split())


def test_the_named_fact_makes_it_judged(stabcli: Stabcli):
    """What the message asks for settles it."""
    first = stabcli("check", CLEAN, "--max-wasted-gpu-hours", "5", "--fact", "gpus=1")

    assert first.status == 0


def test_crash_is_3(stabcli: Stabcli, monkeypatch: pytest.MonkeyPatch):
    """A rule that raises is a bug, not a verdict, even with --exit-zero; no report is written."""
    from stabcli.rules import rules

    entry = rules["loss-spike"]

    def broken(run, **settings):
        raise ZeroDivisionError("oh")

    broken.__name__, broken.__doc__ = "loss_spike", "Breaks."
    monkeypatch.setitem(
        rules._entries, "loss-spike", type(entry)(broken, (), ("default",), "0.1.0")
    )
    result = stabcli("check", CLEAN, "--exit-zero", "--output", "json:a.json")

    assert result.status == 3
    assert "bug in stabcli" in result.err
    assert list(stabcli.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("fail_on", "status"),
    [("notice", 1), ("warning", 1), ("error", 1), ("critical", 0), ("never", 0)],
)
def test_fail_on(stabcli: Stabcli, fail_on, status):
    """Findings fail from the severity given; never lets all of them pass."""
    assert stabcli("check", SPIKE, "--fail-on", fail_on).status == status


def test_limits_of_one_figure_each(stabcli: Stabcli):
    """Each limit is a criterion of its own, met or missed, with its figure."""
    limits = ["--max-wasted-gpu-hours", "100", "--max-wasted-share", "30%", "--min-mfu", "0.25"]
    limits += ["--max-final-loss", "2", "--max-discarded-steps", "0", "--fail-on", "never"]
    result = stabcli("check", SPIKE, *limits, "--format", "json")
    told = {c["name"]: c for c in json.loads(result.out)["runs"][0]["check"]["criteria"]}

    assert result.status == 1
    assert {name: c["status"] for name, c in told.items()} == {
        "fail-on never": "pass",
        "max-wasted-gpu-hours": "fail",
        "max-wasted-share": "pass",
        "min-mfu": "pass",
        "max-final-loss": "fail",
        "max-discarded-steps": "pass",
    }
    assert told["max-wasted-gpu-hours"]["value"] == pytest.approx(808, abs=1)


def test_exit_zero_hides_a_failure_and_nothing_else(stabcli: Stabcli):
    """1 becomes 0 and is told all the same; 2 stays 2."""
    result = stabcli("check", SPIKE, "--exit-zero")

    assert result.status == 0
    assert result.out.startswith("FAIL")
    assert stabcli("check", SPIKE, "--exit-zero", "--require", "mfu").status == 2
    assert stabcli("check", "missing.jsonl", "--exit-zero").status == 2


def test_unknown_outranks_failed(stabcli: Stabcli):
    """Of several runs one that cannot be judged decides; each has its own verdict."""
    result = stabcli("check", SPIKE, CLEAN, "missing.jsonl")

    assert result.status == 2
    assert "2 runs: 1 passed, 1 failed" in result.out
    assert "missing.jsonl: no such file" in result.err


def test_empty_pattern_is_2_unless_allowed(stabcli: Stabcli):
    """Nothing matched is no success, unless the user says that it is."""
    refused, allowed = (stabcli("check", "*.jsonl", *f) for f in ([], ["--allow-empty"]))

    assert (refused.status, refused.out) == (2, "")
    assert (allowed.status, allowed.out) == (0, "")
    assert "no file matches" in allowed.err
    assert stabcli("check", "missing.jsonl", "--allow-empty").status == 2
    stabcli.spiked("a.jsonl")
    assert stabcli("check", "*.csv", "a.jsonl", "--allow-empty").status == 1


def test_baseline(stabcli: Stabcli):
    """A run is not worse than itself; one that settled higher is, and by how much is said."""
    log = stabcli.healthy()
    noise = [json.loads(line) for line in (stabcli.folder / log).read_text().splitlines()]
    worse = stabcli.log("worse.jsonl", ({**r, "loss": r["loss"] + 0.2} for r in noise))
    good, bad = (stabcli("check", run, "--baseline", log) for run in (log, worse))

    assert good.status == 0
    assert bad.status == 1
    assert "fail        baseline final-loss: loss " in bad.out
    assert stabcli("check", worse, "--baseline", log, "--margin", "loss=15%").status == 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--baseline", "missing.jsonl"], "--baseline: missing.jsonl: no such file"),
        (["--baseline", "both"], "2 runs in it: name one"),
        (["--margin", "loss"], "write NAME=VALUE"),
        (["--margin", "los=1%"], "did you mean loss?"),
        (["--min-mfu", "40"], "--min-mfu: takes a share"),
        (["--max-final-loss", "low"], "--max-final-loss: takes a number"),
        (["--max-discarded-steps", "-1"], "takes a count"),
        (["--fail-on", "eror"], "did you mean error?"),
        (["--fail-on", "nope"], "one of critical, error, never, notice, warning"),
        (["--output", "junit"], "write FORMAT:FILE"),
        (["--output", "junti:a.xml"], "did you mean junit?"),
        (["--output", "json:no/such/a.json"], "there is no folder no/such"),
        (["--output", "json:both"], "is a folder"),
        (["--output", "json:a.x", "--output", "sarif:a.x"], "a second report into one file"),
    ],
)
def test_wrong_usage_is_one_line_and_2(stabcli: Stabcli, flags, said):
    """What was typed wrong is told before a log is read."""
    (stabcli.folder / "both").mkdir()
    stabcli.healthy("both/a.jsonl")
    stabcli.spiked("both/b.jsonl")
    result = stabcli("check", stabcli.healthy(), *flags)

    assert (result.status, result.out) == (2, "")
    assert said in result.err
    assert result.err.count("\n") == 1


def settle(stabcli: Stabcli, text: str) -> None:
    """Write a settings file."""
    (stabcli.folder / "stabcli.toml").write_text(text)


def test_policy_file(stabcli: Stabcli):
    """What a file asks is asked; a flag wins over it, and so does the environment."""
    log = stabcli.healthy()
    settle(stabcli, '[check]\nrequire = ["loss"]\nmax-final-loss = 1.5\n')

    assert stabcli("check", log).status == 1
    assert stabcli("check", log, "--max-final-loss", "3").status == 0


def test_environment_asks_as_well(stabcli: Stabcli, monkeypatch: pytest.MonkeyPatch):
    """STABCLI_* wins over the file, and is named where its value is wrong."""
    settle(stabcli, "[check]\nmax_final_loss = 1.5\n")
    monkeypatch.setenv("STABCLI_MAX_FINAL_LOSS", "3")
    assert stabcli("check", stabcli.healthy()).status == 0
    monkeypatch.setenv("STABCLI_MAX_FINAL_LOSS", "low")

    assert "STABCLI_MAX_FINAL_LOSS: takes a number" in stabcli("check", stabcli.healthy()).err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[check]\nmax_fnal_loss = 1\n", "did you mean max_final_loss?"),
        ("[check]\nmax_final_loss = true\n", "check.max_final_loss: takes a number"),
        ("[check]\nrequire = 3\n", "check.require: takes a name or a list"),
        ("[check]\nbaseline = 3\n", "check.baseline: takes the path"),
        ("[check.margins]\nlos = 0.1\n", "check.margins.los: no such margin"),
        ("check = 3\n", "takes a table"),
        ("[ignore]\nrule = 'loss-spike'\n", "write [[ignore]]"),
        ("[[ignore]]\nrule = 'loss-spike'\n", "no reason given"),
        ("[[ignore]]\nrule = 'loss-spik'\nreason = 'x'\n", "did you mean loss-spike?"),
    ],
)
def test_wrong_policy_is_one_line_and_2(stabcli: Stabcli, text, said):
    """A policy that is spelt wrong is not a policy that passes."""
    log = stabcli.healthy()
    settle(stabcli, text)
    result = stabcli("check", log)

    assert (result.status, result.out) == (2, "")
    assert said in result.err
    assert result.err.count("\n") == 1


IGNORE = "[[ignore]]\nrule = 'loss-spike'\nsteps = '290-310'\nreason = 'bad shard'\n"


def test_ignored_finding_is_told_and_does_not_count(stabcli: Stabcli):
    """The reason is printed; the run passes; a finding elsewhere still fails."""
    log = stabcli.spiked()
    settle(stabcli, IGNORE)
    result = stabcli("check", log, "--rule", "loss-spike")

    assert result.status == 0
    assert "ignored     loss-spike, steps 300..302: bad shard" in result.out
    settle(stabcli, IGNORE.replace("290-310", "300-301"))
    assert stabcli("check", log, "--rule", "loss-spike").status == 1


def test_expired_ignore_counts_again(stabcli: Stabcli, monkeypatch: pytest.MonkeyPatch):
    """Until its day it holds; after that there is an error line and the finding fails."""
    log = stabcli.spiked()
    settle(stabcli, IGNORE + "until = 2026-05-01\n")
    monkeypatch.setattr("stabcli.cli._gates.today", lambda: dt.date(2026, 5, 1))
    assert stabcli("check", log, "--rule", "loss-spike").status == 0
    monkeypatch.setattr("stabcli.cli._gates.today", lambda: dt.date(2026, 5, 2))
    result = stabcli("check", log, "--rule", "loss-spike")

    assert result.status == 1
    assert "expired on 2026-05-01" in result.err


def test_unused_ignore_is_told(stabcli: Stabcli):
    """An ignore that covers nothing is named and harms nothing."""
    log = stabcli.healthy()
    settle(stabcli, IGNORE)
    result = stabcli("check", log)

    assert result.status == 0
    assert "nothing was found that it covers" in result.err


def test_scan_with_fail_on_heeds_ignores(stabcli: Stabcli):
    """The same settings mean the same thing in both commands."""
    log = stabcli.spiked()
    settle(stabcli, IGNORE)
    result = stabcli("scan", log, "--rule", "loss-spike", "--fail-on", "error")

    assert result.status == 0
    assert "bad shard" in result.out


@pytest.mark.parametrize("form", ["console", "brief", "markdown", "verdict"])
def test_no_format_calls_a_missed_limit_fine(stabcli: Stabcli, form):
    """A run without findings that misses a limit shows that it does, whatever is printed."""
    result = stabcli("check", stabcli.healthy(), "--max-final-loss", "1", "--format", form)

    assert result.status == 1
    assert "max-final-loss" in result.out
