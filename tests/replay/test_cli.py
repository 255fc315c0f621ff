"""replay-batch from the command line: stories from recorder to verdict, formats, and bad input."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from stabcli.cli import run
from tests.conftest import ROOT
from tests.replay import stories
from tests.replay.checkpoints import dcp
from tests.replay.command import CHECKPOINT, DUMP, SAMPLE, refused, replayed
from tests.replay.stories import BAD, PLANTED, SAVED, T


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A training loop with a recorder in it; the folder it leaves."""
    folder = tmp_path_factory.mktemp("plain")
    stories.plain_loop(folder)
    return folder


def planted(verdict: dict) -> set[tuple[int, int]]:
    return {tuple(place) for culprit in verdict["culprits"] for place in culprit["positions"]}


def test_bundled_example_names_the_planted_ids(account):
    """Both names, all of their places and no other token; tested by repair, placebo and transfer."""
    (verdict,) = account["verdicts"]
    (line, *_) = [json.loads(text) for text in DUMP.read_text().splitlines()]
    places = {
        (b, t) for b, row in enumerate(line["input_ids"]) for t, i in enumerate(row) if i in PLANTED
    }

    assert verdict["kind"] == "data-ids"
    assert verdict["confidence"] == "high"
    assert {c["token_id"] for c in verdict["culprits"]} == set(PLANTED)
    assert planted(verdict) == places
    assert verdict["numbers"]["explained"] > 0.8
    assert verdict["texts"]["385"] == " Zuweve"
    assert account["load"]["proven"]
    assert account["mapping"]["recorded"]
    assert account["skip"]["token_ids"] == list(PLANTED)
    assert len(account["skip"]["sample_ids"]) == 6


def test_plain_loop_from_recorder_to_verdict(plain, capsys):
    """The recorder dumps the planted batch of a real run, and replay convicts its ID and its places."""
    found = replayed(capsys, str(plain / f"checkpoint-{SAVED}"), "--batch", *dumps(plain))
    (verdict,) = [v for v in found["verdicts"] if v["step"] == BAD]

    assert verdict["kind"] == "data-ids"
    assert [c["token_id"] for c in verdict["culprits"]] == [700]
    assert found["checkpoint"]["step"] == SAVED
    assert {b for b, _ in planted(verdict)} >= {3, 4}


def dumps(folder) -> list[str]:
    (first, *_) = sorted((folder / "flagged").iterdir())
    return [str(first)]


def test_trainer_from_recorder_to_verdict(tmp_path, capsys):
    """The same under transformers' Trainer: its callback, its checkpoint, its optimizer state."""
    pytest.importorskip("accelerate", reason="transformers' Trainer needs accelerate")
    checkpoint = stories.with_trainer(tmp_path)
    (tmp_path / f"checkpoint-{SAVED}" / "rng_state.pth").unlink(missing_ok=True)
    found = replayed(capsys, str(checkpoint), "--batch", *dumps(tmp_path))
    (verdict,) = [v for v in found["verdicts"] if v["step"] == BAD]

    assert verdict["kind"] == "data-ids"
    assert [c["token_id"] for c in verdict["culprits"]] == [700]
    assert found["optimizer"]["used"]
    assert verdict["jumps"][0]["times_usual"] > 2
    assert found["checkpoint"]["step"] == SAVED


def test_incident_of_a_scan(plain, tmp_path, capsys, monkeypatch):
    """scan finds the step, the folder has its batch, replay takes it from there."""
    monkeypatch.chdir(plain)
    run(["scan", "run.jsonl", "--format", "json"])
    scan = tmp_path / "scan.json"
    scan.write_text(capsys.readouterr().out)
    found = replayed(capsys, f"checkpoint-{SAVED}", "--incident", str(scan), "--batches", "flagged")

    assert [v["step"] for v in found["verdicts"]] == [BAD]
    assert found["verdicts"][0]["kind"] == "data-ids"
    assert any("incident" in note for note in found["notes"])


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A raw token file, and the log of losses that the bundled model has on its batches."""
    folder = tmp_path_factory.mktemp("data")
    stories.stream().astype(np.uint16).tofile(folder / "train.bin")
    model = stories.model().eval()
    order = np.random.default_rng(9).permutation((len(stories.stream()) - 1) // T)
    rng = np.random.default_rng(0)
    with (folder / "run.jsonl").open("w") as log, torch.no_grad():
        for step in range(1, 23):
            chosen = order[(step - 1) * 8 : step * 8]
            ids = torch.from_numpy(
                np.stack([stories.stream()[r * T : r * T + T + 1] for r in chosen])
            )
            logits = model(input_ids=ids[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            row = {
                "step": step,
                "loss": loss.item() + 0.01 * rng.standard_normal(),
                "grad_norm": 1.5,
            }
            log.write(json.dumps(row) + "\n")
    return folder


def spec(data, more: str = "") -> list[str]:
    said = f"{data}/train.bin,length={T},batch=8,order=pcg64,seed=9{more}"
    return [str(CHECKPOINT), "--data", said, "--steps", "20", "--log", str(data / "run.jsonl")]


def test_data_by_seed_and_order(data, capsys):
    """The samples of a step are found again, proven by the losses around, and are clean."""
    found = replayed(capsys, *spec(data))
    (verdict,) = found["verdicts"]

    assert found["mapping"]["correlation"] > 0.98
    assert verdict["step"] == 20
    assert verdict["kind"] in ("no-fault", "anomalies")
    assert verdict["sequences"] == 8


def test_wrong_seed_and_off_by_one_are_refused(data, capsys):
    """A mapping that the losses do not prove ends the command before any verdict."""
    wrong = [part.replace("seed=9", "seed=8") for part in spec(data)]

    assert "wrong seed or order" in refused(capsys, *wrong)
    assert "off by 1" in refused(capsys, *spec(data, ",first=0"))


def test_plan_loads_nothing(capsys, monkeypatch):
    """Memory and passes come from names and shapes."""
    from stabcli.replay import session

    monkeypatch.setattr(session, "load", None)
    assert run([*SAMPLE, "--plan"]) == 0
    out = capsys.readouterr().out

    assert "508k parameters, 1.9 MiB" in out
    assert "16 of 16 sequences a pass" in out
    assert "1 forward and 1 backward pass over 2,048 tokens" in out


def test_too_little_memory_is_said_before_loading(capsys, monkeypatch):
    """With the remedy, and before any weight is read."""
    from stabcli.replay import memory, session

    monkeypatch.setattr(session, "load", None)
    monkeypatch.setattr(memory, "free", lambda _: 1 << 20)

    assert "--dtype bfloat16" in refused(capsys, *SAMPLE[1:])


def test_load_that_is_not_that_runs(tmp_path, capsys):
    """Clean batches far off the log's level: no verdict on the data is given."""
    lines = [json.loads(line) for line in DUMP.read_text().splitlines()]
    for line in lines:
        line["loss"] += 3 if not line["flagged"] else 0
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    assert "not the model, the data or the tokenizer of that run" in refused(
        capsys, str(CHECKPOINT), "--batch", str(path)
    )


