"""Lines that differ in nothing but their numbers: read at once, and the same as one by one."""

import os
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from stabcli.textlog import reading
from stabcli.textlog.grammar import GRAMMARS
from stabcli.textlog.reading import read as read_log
from stabcli.textlog.words import learn
from tests.conftest import SAMPLES
from tests.mutating import mutated
from tests.samples import name
from tests.textlogs import grammar_of, samples

DAMAGED = int(os.environ.get("STABCLI_MUTATIONS", "200")) // 100
"""Damaged logs a sample."""
N = 3000


def both_ways(path: Path, grammar, monkeypatch, size: int = reading.CHUNK):
    """A log read at once, and line by line."""
    with monkeypatch.context() as patch:
        patch.setattr(reading, "_PROBE", 2048)
        quick = read_log(path, grammar, size=size)
        patch.setattr(reading, "_TRIES", 0)
        return quick, read_log(path, grammar)


def _verl(i, loss, draw):
    return (
        f"step:{i} - actor/pg_loss:{draw.gauss(0, 0.01):.4f} - actor/lr:{1e-6:.1e}"
        f" - critic/rewards/mean@10:{loss:.3f} - perf/throughput:{1000 + draw.random():.3f}"
    )


KINDS = {
    "nanogpt": lambda i, loss, draw: (
        f"iter {i}: loss {loss:.4f}, time {90 + draw.random():.2f}ms, mfu {30 + draw.random():.2f}%"
    ),
    "hf-stdout": lambda i, loss, draw: str(
        {"loss": round(loss, 4), "grad_norm": draw.random(), "learning_rate": 1e-4 / (i + 1)}
        | {"epoch": i / 1000}
    ),
    "torchtitan": lambda i, loss, draw: (
        f"[rank0]:[titan] 2026-05-01 {i // 3600:02}:{i // 60 % 60:02}:{i % 60:02},{i % 1000:03} - root"
        f" - INFO - \x1b[31mstep: {i:2}  \x1b[32mloss: {loss:7.4f}  \x1b[33mmemory: 37.29GiB(39.26%)"
        f"  \x1b[34mtps: {980 + i:,}  \x1b[36mtflops: 247.25  \x1b[35mmfu: 25.00%\x1b[39m"
    ),
    "verl": _verl,
    "generic-text, ISO": lambda i, loss, draw: (
        f"2026-05-01T10:{i // 60 % 60:02}:{i % 60:02} train: step={i} loss={loss:.4f} ({i / 30:.1f}%)"
    ),
    "generic-text, brackets": lambda i, loss, draw: (
        f"[2026-05-01 10:{i // 60 % 60:02}:{i % 60:02}.{i % 1000:03}][INFO] [{i}/3000] step {i}: loss {loss:.4f}"
    ),
    "generic-text": lambda i, loss, draw: (
        f"2026-05-01 10:{i // 60 % 60:02}:{i % 60:02} INFO step {i} loss {loss:.4f}"
        f" grad_norm {draw.random():.3f} lr {3e-4 / (1 + i):.2e}"
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_lines_of_any_width_are_read_at_once(kind, tmp_path, monkeypatch):
    """Steps that get longer, signs, exponents, thousands and times: to the last digit the same."""
    draw = random.Random(0)
    path = tmp_path / "train.log"
    lines = [KINDS[kind](i, 2 + 8 * 0.999**i + draw.gauss(0, 0.05), draw) for i in range(1, N)]
    path.write_text("\n".join(lines) + "\n")
    asked: list[str] = []
    parse = reading.Parser.parse

    def counted(self, text, **how):
        asked.append(text)
        return parse(self, text, **how)

    monkeypatch.setattr(reading.Parser, "parse", counted)
    quick, slow = both_ways(path, GRAMMARS[kind.partition(",")[0]], monkeypatch)

    assert slow.frame.height >= N - 1
    assert_frame_equal(quick.frame, slow.frame, check_column_order=False, check_exact=True)
    assert quick.bad == slow.bad
    assert len(asked) - (N - 1) < N / 4  # the slow way itself took one for each line


SPELT = st.one_of(
    st.floats().map(repr),
    st.floats(allow_nan=False).map(lambda x: f"{x:.4f}"),
    st.integers(-(10**6), 10**9).map(str),
    st.sampled_from(
        (
            *("nan", "NaN", "-inf", "1_0", "+5", "1e400", "n/a", "", "x", "1,000", "5 ms", "5ms"),
            *(".5", "1.", "007", "٣", "1.5.2", "--1", "1e5", "(3)", "3/4", "[3]", "a 3", "\t2"),
        )
    ),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 10**9).map(str) | SPELT, SPELT, SPELT), min_size=1, max_size=12
    ),
    shape=st.sampled_from(
        [
            "step {} loss {} grad_norm {}",
            "step: {}  loss: {}  grad_norm: {}%",
            "{{'step': {}, 'loss': {}, 'grad_norm': '{}'}}",
            "2026-01-01 10:00:00 step={} | loss={} | grad_norm={}",
            "[2026-01-01 10:00:00,123] step {}/100 loss {} ({})",
        ]
    ),
)
def test_whatever_stands_in_place_of_a_number(rows, shape, monkeypatch, tmp_path):
    """Odd spellings are told apart from numbers as they are line by line."""
    usual = [shape.format(i, f"{2 + i / 7:.4f}", f"{0.1 * i:.3f}") for i in range(150)]
    odd = [shape.format(*row) for row in rows]
    path = tmp_path / "train.log"
    path.write_text("\n".join(usual + odd + usual) + "\n")
    quick, slow = both_ways(path, GRAMMARS["generic-text"], monkeypatch)

    assert_frame_equal(quick.frame, slow.frame, check_column_order=False)
    assert quick.bad == slow.bad


