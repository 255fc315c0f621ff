"""Checkpoints of every format come out as the model that was saved; what cannot is said why."""

import json
from pathlib import Path

import pytest
import torch

from stabcli.errors import ReplayError
from stabcli.replay.checkpoint import load, open_checkpoint
from stabcli.replay.checkpoint_names import titan_name
from tests.replay.checkpoints import D, Plain, adapter, dcp, llama, same, titan_state

OWN = "tests.replay.checkpoints:Plain"


def loaded(path: Path, **how):
    return load(open_checkpoint(path), **how)


def refusal(path: Path, **how) -> str:
    with pytest.raises(ReplayError) as caught:
        loaded(path, **how)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A Hugging Face folder in one file."""
    path = tmp_path_factory.mktemp("hf") / "checkpoint-40"
    llama().save_pretrained(path)
    return path


@pytest.mark.parametrize("tied", [False, True])
def test_hf_folder_in_shards(tmp_path, tied):
    """Several safetensors files and their index are one model, tied or not."""
    model = llama(tied=tied)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    found = loaded(tmp_path)

    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert found.stored.format == "hf"
    assert same(found.model, model)
    assert found.nonfinite == ()


def test_hf_folder_with_bin(tmp_path):
    """The old .bin is read as data."""
    model = llama(1)
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")

    assert same(loaded(tmp_path).model, model)


def test_step_is_told_by_the_folder(folder):
    """checkpoint-40 was saved at step 40."""
    assert open_checkpoint(folder).step == 40


def test_rotary_frequencies_are_made_anew_in_every_format(folder, tmp_path):
    """Buffers that no checkpoint holds are what the model makes them, in float32 whatever the dtype."""
    right = dict(llama().named_buffers())
    torch.save(llama().state_dict(), tmp_path / "weights.pt")
    dcp({"model": llama().state_dict()}, tmp_path / "step-7")
    for path in (folder, tmp_path / "weights.pt", tmp_path / "step-7"):
        how = {} if path == folder else {"model": str(folder)}
        found = dict(loaded(path, dtype=torch.bfloat16, **how).model.named_buffers())

        assert found
        assert all(torch.equal(found[name], right[name]) for name in found)


def test_torch_state_dict_under_any_prefix(tmp_path, folder):
    """DDP, torch.compile and trainers put words before the names."""
    model = llama(2)
    for start in ("", "module.", "_orig_mod.", "model."):
        state = {start + name: tensor for name, tensor in model.state_dict().items()}
        path = tmp_path / "w.pt"
        torch.save({"model": state, "iter_num": 11}, path)
        found = loaded(path, model=str(folder))

        assert same(found.model, model), start
        assert found.stored.step == 11


def test_safetensors_file_of_an_own_model(tmp_path):
    """package.module:factory gives the model of a bare file."""
    from safetensors.torch import save_file

    torch.manual_seed(3)
    model = Plain()
    save_file(model.state_dict(), tmp_path / "w.safetensors")

    assert same(loaded(tmp_path / "w.safetensors", model=OWN).model, model)


def test_factory_gets_the_arguments_left_in_the_checkpoint(tmp_path):
    """nanoGPT's model_args make the model."""
    model = Plain(width=24)
    torch.save({"model": model.state_dict(), "model_args": {"width": 24}}, tmp_path / "ckpt.pt")

    assert same(
        loaded(tmp_path / "ckpt.pt", model="tests.replay.checkpoints:plain_of").model, model
    )


@pytest.mark.parametrize("nested", [False, True])
def test_dcp(tmp_path, folder, nested):
    """torch.distributed.checkpoint, weights at the top as torchtitan has them, or under `model`."""
    model = llama(4)
    state = model.state_dict()
    where = dcp(
        {"model": state} if nested else {**state, "train_state": {"step": 9}}, tmp_path / "step-9"
    )
    found = loaded(where, model=str(folder))

    assert found.stored.format == "dcp"
    assert found.stored.step == 9
    assert same(found.model, model)


def test_torchtitan_llama_becomes_hugging_faces(tmp_path, folder):
    """Names and the order of head dimensions are turned; the logits are those that were saved."""
    model = llama(5)
    found = loaded(dcp(titan_state(model), tmp_path / "step-3"), model=str(folder))

    assert same(found.model, model)
    assert any("torchtitan" in note for note in found.notes)


