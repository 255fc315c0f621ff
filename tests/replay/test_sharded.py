"""A model spread over two processes gives what it gives in one."""

import socket

import pytest
import torch.multiprocessing

from tests.replay import sharded_worker

ARCHS = ("llama", "gpt2")


def test_two_processes_agree_with_one():
    """Loss, gradient norm, shares, embedding rows and verdict are those of one process, with an odd
    number of sequences, though each holds about half of the weights."""
    context = torch.multiprocessing.get_context("spawn")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    results = context.Queue()
    torch.multiprocessing.start_processes(
        sharded_worker.run, (port, ARCHS, results), nprocs=2, start_method="spawn"
    )
    for _ in ARCHS:
        got = results.get(timeout=10)

        assert got["loss"][1] == pytest.approx(got["loss"][0], rel=1e-5)
        assert got["norm"][1] == pytest.approx(got["norm"][0], rel=1e-4)
        assert got["coverage"] == pytest.approx((1.0, 1.0), abs=1e-3)
        assert got["share"] < 1e-4
        assert got["rows"] < 1e-4
        assert got["kinds"][0] == got["kinds"][1]
        assert got["positions"]
        assert 0.45 < got["held"] < 0.6