@pytest.mark.parametrize("path", samples(), ids=name)
def test_damaged_logs_read_the_same_both_ways(path, monkeypatch, tmp_path):
    """Damage makes no value of its own where lines are read at once, and hides none.

    Which lines look like logged steps but are none depends on those read before them, both ways.
    """
    grammar = grammar_of(path)
    dice = random.Random(f"{os.environ.get('STABCLI_SEED', '')} {path.name}")
    whole = path.read_bytes()
    many = tmp_path / path.name
    for _ in range(DAMAGED):
        parts = [mutated(whole, dice) for _ in range(max(1, 100_000 // len(whole)))]
        many.write_bytes(b"\n".join(parts))
        quick, slow = both_ways(many, grammar, monkeypatch, size=30_000)
        assert_frame_equal(quick.frame, slow.frame, check_column_order=False)
        assert quick.config == slow.config


def test_what_reads_otherwise_later_is_not_read_at_once():
    """A way to read that proves wrong by a few lines of a chunk is not used for it."""
    data = b"".join(b"step %d loss 2.5\n" % i for i in range(100))
    told = {"step": 1.0, "loss": 2.5}

    def parse(text):
        words = text.split()
        return {"step": float(words[1]), "loss": float(words[3])} if len(words) == 4 else None

    honest = learn("step 3 loss 1.5", parse)
    assert honest is not None
    assert honest.read(data, 100).columns["step"].to_list() == list(range(100))

    lying = learn("step 3 loss 1.5", lambda text: told if "step 99" in text else parse(text))
    assert lying is not None
    assert lying.read(data, 100) is None


@pytest.mark.parametrize("size", [1024, 1 << 20])
def test_a_log_that_ends_in_nul_bytes_is_read_to_there(size: int, tmp_path: Path):
    """What a crash leaves of blocks that were never written, however the log is cut into chunks."""
    lines = (SAMPLES / "megatron/bad_batch.log").read_bytes().split(b"\n")
    lines = [line for line in lines if b"] iteration" in line][:30]
    path = tmp_path / "log"
    path.write_bytes(b"\n".join(lines) + b"\n" + bytes(10_000))
    log = read_log(path, GRAMMARS["megatron"], size=size)

    assert log.frame.height == 30