def test_heads_turned_by_pairs_are_heads_turned_by_halves():
    """The permutation is the one between interleaved rotary embedding and Hugging Face's."""
    from types import SimpleNamespace

    from stabcli.replay.checkpoint_names import to_hf

    torch.manual_seed(0)
    heads, size, length = 2, 8, 5
    config = SimpleNamespace(num_attention_heads=heads, num_key_value_heads=heads)
    x_TD, wq, wk = (torch.randn(length, 16), torch.randn(16, 16), torch.randn(16, 16))
    angle_TF = torch.outer(
        torch.arange(length).float(), 10000.0 ** -(torch.arange(0, size, 2) / size)
    )

    def pairs(y_TD):  # torchtitan: neighbours are one complex number
        y = torch.view_as_complex(y_TD.view(length, heads, -1, 2))
        return torch.view_as_real(
            y * torch.polar(torch.ones_like(angle_TF), angle_TF)[:, None]
        ).flatten(2)

    def halves(y_TD):  # Hugging Face: x cos + rotate_half(x) sin
        y = y_TD.view(length, heads, size)
        both = torch.cat([angle_TF, angle_TF], -1)[:, None]
        turned = torch.cat([-y[..., size // 2 :], y[..., : size // 2]], -1)
        return y * both.cos() + turned * both.sin()

    scores = torch.einsum("thd,shd->hts", pairs(x_TD @ wq.T), pairs(x_TD @ wk.T))
    hq, hk = (to_hf(n, w, config) for n, w in (("q_proj.weight", wq), ("k_proj.weight", wk)))
    same_scores = torch.einsum("thd,shd->hts", halves(x_TD @ hq.T), halves(x_TD @ hk.T))

    assert torch.allclose(scores, same_scores, atol=1e-4)
    assert titan_name("layers.3.attention.wq.weight") == "model.layers.3.self_attn.q_proj.weight"
    assert titan_name("layers.3.other.weight") == ""


def test_lightning(tmp_path, folder):
    """state_dict under the module's own attribute; settings of other libraries are left unread."""
    import argparse

    model = llama(6)
    state = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    torch.save(
        {"pytorch-lightning_version": "2.6", "global_step": 12, "state_dict": state,
         "hyper_parameters": argparse.Namespace(lr=1)},
        tmp_path / "epoch=0-step=12.ckpt",
    )  # fmt: skip
    found = loaded(tmp_path / "epoch=0-step=12.ckpt", model=str(folder))

    assert found.stored.format == "lightning"
    assert found.stored.step == 12
    assert same(found.model, model)
    assert any("hyper_parameters" in note for note in found.notes)


def test_real_lightning_checkpoint(tmp_path, folder):
    """What Lightning itself writes is read."""
    lightning = pytest.importorskip("lightning", reason="Lightning is not installed")
    model = llama(7)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = model
            self.save_hyperparameters({"lr": 0.1})

    class Loader:
        pass

    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            max_steps=0, logger=False, enable_checkpointing=False, accelerator="cpu",
            enable_progress_bar=False, enable_model_summary=False, barebones=False,
        )  # fmt: skip
        trainer.strategy.connect(Module())
        trainer.save_checkpoint(tmp_path / "x.ckpt", weights_only=True)

    assert same(loaded(tmp_path / "x.ckpt", model=str(folder)).model, model)


@pytest.mark.parametrize("rslora", [False, True])
def test_lora_on_its_base(tmp_path, folder, rslora):
    """The adapter adds scale · B A, and nothing but the adapter gets a gradient."""
    tensors = adapter(tmp_path / "lora", folder, use_rslora=rslora)
    found = loaded(tmp_path / "lora")
    merged = llama()
    scale = 8 / (4**0.5 if rslora else 4)
    with torch.no_grad():
        for layer in (0, 1):
            place = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
            a, b = tensors[f"{place}.lora_A.weight"], tensors[f"{place}.lora_B.weight"]
            merged.model.layers[layer].self_attn.q_proj.weight += scale * b @ a
    trained = [name for name, p in found.model.named_parameters() if p.requires_grad]

    assert same(found.model, merged)
    assert len(trained) == 4
    assert all("lora_" in name for name in trained)


def test_lora_that_does_not_fit(tmp_path, folder):
    """Another kind of adapter, a base that is not here, a layer the base has not: each in a line."""
    adapter(tmp_path / "dora", folder, use_dora=True)
    adapter(tmp_path / "gone", tmp_path / "nowhere")
    adapter(tmp_path / "lora", folder)
    torch.manual_seed(0)
    from transformers import GPT2Config, GPT2LMHeadModel

    gpt = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=2, n_positions=32))
    gpt.save_pretrained(tmp_path / "gpt")

    assert "use_dora" in refusal(tmp_path / "dora")
    assert "--model FOLDER" in refusal(tmp_path / "gone")
    assert "no layer" in refusal(tmp_path / "lora", model=str(tmp_path / "gpt"))


