"""replay-batch as tests call it."""

import json

from stabcli.cli import run
from tests.conftest import SAMPLES

CHECKPOINT = SAMPLES / "replay" / "checkpoint-480"
DUMP = SAMPLES / "replay" / "flagged" / "step-00000500-rank-0.jsonl"
SAMPLE = ["replay-batch", str(CHECKPOINT), "--batch", str(DUMP)]


def replayed(capsys, *arguments: str) -> dict:
    capsys.readouterr()
    status = run(["replay-batch", *arguments, "--format", "json"])
    said = capsys.readouterr()

    assert status == 0, said.err
    return json.loads(said.out)


def refused(capsys, *arguments: str) -> str:
    """Run a command that cannot judge; return its one line."""
    capsys.readouterr()
    status = run(["replay-batch", *arguments])
    said = capsys.readouterr()

    assert status == 2, said.out
    assert said.out == ""
    assert len(said.err.strip().splitlines()) == 1
    return said.err