def test_few_controls_are_said(capsys):
    """With two clean batches next to nothing can be called unusual: the account says so."""
    found = replayed(capsys, *SAMPLE[1:], "--references", "2")

    assert any("only 2 control batches" in note for note in found["notes"])


def test_broken_state_is_told_with_its_doubt(tmp_path, capsys):
    """Weights that are bad for clean batches too: a state fault, with low confidence without --older."""
    model = stories.model()
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.mul_(40)
    model.save_pretrained(tmp_path / "checkpoint-490")
    found = replayed(capsys, str(tmp_path / "checkpoint-490"), "--batch", str(DUMP))
    assert found["verdicts"][0]["kind"] == "state-fault"
    assert found["verdicts"][0]["confidence"] == "low"
    assert any("--older" in line for line in found["verdicts"][0]["not_checked"])

    settled = replayed(
        capsys, str(tmp_path / "checkpoint-490"), "--batch", str(DUMP), "--older", str(CHECKPOINT)
    )
    assert settled["verdicts"][0]["confidence"] == "high"


def test_nonfinite_checkpoint(tmp_path, capsys):
    """NaN in the weights is the verdict, without a pass."""
    model = stories.model()
    with torch.no_grad():
        model.model.embed_tokens.weight[436] = float("nan")
    model.save_pretrained(tmp_path)
    found = replayed(capsys, str(tmp_path), "--batch", str(DUMP))

    assert found["verdicts"][0]["kind"] == "checkpoint-nonfinite"
    assert found["checkpoint"]["nonfinite"] == ["model.embed_tokens.weight"]


def test_sharded_checkpoint_of_the_same_model(tmp_path, capsys):
    """What torch.distributed.checkpoint holds gives the verdict of the folder it was made of."""
    where = dcp({"model": stories.model().state_dict()}, tmp_path / "step-480")
    found = replayed(capsys, str(where), "--batch", str(DUMP), "--model", str(CHECKPOINT))

    assert found["checkpoint"]["format"] == "dcp"
    assert {c["token_id"] for c in found["verdicts"][0]["culprits"]} == set(PLANTED)
    assert found["verdicts"][0]["texts"] == {}


@pytest.mark.parametrize("way", ["fsdp", "tp"])
def test_torchrun_gives_the_verdict_of_one_process(way):
    """Weights spread over two processes, either way: the same IDs, told once. In a short number
    format the spread model is held against float32 as well."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone",
               "-m", "stabcli", *SAMPLE, "--device", "cpu", "--format", "json",
               "--shard", way, "--dtype", "bfloat16"]  # fmt: skip
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    verdict = found["verdicts"][0]

    assert {c["token_id"] for c in verdict["culprits"]} == set(PLANTED)
    assert verdict["numbers"]["loss_float32"] == pytest.approx(verdict["numbers"]["loss"], rel=0.02)


BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "safetensors"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
from stabcli.cli import run
sys.exit(run(sys.argv[1:]))
"""


def without_torch(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", BLOCKED, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_all_else_works_without_torch():
    """scan and help need no torch; replay-batch says in one line what to install."""
    assert without_torch("--help").returncode == 0
    assert without_torch("replay-batch", "--help").returncode == 0
    assert without_torch("scan", "sample_logs/jsonl/bad_batch.jsonl").returncode == 0
    done = without_torch(*SAMPLE)
    assert done.returncode == 2
    assert (
        done.stderr
        == "stabcli: replay-batch: torch is not installed: pip install 'stabcli[replay]'\n"
    )
