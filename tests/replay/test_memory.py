"""What a replay takes is known from names and shapes, and refused before it is loaded."""

import pytest
import torch

from stabcli.errors import ReplayError
from stabcli.replay import memory
from stabcli.replay.checkpoint import base_of, open_checkpoint
from tests.replay.checkpoints import adapter, llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("hf")
    llama().save_pretrained(path)
    return path


def plan(stored, monkeypatch, free: int = 1 << 30, **more):
    monkeypatch.setattr(memory, "free", lambda _: free)
    how = {
        "rows": 8,
        "length": 16,
        "references": 4,
        "dtype": torch.float32,
        "device": "cpu",
        **more,
    }
    return memory.plan(stored, None, **how)


def test_weights_are_those_of_the_files(folder, monkeypatch):
    """Bytes of the weights in the type they are loaded as, and parts of them where they are spread."""
    stored = open_checkpoint(folder)
    count = sum(p.numel() for p in llama().parameters())
    whole = plan(stored, monkeypatch)

    assert whole.parameters == count
    assert whole.weights == 4 * count
    assert plan(stored, monkeypatch, dtype=torch.bfloat16).weights == 2 * count
    assert plan(stored, monkeypatch, world=4).weights == count


def test_an_adapter_has_its_base_and_small_gradients(folder, tmp_path, monkeypatch):
    """The base is loaded, only the adapter gets a gradient."""
    adapter(tmp_path / "lora", folder)
    stored = open_checkpoint(tmp_path / "lora")
    found = plan(stored, monkeypatch, base=base_of(stored, None))

    assert found.parameters > stored.parameters
    assert found.gradients == 8 * stored.parameters


def test_passes_are_as_large_as_fits(folder, monkeypatch):
    """All rows where there is room, fewer where there is less, none and a line where none fits."""
    stored = open_checkpoint(folder)
    roomy = plan(stored, monkeypatch)
    narrow = plan(stored, monkeypatch, free=int((roomy.needed + 2 * roomy.sequence) / memory.SPARE))
    none = plan(stored, monkeypatch, free=roomy.weights)

    assert roomy.micro_rows == 8
    assert 1 <= narrow.micro_rows < 8
    assert none.micro_rows == 0
    memory.check(narrow)
    with pytest.raises(ReplayError, match="--dtype bfloat16"):
        memory.check(none)


def test_the_estimate_holds_for_a_real_pass(tmp_path):
    """What autograd keeps for a sequence is no more than the plan says, and not a tenth of it."""
    model = llama()
    kept = []

    def pack(tensor):
        kept.append(tensor)
        return tensor

    ids = torch.randint(2, 64, (4, 32))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss = model(input_ids=ids, labels=ids).loss
    own = {p.data_ptr() for p in model.parameters()}
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kept
                if t.data_ptr() not in own}  # fmt: skip
    real = sum(storages.values()) / 4
    model.save_pretrained(tmp_path)
    said = memory.plan(
        open_checkpoint(tmp_path), model.config, rows=4, length=32, references=2,
        dtype=torch.float32, device="cpu",
    ).sequence  # fmt: skip

    assert loss.requires_grad
    assert 0.8 * real < said < 10 * real


@pytest.mark.parametrize(
    ("amount", "said"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1 << 20, "1.0 MiB"), (150 << 30, "150 GiB")],
)
def test_sizes(amount, said):
    assert memory.size(amount) == said
