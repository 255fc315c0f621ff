"""A model spread over two processes gives what it gives in one."""

import socket
from types import SimpleNamespace

import pytest
import torch
import torch.multiprocessing

from stabcli.errors import ReplayError
from stabcli.replay.processes import Group, together
from stabcli.replay.split import Unsplittable, plan_of
from tests.replay import sharded_worker

BY_ROWS = ("llama", "gpt2", "mixtral")
BY_LAYERS = ("llama", "llama-biases", "llama-tied", "qwen3")


@pytest.mark.parametrize(("way", "archs"), [("fsdp", BY_ROWS), ("tp", BY_LAYERS)])
def test_two_processes_agree_with_one(way, archs):
    """Loss, gradient norm, shares, embedding rows and verdict are those of one process, with an odd
    number of sequences and of IDs, in one pass and in several, though each holds about half of the
    weights. What overflows in the half of one process is told by all."""
    context = torch.multiprocessing.get_context("spawn")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    results = context.Queue()
    torch.multiprocessing.start_processes(
        sharded_worker.run, (port, archs, way, results), nprocs=2, start_method="spawn"
    )
    for arch in archs:
        got = results.get(timeout=10)

        for loss, norm in zip(got["loss"][1:], got["norm"][1:], strict=True):
            assert loss == pytest.approx(got["loss"][0], rel=1e-5), arch
            assert norm == pytest.approx(got["norm"][0], rel=1e-4), arch
        assert got["losses"] < 1e-4, arch
        assert got["coverage"] == pytest.approx((1.0, 1.0, 1.0), abs=1e-3), arch
        assert got["share"] < 1e-4, arch
        assert got["rows"] < 1e-4, arch
        assert got["kinds"][0] == got["kinds"][1], arch
        assert got["positions"], arch
        assert 0.45 < got["held"] < 0.6, arch
        if way == "tp":
            assert got["blown"][0][0] == "model.layers.1.mlp.up_proj"
            assert got["blown"][0] == got["blown"][1], arch
    (had, _), (lacked, not_checked) = results.get(timeout=10)
    assert had == "number-format"
    assert lacked != "number-format"
    assert any("no room for it beside the sharded model" in each for each in not_checked)


def planned(plan, heads=4):
    model = torch.nn.Module()
    model._tp_plan = plan
    model.config = SimpleNamespace(num_attention_heads=heads, num_key_value_heads=4)
    return model


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (planned(None), "has no tp_plan"),
        (planned({"layers.*.q": "colwise"}), "names no layer of it"),
        (planned({"layers.*.mlp": "moe_tp_experts"}), "'moe_tp_experts', which is not known"),
        (
            planned({"layers.*.q": "colwise"}, heads=6),
            "4 processes do not divide 6 attention heads",
        ),
    ],
)
def test_plans_that_cannot_be_followed(model, said):
    """Are refused in one line with the way out; unasked, FSDP is taken."""
    with pytest.raises(Unsplittable, match=f"^--shard tp: .*{said}.*: .*--shard fsdp$"):
        plan_of(model, 4)
    group = Group(device="cpu", world=4, mesh=SimpleNamespace())
    assert group.decided("auto", model, 2).way == "fsdp"
    with pytest.raises(Unsplittable):
        group.decided("tp", model, 2)


def test_the_way_that_suits():
    """Fewer sequences than processes: the model's plan; otherwise, or if asked, FSDP."""
    model = sharded_worker.model_of("llama")
    group = Group(device="cpu", world=2, mesh=SimpleNamespace())

    assert group.decided("auto", model, 1).way == "tp"
    assert group.decided("auto", model, 2).way == "fsdp"
    assert group.decided("fsdp", model, 1).way == "fsdp"
    assert group.decided("tp", model, 8).way == "tp"


def test_one_process_is_not_spread():
    """To ask for it is a mistake that is said, not ignored."""
    said = pytest.raises(ReplayError, match="one process: start several with torchrun")
    with said, together("cpu", "tp"):
        pass
