"""Folders on the command line: joined runs, what was left out, configurations."""

import json

import pytest

from stabcli.cli.schema import SCHEMA
from tests.cli.commands import Stabcli
from tests.joining.writing import events, jsonl, text, truth

jsonschema = pytest.importorskip("jsonschema")


def tree(folder, broken=()):
    """A run of a log, a tracker, a configuration and a dozen files that are none of these."""
    rows = truth(range(300))
    for step in broken:
        rows[step]["loss"] = float("nan")
    text(
        folder / "run" / "train.log",
        rows,
        tail="RuntimeError: CUDA error: an illegal memory access\n",
    )
    events(folder / "run" / "tb", rows)
    (folder / "run" / "config.yaml").write_text("seq_length: 2048\nglobal_batch_size: 8\n")
    for i in range(12):
        (folder / "run" / f"note_{i:02}.txt").write_text("hello\n")


def test_what_no_rule_judges_is_told_beside_the_verdict(stabcli: Stabcli):
    """Memory that ran out, and a run that went on all the same."""
    rows = truth(range(300))
    path = text(stabcli.folder / "train.log", rows)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:200], "CUDA out of memory. Skipping.\n", *lines[200:]]))
    shown = " ".join(stabcli("scan", "train.log").out.split())
    assert "fine train.log" in shown
    assert "; the text tells of: out of memory" in shown


def test_one_run_and_what_was_left_out(stabcli: Stabcli):
    """The screen names some files and counts the rest; JSON has all, and the schema knows it."""
    tree(stabcli.folder)
    shown = stabcli("scan", "run")
    told = json.loads(stabcli("scan", "run", "--format", "json").out)
    jsonschema.validate(told, json.loads(SCHEMA.read_text()))

    assert (shown.status, shown.err) == (0, "")
    assert "generic-text + tensorboard · 300 rows" in shown.out
    assert "note_04.txt and 7 more" in " ".join(shown.out.split())
    assert "WARNING run: fatal-end at step 299" in " ".join(shown.out.split())
    (run,) = [r["run"] for r in told["runs"]]
    assert run["files"] == [
        "run/train.log", "run/tb/events.out.tfevents.1700000000.host.1.0", "run/config.yaml"]  # fmt: skip
    assert [(t["kind"], t["line"], t["step"]) for t in run["troubles"]] == [("gpu-fault", 301, 299)]
    assert told["left_out"] == [
        "run: not logs, left out: " + ", ".join(f"note_{i:02}.txt" for i in range(12))
    ]


def test_a_finding_in_a_joined_run_is_cited_from_its_file(stabcli: Stabcli):
    tree(stabcli.folder, broken=(200,))
    told = json.loads(stabcli("scan", "run", "--format", "json").out)
    findings = [
        f for i in told["runs"][0]["incidents"] for f in i["findings"] if f["metric"] == "loss"
    ]

    assert (findings[0]["file"], findings[0]["line"]) == ("train.log", 201)


def test_files_may_be_kept_apart(stabcli: Stabcli):
    tree(stabcli.folder)

    assert "2 runs" in stabcli("scan", "run", "--no-join").out


def test_files_given_one_by_one_are_joined_but_never_compared_as_one(stabcli: Stabcli):
    """``compare a b`` asks for two, however alike they are."""
    rows = truth(range(200))
    jsonl(stabcli.folder / "a.jsonl", rows)
    text(stabcli.folder / "b.log", rows)
    scanned = json.loads(stabcli("scan", "a.jsonl", "b.log", "--format", "json").out)
    compared = stabcli("compare", "a.jsonl", "b.log")

    assert len(scanned["runs"]) == 1
    assert compared.status == 0


def test_a_configuration_given_beside_a_log_is_its_own(stabcli: Stabcli):
    jsonl(stabcli.folder / "a.jsonl", truth(range(200)))
    (stabcli.folder / "hparams.yaml").write_text("seq_length: 512\n")
    told = json.loads(stabcli("scan", "a.jsonl", "hparams.yaml", "--format", "json").out)

    assert (
        told["runs"][0]["run"]["facts"]["sequence_length"]["source"] == "hparams.yaml, seq_length"
    )


def test_a_configuration_alone_is_no_log(stabcli: Stabcli):
    (stabcli.folder / "config.yaml").write_text("seq_length: 512\n")
    result = stabcli("scan", "config.yaml")

    assert result.status == 2
    assert (
        result.err
        == "stabcli: config.yaml: a configuration and no log: stabcli audit takes it alone\n"
    )


@pytest.mark.parametrize("value", ["1.5", "0", "-2"])
def test_a_count_of_gpus_is_whole(stabcli: Stabcli, value: str):
    result = stabcli("scan", stabcli.healthy(), "--gpus", value)

    assert result.status == 2
    assert result.err.startswith("stabcli: --gpus: takes a whole number from 1")
