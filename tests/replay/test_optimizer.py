"""The optimizer's state is put to the parameters it belongs to, or not used at all."""

import pytest
import torch

from stabcli.replay.checkpoint import load, open_checkpoint
from stabcli.replay.optimizer import adam_of, jumps, moments_of
from tests.replay.checkpoints import Plain, dcp, llama, tokens


@pytest.mark.parametrize("split", [False, True])
def test_adam_by_number_and_by_name(tmp_path, split):
    """Moments are put to their parameters whatever the order of the groups; shapes decide."""
    model = Plain()
    parameters = list(model.parameters())
    if split:
        groups = [
            {"params": [p for p in parameters if p.ndim > 1]},
            {"params": [p for p in parameters if p.ndim < 2]},
        ]
    else:
        groups = parameters
    adam = torch.optim.AdamW(groups, lr=0.01)
    model(tokens()).square().mean().backward()
    adam.step()
    moments, why = moments_of(model, adam.state_dict())
    found = adam_of(model, moments, adam.state_dict())

    assert not why
    assert found.param_groups[0]["lr"] == 0.01
    for parameter in parameters:
        assert torch.equal(
            found.state[parameter]["exp_avg_sq"], adam.state[parameter]["exp_avg_sq"]
        )
    by_name = {n: {**adam.state[p]} for n, p in model.named_parameters()}
    assert moments_of(model, by_name)[0].keys() == by_name.keys()


def test_adam_that_is_none():
    """No state, another optimizer's, another model's: none, and why."""
    model = Plain()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(tokens()).sum().backward()
    sgd.step()

    assert moments_of(model, None) == ({}, "the checkpoint has no optimizer state")
    for state in (sgd.state_dict(), {}, {"state": {}, "param_groups": []}, {"state": 3}):
        assert not moments_of(model, state)[0]


def test_what_would_jump_is_what_the_gradient_is_large_of():
    """A parameter with ten times its usual gradient comes first, at 10."""
    model = Plain()
    adam = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
        adam.state[parameter] = {
            "step": torch.tensor(1000.0),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.ones_like(parameter),
        }
    model.mix.bias.grad *= 10
    (name, times), (_, usual), *_ = jumps(model, adam)

    assert name == "mix.bias"
    assert times == pytest.approx(10, rel=1e-3)
    assert usual == pytest.approx(1, rel=1e-3)


def test_optimizer_of_every_format_is_found(tmp_path):
    """Trainer's optimizer.pt, a key of a torch file, and torchtitan's flattened names."""
    model = llama()
    adam = torch.optim.AdamW(model.parameters())
    model(input_ids=tokens(), labels=tokens()).loss.backward()
    adam.step()
    model.save_pretrained(tmp_path / "hf")
    torch.save(adam.state_dict(), tmp_path / "hf" / "optimizer.pt")
    torch.save({"model": model.state_dict(), "optimizer": adam.state_dict()}, tmp_path / "w.pt")
    flat = {
        f"optimizer.state.{n}.{m}": v
        for n, p in model.named_parameters()
        for m, v in adam.state[p].items()
    }
    dcp({**model.state_dict(), **flat}, tmp_path / "step-5")
    table = model.get_input_embeddings().weight

    for path in (tmp_path / "hf", tmp_path / "w.pt", tmp_path / "step-5"):
        found = load(
            open_checkpoint(path), **({} if path.name == "hf" else {"model": str(tmp_path / "hf")})
        )
        moments, why = moments_of(found.model, found.stored.optimizer())

        assert not why, path
        assert torch.equal(
            moments["model.embed_tokens.weight"]["exp_avg_sq"], adam.state[table]["exp_avg_sq"]
        )
