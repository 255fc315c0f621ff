"""Files that lie: pickles that want to run code, JSON of any shape, links out of the folder.

Each is refused in one line that names it, and a file that running it would have left is not there.
"""

import io
import json
import pickle
import random
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from stabcli.errors import ReplayError
from stabcli.replay.checkpoint import load, open_checkpoint
from stabcli.replay.load_batches import load_batches
from stabcli.replay.log import read_incidents
from stabcli.replay.pickles import HARMLESS, Stub, load_torch
from tests.replay.checkpoints import Evil, Plain, dcp, evil_pickle, llama, tokens


def refusal(call, *arguments, **named) -> str:
    with pytest.raises(ReplayError) as caught:
        call(*arguments, **named)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.fixture
def trace(tmp_path) -> Path:
    """What running the code would leave behind; the test fails if it is there afterwards."""
    path = tmp_path / "it_ran"
    yield path
    assert not path.exists()


def test_the_evil_of_these_tests_is_evil(tmp_path):
    """Unpickled plainly, it does run: the tests below can fail."""
    pickle.loads(evil_pickle(tmp_path / "ran"))

    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("zipped", [True, False])
def test_torch_file_that_runs_code(tmp_path, trace, zipped):
    """Refused by the name of what it wants, in both formats of torch, as checkpoint and as batch."""
    path = tmp_path / "w.pt"
    torch.save(
        {"model": Plain().state_dict(), "x": Evil(trace)},
        path,
        _use_new_zipfile_serialization=zipped,
    )

    for call in (open_checkpoint, load_torch, lambda p: load_batches([p])):
        said = refusal(call, path)
        assert "system" in said
        assert "nothing was run" in said


def test_bare_pickle(tmp_path, trace):
    """A pickle that torch never wrote."""
    path = tmp_path / "w.pt"
    path.write_bytes(evil_pickle(trace))

    assert "system" in refusal(open_checkpoint, path)


def test_name_made_on_the_fly(tmp_path, trace):
    """A pickle that puts the name together where no list of names shows it is stopped by torch."""
    hidden = b"\x80\x04\x8c\x05posix\x94\x8c\x03sys\x8c\x03tem\x94" + b"0" * 3
    raw = b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c" + bytes([len(f"touch {trace}")])
    raw += f"touch {trace}".encode() + b"\x85R."
    path = tmp_path / "w.pt"
    for data in (raw, hidden + raw):
        path.write_bytes(data)
        refusal(open_checkpoint, path)


def test_evil_behind_a_harmless_name(tmp_path, trace):
    """A class of the list is an empty one of ours: calling it with anything does nothing."""
    import argparse

    path = tmp_path / "w.pt"
    torch.save(
        {"model": Plain().state_dict(), "args": argparse.Namespace(command=f"touch {trace}")}, path
    )
    found = load_torch(path)

    assert isinstance(found["args"], Stub)
    assert "argparse.Namespace" in HARMLESS


def test_bin_of_a_hugging_face_folder_that_runs_code(tmp_path, trace):
    """The .bin beside a config.json is looked at before transformers sees it."""
    llama().config.save_pretrained(tmp_path)
    torch.save({**llama().state_dict(), "x": Evil(trace)}, tmp_path / "pytorch_model.bin")

    assert "system" in refusal(open_checkpoint, tmp_path)


def test_optimizer_that_runs_code(tmp_path, trace):
    """optimizer.pt is data too."""
    llama().save_pretrained(tmp_path)
    torch.save({"state": {}, "param_groups": [], "x": Evil(trace)}, tmp_path / "optimizer.pt")

    assert "system" in refusal(open_checkpoint(tmp_path).optimizer)


