# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy"]
# ///
"""Write synthetic console logs: of a run whose hardware fails, twice, and of one that ends early.

GPU 3 is a straggler from step 200 on, and the whole run slow with it, until step 259. After step
340 GPU 5 falls off the bus, collectives time out, and the run goes on from step 301 on another
node. Another run ends after step 250 of 400, out of memory. Usage: python synthetic_hardware.py [--out FOLDER]
"""

import argparse
from pathlib import Path

import numpy as np

HERE = Path(__file__).parents[1] / "generic-text"
START = """\
synthetic: a run that never was
torchrun train.py --seed 1 --global_batch_size 256 --seq_len 2048 --gpus 8
node{node}:412:412 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.{node}<0>
node{node}:412:412 [0] NCCL INFO NCCL version 2.21.5+cuda12.4
node{node}: ECC errors since boot: corrected 3, uncorrectable ECC errors: 0
"""
SPEEDS = (
    "MnRtt/Rnk: {slow:.2f}ms/0 | MxRtt/Rnk: 912.40ms/3 | MnPwr/Rnk: 401.10W/3"
    " | MnEtpt/Rnk: {least:.2f}TF/3 | MxEtpt/Rnk: 402.11TF/0"
)
END = """\
[Mon Jan  5 11:02:17 2026] NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
[rank5]:[E ProcessGroupNCCL.cpp:616] [Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=88213, OpType=ALLREDUCE, NumelIn=8388608, Timeout(ms)=600000) ran for 600021 milliseconds before timing out.
[rank5]:[E ProcessGroupNCCL.cpp:630] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.
"""

MEMORY = """\
[rank2]: Traceback (most recent call last):
[rank2]:   File "train.py", line 88, in <module>
[rank2]:     loss.backward()
[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 2 has a total capacity of 79.15 GiB of which 1.12 GiB is free.
[rank0]:[E ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=88213, OpType=ALLREDUCE, NumelIn=8388608, Timeout(ms)=600000) ran for 600021 milliseconds before timing out.
"""


def short_log():
    """The lines of a run that ends early."""
    r = np.random.default_rng(32)
    yield START.format(node=1)
    for s in range(1, 251):
        loss = 1.9 + 8.5 * (s + 20.0) ** -0.42 + r.normal(0, 0.03)
        yield f"step {s}/400, loss={loss:.4f}, lr={3e-4 * min(1, s / 30):.3e}\n"
    yield MEMORY


def log():
    """The lines of both attempts."""
    r = np.random.default_rng(31)
    for node, first, last in ((1, 1, 340), (2, 301, 600)):
        yield START.format(node=node)
        for s in range(first, last + 1):
            slow = 200 <= s < 260
            speed = 620_000 * (0.55 if slow else 1) * (1 + r.normal(0, 0.01))
            loss = 1.9 + 8.5 * (s + 20.0) ** -0.42 + r.normal(0, 0.03)
            norm = r.lognormal(np.log(0.35), 0.15)
            rate = 3e-4 * min(1, s / 30)
            yield (
                f"step {s}/600, loss={loss:.4f}, grad_norm={norm:.3f}, lr={rate:.3e},"
                f" tokens_per_sec={speed:.0f}\n"
            )
            if s % 100 == 0:
                yield SPEEDS.format(slow=501.3, least=221.4 if slow else 398.7) + "\n"
        if node == 1:
            yield END


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--out", type=Path, default=HERE)
    folder = arguments.parse_args().out
    (folder / "synthetic_hardware.log").write_text("".join(log()), encoding="utf-8")
    (folder / "synthetic_out_of_memory.log").write_text("".join(short_log()), encoding="utf-8")