def test_missing_extra_and_misshaped_are_named(tmp_path):
    """Before any pass: what is not there, what has another shape, and what is too much."""
    state = Plain().state_dict()
    torch.save({n: t for n, t in state.items() if n != "mix.bias"}, tmp_path / "less.pt")
    torch.save({**state, "mix.weight": torch.zeros(3, 3)}, tmp_path / "odd.pt")
    torch.save({**state, "more": torch.zeros(2)}, tmp_path / "more.pt")

    assert "lacks 1 weights of the model: mix.bias" in refusal(tmp_path / "less.pt", model=OWN)
    assert f"mix.weight (3 x 3 stored, {D} x {D} in the model)" in refusal(
        tmp_path / "odd.pt", model=OWN
    )
    assert any("more" in note for note in loaded(tmp_path / "more.pt", model=OWN).notes)


def test_hf_folder_with_other_shapes_or_less(tmp_path):
    """A config of another model, and weights that lack a layer."""
    from safetensors.torch import load_file, save_file

    llama().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "intermediate_size": 24}))
    assert "disagree on the shape" in refusal(tmp_path)

    (tmp_path / "config.json").write_text(json.dumps(config))
    state = load_file(tmp_path / "model.safetensors")
    state.pop("model.layers.1.mlp.up_proj.weight")
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert "lacks 1 weights" in refusal(tmp_path)


def test_config_of_a_far_larger_model(tmp_path):
    """A config that describes a thousand times the weights is refused before memory is taken."""
    llama().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "vocab_size": 10_000_000}))

    assert "describes" in refusal(tmp_path)


def test_nonfinite_tensors_are_named(tmp_path):
    """NaN and infinities are found while reading."""
    state = Plain().state_dict()
    state["mix.weight"][1, 2] = float("nan")
    state["head.weight"][0, 0] = float("-inf")
    torch.save(state, tmp_path / "w.pt")

    assert set(loaded(tmp_path / "w.pt", model=OWN).nonfinite) == {"mix.weight", "head.weight"}


def test_half_written_checkpoints(tmp_path, folder):
    """A file cut short, a missing shard, shards without their description."""
    for name in ("model.safetensors", "config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    assert "half written" in refusal(tmp_path)

    torch.save(Plain().state_dict(), tmp_path / "w.pt")
    cut = (tmp_path / "w.pt").read_bytes()
    (tmp_path / "w.pt").write_bytes(cut[: len(cut) // 2])
    assert "half written" in refusal(tmp_path / "w.pt", model=OWN)

    llama().save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    next((tmp_path / "shards").glob("*-00002-of-*")).unlink()
    assert "half written" in refusal(tmp_path / "shards")

    where = dcp({"model": llama().state_dict()}, tmp_path / "step-1")
    (where / ".metadata").unlink()
    assert "without their .metadata" in refusal(where, model=str(folder))


def test_kinds_to_convert_first(tmp_path):
    """Megatron and DeepSpeed ZeRO are refused with the way to convert them."""
    (tmp_path / "megatron").mkdir()
    (tmp_path / "megatron" / "latest_checkpointed_iteration.txt").write_text("100")
    (tmp_path / "iter_0000100" / "mp_rank_00").mkdir(parents=True)
    (tmp_path / "iter_0000100" / "mp_rank_00" / "model_optim_rng.pt").write_bytes(b"x")
    (tmp_path / "zero" / "global_step100").mkdir(parents=True)
    (tmp_path / "zero" / "zero_to_fp32.py").write_text("")

    assert "convert.py" in refusal(tmp_path / "megatron")
    assert "convert.py" in refusal(tmp_path / "iter_0000100")
    assert "zero_to_fp32.py" in refusal(tmp_path / "zero")


def test_folders_that_are_no_checkpoint(tmp_path):
    """Several checkpoints, none, an empty file, no file."""
    for step in (100, 200):
        (tmp_path / f"checkpoint-{step}").mkdir()
    (tmp_path / "empty.pt").write_bytes(b"")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "train.txt").write_text("x")

    assert (
        "several checkpoints: give one of them, of late checkpoint-100, checkpoint-200"
        in refusal(tmp_path)
    )
    assert "no checkpoint of a kind known" in refusal(tmp_path / "logs")
    assert "empty" in refusal(tmp_path / "empty.pt")
    assert "no such file" in refusal(tmp_path / "gone")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (None, "weights without a model"),
        ("nothing", "not package.module:factory"),
        ("tests.replay.checkpoints:gone", "cannot be imported"),
        ("no_such_package:x", "cannot be imported"),
        ("tests.replay.checkpoints:V", "not callable"),
        ("tests.replay.checkpoints:tokens", "not a torch.nn.Module"),
        ("tests.replay.checkpoints:plain_of", "needs config"),
        ("tests.replay.checkpoints:llama", "lacks"),
    ],
)
def test_wrong_model(tmp_path, model, said):
    """A factory that is none, or of another model, is said in a line."""
    torch.save(Plain().state_dict(), tmp_path / "w.pt")

    assert said in refusal(tmp_path / "w.pt", model=model)
