"""What a pass with shares costs beside a plain one: the script for the CPU, and the run on a GPU."""

import time

import torch

from stabcli.replay.batch import Batch
from stabcli.replay.probes import Grid, Probe
from tests.replay import models

COST = """
import sys, time
sys.path.insert(0, {root!r})
import torch
torch.set_num_threads(1)
from stabcli.replay.batch import Batch
from stabcli.replay.probes import Grid, Probe
from tests.replay import models
arch, way, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
model = models.untrained(arch, 2048, width=256)
tokens = torch.randint(2, 2048, (rows, 256), generator=torch.Generator().manual_seed(0))
grid, probe = Grid.of(Batch(tokens_BT=tokens)), Probe(model)
def plain():
    model.zero_grad(set_to_none=True)
    models.loss_of(model, tokens).backward()
def memory(what):
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith(what))
models.loss_of(model, tokens[:1, :8]).backward()  # loads what a first call loads
model.zero_grad(set_to_none=True)
before = memory("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # the peak starts anew
ways = {{"plain": plain, "shares": lambda: probe.measure(grid, backward=True, shares=True)}}
if way in ways:
    ways[way]()
    print(memory("VmHWM") - before)
else:  # in turns, so that whatever else the machine does meets both alike
    best = dict.fromkeys(ways, 1e9)
    for _ in range(int(way)):
        for name, call in ways.items():
            begin = time.process_time()
            call()
            best[name] = min(best[name], time.process_time() - begin)
    print(best["plain"], best["shares"])
"""


def gpu():
    """Tokens a second with shares beside a plain pass, and the largest model that fits."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {
        "0.1B": (768, 12),
        "0.4B": (1024, 24),
        "1B": (2048, 18),
        "3B": (2560, 32),
        "7B": (4096, 32),
        "13B": (5120, 40),
        "30B": (6656, 60),
    }
    largest = None
    for name, (width, layers) in sizes.items():
        try:
            torch.cuda.empty_cache()
            config = LlamaConfig(
                vocab_size=32_000,
                hidden_size=width,
                intermediate_size=width * 8 // 3 // 64 * 64,
                num_hidden_layers=layers,
                num_attention_heads=width // 128 or 6,
                num_key_value_heads=width // 128 or 6,
                max_position_embeddings=4096,
                tie_word_embeddings=False,
            )
            with torch.device("cuda"):
                model = LlamaForCausalLM(config).bfloat16()
            tokens = torch.randint(2, 32_000, (2, 2048))
            probe, grid = Probe(model), Grid.of(Batch(tokens_BT=tokens))
            there = tokens.cuda()
            ways = {
                "plain": lambda: (
                    model.zero_grad(set_to_none=True),
                    models.loss_of(model, there).backward(),
                ),
                "shares": lambda: probe.measure(grid, backward=True, shares=True),
            }
            got = {}
            for way, call in ways.items():
                call()
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                begin = time.perf_counter()
                for _ in range(5):
                    call()
                torch.cuda.synchronize()
                got[way] = (
                    5 * tokens.numel() / (time.perf_counter() - begin),
                    torch.cuda.max_memory_allocated(),
                )
            m = probe.measure(grid, backward=True, shares=True)
            ratio = got["shares"][0] / got["plain"][0]
            print(
                f"{name:5} {sum(p.numel() for p in model.parameters()) / 1e9:5.2f} B  plain {got['plain'][0]:9.0f} "
                f"tokens/s  with shares {got['shares'][0]:9.0f} ({ratio:.0%}, at least 70 %)  memory "
                f"{got['shares'][1] / 2**30:.1f} GiB ({got['shares'][1] / got['plain'][1]:.2f} x)  coverage {m.coverage:.4f}",
                flush=True,
            )
            largest = name
            del model, probe, ways
        except torch.cuda.OutOfMemoryError:
            print(f"{name}: out of memory")
            break
    print(f"largest that fits in bfloat16: {largest}")
