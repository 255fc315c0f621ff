"""Reader ``fairseq``: JSON and text, losses to base 2, what is left out and what is a placeholder."""

import json
import math
from pathlib import Path

import pytest

from tests.textlogs import column, read, sample, truth

LN2 = math.log(2)


def line(step: int, **values: str) -> str:
    """A line of metaseq."""
    shown = json.dumps({"epoch": 1, "num_updates": str(step), **values})
    return f"slurm_procid 0 : 2026-01-02 03:04:05 | INFO | train_inner | {shown}\n"


def test_values_are_those_of_the_run():
    """Losses come out in nats, rates as they are; values are text in the log."""
    run = sample("fairseq/bad_batch.log")

    assert column(run, "loss") == pytest.approx(truth("loss"), abs=6e-4)
    assert column(run, "val_loss") == pytest.approx(truth("val_loss"), abs=6e-4)
    assert column(run, "val_perplexity")[600] == pytest.approx(
        math.exp(truth("val_loss")[600]), 0.01
    )
    assert column(run, "step_seconds")[502] == pytest.approx(truth("step_time")[502], rel=0.01)
    assert column(run, "tokens_per_second")[502] == pytest.approx(truth("tokens_per_sec")[502])
    assert (column(run, "batch_tokens")[501], column(run, "batch_sequences")[501]) == (2048, 32)
    assert "clip_fraction" not in run.columns, "clip is of gradients, and a percentage"
    assert "tokens_per_second_per_gpu" not in run.columns


def test_facts():
    """Parameters, devices, and arguments under fairseq's names."""
    facts = sample("fairseq/bad_batch.log").facts
    wanted = {
        "parameters": 120576,
        "gpus": 8,
        "grad_clip": 1.0,
        "warmup_steps": 100,
        "total_steps": 1000,
        "peak_lr": 0.003,
        "weight_decay": 0.1,
        "seed": 1,
    }

    assert {name: facts[name].value for name in wanted} == wanted


def test_missing_gradient_norm_was_not_finite():
    """Where no gradient of a window was finite the norm is left out: it is NaN; the rest stays."""
    run = sample("fairseq/bad_batch.log")
    norm = column(run, "grad_norm")

    assert [s for s, x in norm.items() if math.isnan(x)] == [651]
    assert norm[650] == pytest.approx(truth("grad_norm")[650], abs=6e-4)
    assert any("no gradient was finite" in " ".join(note.split()) for note in run.notes)


def test_no_norm_at_all_is_not_nan(tmp_path: Path):
    """A log that never has a gradient norm hides none."""
    run = read(tmp_path / "log", "".join(line(s, loss="9.1", wps="5") for s in range(1, 5)))

    assert "grad_norm" not in run.frame.columns


def test_placeholders(tmp_path: Path):
    """A loss of -1 was not computed, and the first rate is not known; NaN is text, too."""
    text = line(1, loss="-1", wps="0", ups="0", gnorm="1.0")
    text += line(2, loss="9.0", wps="5", ups="2", gnorm="nan")
    run = read(tmp_path / "log", text)

    assert column(run, "loss") == {2: pytest.approx(9 * LN2)}
    assert column(run, "tokens_per_second") == {2: 5}
    assert column(run, "step_seconds") == {2: 0.5}
    assert math.isnan(column(run, "grad_norm")[2])


def test_simple_format_is_the_same():
    """fairseq's own format has the same numbers, its evaluations among them."""
    simple, whole = sample("fairseq/simple.log"), sample("fairseq/bad_batch.log")

    assert simple.frame["step"].to_list() == list(range(581, 631))
    for metric in ("loss", "grad_norm", "learning_rate", "loss_scale"):
        values = column(whole, metric)
        assert column(simple, metric) == {s: values[s] for s in range(581, 631)}
    assert column(simple, "val_loss") == {600: pytest.approx(truth("val_loss")[600], abs=6e-4)}


def test_gradients_that_end_a_run(tmp_path: Path):
    """The error that ends a run belongs to the last update."""
    text = line(1, loss="9.0", gnorm="1.0", ups="2") + line(2, loss="9.0", gnorm="1.0", ups="2")
    run = read(tmp_path / "log", text + "FloatingPointError: gradients are Nan/Inf\n")

    assert math.isnan(column(run, "grad_norm")[2])


def test_cut_step_is_no_step(tmp_path: Path):
    """A line cut within its number of updates is none."""
    text = line(1, loss="9.0") + line(2, loss="9.0") + line(345, loss="9.0")
    run = read(tmp_path / "log", text[: text.index("345") + 2])

    assert run.frame["step"].to_list() == [1, 2]