def test_config_with_code_of_its_own(tmp_path, trace):
    """auto_map is not followed; the user's own class is asked for."""
    llama().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {
        "model_type": "mine",
        "auto_map": {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text(f"open({str(trace)!r}, 'w')")

    assert "--model package.module:factory" in refusal(load, open_checkpoint(tmp_path))


def test_metadata_of_a_distributed_checkpoint_that_runs_code(tmp_path, trace):
    """.metadata is a pickle that torch reads plainly: ours builds nothing but a description."""
    where = dcp({"model": Plain().state_dict()}, tmp_path / "step-1")
    good = (where / ".metadata").read_bytes()
    (where / ".metadata").write_bytes(evil_pickle(trace))
    said = refusal(open_checkpoint, where)
    assert "system" in said
    assert "nothing was run" in said

    for cut in (b"", good[: len(good) // 2], b"\x80\x04N.", b"not a pickle"):
        (where / ".metadata").write_bytes(cut)
        refusal(open_checkpoint, where)


def test_object_of_a_distributed_checkpoint_that_runs_code(tmp_path, trace):
    """Objects beside the tensors are pickles; they are never read."""
    model = Plain()
    where = dcp({"model": model.state_dict(), "evil": Evil(trace)}, tmp_path / "step-1")
    found = load(open_checkpoint(where), model="tests.replay.checkpoints:Plain")

    assert torch.equal(found.model.mix.weight, model.mix.weight)


def test_distributed_checkpoint_that_leads_elsewhere(tmp_path):
    """Shards are read from the folder of the checkpoint only."""
    import dataclasses

    where = dcp({"model": Plain().state_dict()}, tmp_path / "step-1")
    metadata = pickle.loads((where / ".metadata").read_bytes())
    for key, info in metadata.storage_data.items():
        metadata.storage_data[key] = dataclasses.replace(info, relative_path="../elsewhere.distcp")
    (where / ".metadata").write_bytes(pickle.dumps(metadata))

    assert "outside the folder" in refusal(open_checkpoint, where)


@pytest.mark.parametrize(
    "file", ["../secret.safetensors", "/etc/passwd", "a/../../secret.safetensors", "..\\x"]
)
def test_index_that_leads_elsewhere(tmp_path, file):
    """A weight_map names files of its own folder."""
    folder = tmp_path / "hf"
    llama().save_pretrained(folder, max_shard_size="20KB")
    llama().save_pretrained(tmp_path / "other")
    (tmp_path / "other" / "model.safetensors").rename(tmp_path / "secret.safetensors")
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"] = dict.fromkeys(index["weight_map"], file)
    path.write_text(json.dumps(index))

    assert "outside the folder" in refusal(open_checkpoint, folder)


def test_links_out_of_the_folder(tmp_path):
    """A link elsewhere is refused; those of Hugging Face's cache lead to its blobs and are fine."""
    llama().save_pretrained(tmp_path / "real")
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "config.json").write_bytes((tmp_path / "real" / "config.json").read_bytes())
    (folder / "model.safetensors").symlink_to(tmp_path / "real" / "model.safetensors")
    assert "outside the folder" in refusal(open_checkpoint, folder)

    snapshot, blobs = tmp_path / "models--x" / "snapshots" / "abc", tmp_path / "models--x" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for name in ("config.json", "model.safetensors"):
        (blobs / name).write_bytes((tmp_path / "real" / name).read_bytes())
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    assert open_checkpoint(snapshot).parameters > 0


HOSTILE = {
    "deep": b'{"input_ids": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "digits": b'{"input_ids": [[1, ' + b"9" * 10_000 + b"]]}",
    "beyond int64": b'{"input_ids": [[1, 99999999999999999999]]}',
    "text": b'{"input_ids": [["a", "b"]]}',
    "objects": b'{"input_ids": [[{}, {}]]}',
    "null": b'{"input_ids": [[null, 1]]}',
    "nan": b'{"input_ids": [[NaN, 1]]}',
    "infinity": b'{"input_ids": [[Infinity, 1]]}',
    "fraction": b'{"input_ids": [[1.5, 1]]}',
    "number": b"3",
    "string": b'"x"',
    "no ids": b'{"text": "x"}',
    "empty": b'{"input_ids": []}',
    "empty rows": b'{"input_ids": [[], []]}',
    "one token": b'{"input_ids": [[1]]}',
    "ragged": b'{"input_ids": [[1, 2], [1, 2, 3]]}',
    "mixed": b'{"input_ids": [[1, 2], 3]}',
    "four deep": b'{"input_ids": [[[[1, 2], [3, 4]]], [[[1, 2]]]]}',
    "labels": b'{"input_ids": [[1, 2]], "labels": [[1, 2, 3]]}',
    "mask": b'{"input_ids": [[1, 2]], "attention_mask": [["x", 1]]}',
    "step": b'{"input_ids": [[1, 2]], "step": "ten"}',
    "loss": b'{"input_ids": [[1, 2]], "loss": [3]}',
    "sample ids": b'{"input_ids": [[1, 2]], "sample_ids": [{}]}',
    "not text": b"\xff\xfe\x00{",
    "cut": b'{"input_ids": [[1, 2',
    "list of all": b'[{"input_ids": [[1, 2]]}, 3]',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_json_of_any_shape(tmp_path, name):
    """Deep, huge or of the wrong types: one line that names the file, never a traceback."""
    for ending in (".json", ".jsonl"):
        path = tmp_path / f"x{ending}"
        path.write_bytes(HOSTILE[name])
        said = refusal(load_batches, [path])

        assert str(path) in said
        assert len(said) < 400


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{",
        b'{"a":' * 100_000,
        b'{"weight_map": 3}',
        b'{"weight_map": {"a": 3}}',
        b"\xff",
    ],
)
def test_json_of_a_checkpoint(tmp_path, name, raw):
    """config.json and the index may hold anything."""
    llama().save_pretrained(tmp_path, max_shard_size="20KB")
    (tmp_path / name).write_bytes(raw)

    assert name in refusal(lambda: load(open_checkpoint(tmp_path))) or name == "config.json"


@pytest.mark.parametrize("raw", [b"{}", b"[]", b"3", b"{", b'{"runs": 3}', b'{"runs": [{"incidents": [{}]}]}',
                                 b'{"runs": [{"run": {"source": "x"}, "incidents": []}]}', b"[" * 100_000])  # fmt: skip
def test_scan_that_is_none(tmp_path, raw):
    """--incident takes what scan writes, and says so of anything else."""
    path = tmp_path / "scan.json"
    path.write_bytes(raw)

    assert str(path) in refusal(read_incidents, path)


def test_numpy_files_with_objects(tmp_path, trace):
    """.npz and .npy are read without pickles."""
    objects = np.array([Evil(trace)], dtype=object)
    np.savez(tmp_path / "x.npz", input_ids=objects)

    assert "refused" in refusal(load_batches, [tmp_path / "x.npz"])


def test_damaged_binary_dumps(tmp_path):
    """Any bytes under the ending of a format."""
    for ending in (".pt", ".npz", ".parquet", ".arrow"):
        for raw in (
            b"\x00" * 64,
            b"PK\x03\x04" + b"\x00" * 60,
            b"PAR1" + b"\xff" * 60,
            b"\x93NUMPY\x01\x00",
        ):
            path = tmp_path / f"x{ending}"
            path.write_bytes(raw)

            assert str(path) in refusal(load_batches, [path])


def test_dump_that_is_torch_but_no_batch(tmp_path):
    """A tensor of fractions, a scalar, a state dict."""
    for value in (
        torch.randn(2, 3),
        torch.tensor(3),
        Plain().state_dict(),
        {"input_ids": torch.tensor([[1.0, float("nan")]])},
    ):
        torch.save(value, tmp_path / "x.pt")
        refusal(load_batches, [tmp_path / "x.pt"])

    torch.save({"input_ids": tokens()}, tmp_path / "x.pt")
    assert load_batches([tmp_path / "x.pt"])[0].batch.sequences == 2


def test_torchscript_is_not_run(tmp_path):
    """A compiled module is code."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2)), buffer)
    (tmp_path / "x.pt").write_bytes(buffer.getvalue())

    refusal(open_checkpoint, tmp_path / "x.pt")


def whole_files(folder: Path):
    """A file of each binary format, and what reads it."""
    llama().save_pretrained(folder / "hf")
    torch.save({"model": llama().state_dict()}, folder / "w.pt")
    torch.save(llama().state_dict(), folder / "old.pt", _use_new_zipfile_serialization=False)
    where = dcp({"model": llama().state_dict()}, folder / "step-1")
    torch.save({"input_ids": tokens()}, folder / "batch.pt")
    np.savez(folder / "batch.npz", input_ids=tokens().numpy())
    model = str(folder / "hf")
    yield folder / "hf" / "model.safetensors", lambda: load(open_checkpoint(folder / "hf"))
    yield folder / "hf" / "config.json", lambda: load(open_checkpoint(folder / "hf"))
    yield folder / "w.pt", lambda: load(open_checkpoint(folder / "w.pt"), model=model)
    yield folder / "old.pt", lambda: load(open_checkpoint(folder / "old.pt"), model=model)
    for name in (".metadata", "__0_0.distcp"):
        yield where / name, lambda: load(open_checkpoint(where), model=model)
    for name in ("batch.pt", "batch.npz"):
        yield folder / name, lambda name=name: load_batches([folder / name])


def damaged(raw: bytes, rng: random.Random) -> bytes:
    """The same file cut short, with a bit turned, or with bytes put in."""
    at = rng.randrange(min(len(raw), rng.choice([300, 1 << 30])))
    kind = rng.choice(["cut", "turned", "more"])
    if kind == "cut":
        return raw[:at]
    return raw[:at] + (
        bytes([raw[at] ^ 4]) + raw[at + 1 :] if kind == "turned" else b"abc" + raw[at:]
    )


def test_damage_anywhere_is_a_line(tmp_path):
    """Whatever happens to a file, it is read or refused in one line; nothing else is raised."""
    rng = random.Random(0)
    refused = 0
    for path, read in whole_files(tmp_path):
        raw = path.read_bytes()
        for _ in range(10):
            path.write_bytes(damaged(raw, rng))
            try:
                read()
            except ReplayError as error:
                refused += 1
                said = str(error)
            else:
                said = ""
            assert "\n" not in said
        path.write_bytes(raw)
        read()

    assert refused > 40
