"""What cannot be replayed is said in one line, with exit status 2."""

import json

import numpy as np
import pytest
import torch

from tests.replay import stories
from tests.replay.checkpoints import Plain
from tests.replay.command import CHECKPOINT, DUMP, SAMPLE, refused, replayed


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_gpu_that_is_not_there(capsys):
    """--device cuda without one; a device nobody has."""
    assert "no GPU here" in refused(capsys, *SAMPLE[1:], "--device", "cuda")
    assert "no such device" in refused(capsys, *SAMPLE[1:], "--device", "warp")


def write(path, value) -> str:
    path.write_text(json.dumps(value))
    return str(path)


def clean(seed: int = 0, rows: int = 4, length: int = 64) -> list[list[int]]:
    first = np.random.RandomState(seed).randint(0, len(stories.stream()) - length, rows)
    return [stories.stream()[i : i + length].tolist() for i in first]


def references(tmp_path, length: int = 64) -> str:
    lines = [json.dumps({"step": s, "input_ids": clean(s, length=length)}) for s in range(100, 106)]
    path = tmp_path / "references.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_bad_batches(tmp_path, capsys):
    """Longer than the context, of another tokenizer, without controls: one line each, exit 2."""
    ids = clean()
    long = write(tmp_path / "long.json", {"input_ids": clean(length=300)})
    other = write(tmp_path / "other.json", {"input_ids": (np.array(ids) + 5000).tolist()})
    alone = write(tmp_path / "alone.json", {"input_ids": ids})
    two = tmp_path / "two.jsonl"
    two.write_text("".join(json.dumps({"step": s, "input_ids": ids}) + "\n" for s in (1, 2)))
    clean_ones = references(tmp_path)
    at = str(CHECKPOINT)

    assert "context is 256" in refused(
        capsys, at, "--batch", long, "--references", references(tmp_path, 300)
    )
    references(tmp_path)
    assert "another tokenizer" in refused(capsys, at, "--batch", other, "--references", clean_ones)
    assert "--references FILE" in refused(capsys, at, "--batch", alone)
    assert "--steps" in refused(capsys, at, "--batch", str(two))
    assert "not recorded" in refused(capsys, at, "--batch", str(two), "--steps", "7")
    assert "0 clean batches of 64 positions" in refused(
        capsys, at, "--batch", alone, "--references", references(tmp_path, 32)
    )


def test_a_few_impossible_ids_are_the_verdict(tmp_path, capsys):
    """A corrupted batch of the right tokenizer is judged, not refused: the IDs are named."""
    ids = clean()
    ids[1][5], ids[2][7] = 5000, -3
    batch = write(tmp_path / "x.json", {"input_ids": ids})
    found = replayed(
        capsys, str(CHECKPOINT), "--batch", batch, "--references", references(tmp_path)
    )

    assert found["verdicts"][0]["kind"] == "invalid-input"
    assert {c["token_id"] for c in found["verdicts"][0]["culprits"]} == {5000, -3}


def test_usage(tmp_path, capsys):
    """What to replay has to be said, once; choices are checked; nothing is written over."""
    at = str(CHECKPOINT)
    (tmp_path / "x.html").write_text("")

    assert "what to replay" in refused(capsys, at)
    assert "what to replay" in refused(capsys, *SAMPLE[1:], "--data", "x")
    assert "--steps" in refused(capsys, at, "--data", "x.bin")
    assert "--batches FOLDER" in refused(capsys, at, "--incident", scan_json(tmp_path))
    assert "such as" in refused(capsys, *SAMPLE[1:], "--steps", "9-3")
    assert "no such choice" in refused(capsys, *SAMPLE[1:], "--format", "pdf")
    assert "no such choice" in refused(capsys, *SAMPLE[1:], "--dtype", "int4")
    assert "at least 2" in refused(capsys, *SAMPLE[1:], "--references", "1")
    assert "exists already" in refused(capsys, *SAMPLE[1:], "-o", str(tmp_path / "x.html"))
    assert "--tokenizer" in refused(capsys, *SAMPLE[1:], "--tokenizer", str(tmp_path))


def scan_json(tmp_path) -> str:
    finding = {"metric": "loss", "expected": 2.0}
    incident = {
        "rule": "loss-spike",
        "severity": "error",
        "first": 3,
        "peak": 3,
        "findings": [finding],
    }
    return write(
        tmp_path / "scan.json", {"runs": [{"run": {"source": "gone"}, "incidents": [incident]}]}
    )


def test_incident_that_nobody_recorded(tmp_path, capsys):
    """The steps of both sides are told."""
    folder = str(DUMP.parent)
    said = refused(capsys, str(CHECKPOINT), "--incident", scan_json(tmp_path), "--batches", folder)

    assert "incidents at steps 3..3" in said
    assert "500" in said


def test_own_model_of_another_task(tmp_path, capsys):
    """A factory whose model does not give logits of every position is refused in a line."""
    torch.save(Plain().state_dict(), tmp_path / "w.pt")
    said = refused(
        capsys,
        str(tmp_path / "w.pt"),
        "--model",
        "tests.replay.checkpoints:Plain",
        "--batch",
        str(DUMP),
    )

    assert "another tokenizer" in said
