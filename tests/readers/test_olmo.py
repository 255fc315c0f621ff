"""Reader ``olmo``: a head and a line a value, of OLMo and OLMo-core; units; broken heads."""

import math
from pathlib import Path

import pytest

from tests.conftest import SAMPLES
from tests.textlogs import column, read, sample, truth

HEAD = "2026-01-02 03:04:05.678\tnode1:0\tolmo.train:979\tINFO\t[step={}/739328,epoch=0]\n"
VALUES = "    train/CrossEntropyLoss={}\n    optim/total_grad_norm={}\n"


def test_values_are_those_of_the_run():
    """A record is one row, at the time of its head; throughput is that of one device."""
    run = sample("olmo/bad_batch.log")

    assert column(run, "loss") == pytest.approx(truth("loss"), abs=6e-5)
    assert column(run, "grad_norm") == pytest.approx(truth("grad_norm"), abs=6e-5)
    assert column(run, "wall_time") == pytest.approx(truth("timestamp"), abs=2e-3)
    assert column(run, "tokens_per_second_per_gpu")[501] == 63649
    assert column(run, "tokens_seen")[700] == 700 * 2048
    assert "val_perplexity" not in run.frame.columns, "that of the lines is of training"
    assert {n: run.facts[n].value for n in ("parameters", "total_steps")} == {
        "parameters": 120576,
        "total_steps": 1000,
    }
    assert run.facts["checkpoints"].value == (600, 700)


def test_olmo_core():
    """Names with blanks and brackets, counts with suffixes, MFU in percent, a NaN."""
    run = sample("olmo/olmo_core.log")

    assert run.frame["step"].to_list() == list(range(581, 631))
    assert column(run, "mfu")[581] == pytest.approx(0.412)
    assert column(run, "tokens_seen")[581] == pytest.approx(581 * 2048, rel=1e-2)
    assert column(run, "learning_rate")[582] == 1.5e-3
    assert column(run, "tokens_per_second_per_gpu")[581] == 8128
    assert column(run, "aux_loss")[581] == 1.01
    assert column(run, "z_loss")[581] == 1.23e-5
    assert [s for s, x in column(run, "skipped_steps").items() if x] == [611]
    assert [s for s, x in column(run, "loss").items() if math.isnan(x)] == [626]
    assert "total_steps" not in run.facts, "its end is not known"


def test_values_below_a_broken_head_are_nobodys(tmp_path: Path):
    """They are not taken for those of the step before, and a note counts them."""
    text = HEAD.format(1) + VALUES.format("2.5", "1.0")
    text += HEAD.format("x") + VALUES.format("nan", "9.0")
    text += HEAD.format(3) + VALUES.format("2.4", "1.1")
    run = read(tmp_path / "log", VALUES.format("7.0", "7.0") + text)

    assert column(run, "loss") == {1: 2.5, 3: 2.4}
    assert any(note.startswith("4 values") for note in run.notes)


def test_other_lines_are_no_values(tmp_path: Path):
    """Source code and configuration may be set in as far as values are."""
    noise = "    x=5\n    path=/data/step7=1\n    model = Model(n=3)\n    a/b c=d e\n"
    text = HEAD.format(1) + VALUES.format("2.5", "inf") + noise
    run = read(tmp_path / "log", text + HEAD.format(2) + VALUES.format("2.5", "1.0"))

    assert set(run.columns) == {"step", "epoch", "loss", "grad_norm"}
    assert column(run, "grad_norm")[1] == math.inf


def test_rich_console(tmp_path: Path):
    """On a terminal the head is followed by blanks and a place in the code, the values set in more."""
    blank = " " * 33
    text = "".join(
        f"[01/02/26 03:04:05] INFO     [step={s}/100,epoch=0]          train.py:979\n"
        f"{blank}train/CrossEntropyLoss=2.{s}        \n"
        for s in range(1, 5)
    )
    run = read(tmp_path / "log", text)

    assert (run.reader, column(run, "loss")) == ("olmo", {1: 2.1, 2: 2.2, 3: 2.3, 4: 2.4})


def test_cut_record(tmp_path: Path):
    """Of a record cut short what came before the cut is kept, and the cut value is not."""
    text = (SAMPLES / "olmo/bad_batch.log").read_text(encoding="utf-8")
    at = text.index("train/CrossEntropyLoss", text.index("[step=520/"))
    run = read(tmp_path / "log", text[: at + len("train/CrossEntropyLoss=1.7")])

    assert run.frame["step"].to_list() == list(range(501, 521))
    assert list(column(run, "loss")) == list(range(501, 520))
    assert column(run, "grad_norm")[520] == pytest.approx(truth("grad_norm")[520], abs=6e-5)
