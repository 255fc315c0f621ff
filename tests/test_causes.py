"""Causes: what the evidence supports, how far, and what it never supports."""

from dataclasses import replace

import numpy as np
import pytest

from stabcli.diagnosis import diagnose
from stabcli.evidence import CAUSES, STANDINGS
from stabcli.run import Trouble
from tests.rules.runs import healthy, make_run

XID = "NVRM: Xid (PCI:0000:3b:00): 63, Row Remapper"


def causes(run):
    """Name -> standing for the first incident above notice, in order."""
    d = diagnose(run)
    told = [c for i, c in zip(d.incidents, d.causes, strict=True) if i.severity != "notice"]
    return {c.name: c.standing for c in told[0]}


def spiked(n=3000, at=2000, factor=2.5, seed=0):
    """Columns of a healthy run with one row that leaps."""
    columns = healthy(n, seed=seed)
    columns["loss"][at] *= factor
    return columns


def redone(columns, back, stop):
    """Columns of a run that stopped at row ``stop``, went back to row ``back`` and on to its end."""
    n = len(columns["loss"])
    order = np.r_[0:stop, back:n]
    return {k: v[order] for k, v in columns.items()}


def test_healthy_run_has_no_causes():
    """Notices neither."""
    d = diagnose(make_run(**healthy()))
    assert len(d.causes) == len(d.incidents)
    assert not any(d.causes)


def test_one_row_is_a_hypothesis_and_no_more():
    """A spike that heals may be the batch; nothing in the log says so."""
    assert causes(make_run(**spiked()))["bad-batch"] == "hypothesis"


def test_not_recurring_never_blames_the_data():
    """Going back past a spike that does not come again leaves the batch a hypothesis."""
    columns = redone(healthy(3000), 1500, 2200)
    columns["loss"][2000] *= 2.5

    assert causes(make_run(**columns))["bad-batch"] == "hypothesis"


def test_recurring_at_the_same_step_supports_the_batch():
    """The same batch, twice."""
    assert causes(make_run(**redone(spiked(), 1500, 2200)))["bad-batch"] == "supported"


def test_leap_of_the_learning_rate_is_observed():
    """It comes first, with the row that shows it."""
    columns = healthy(3000)
    columns["learning_rate"][1980:] *= 4
    columns["loss"][2000:] *= 1.5
    d = diagnose(make_run(**columns))
    told = next(c for i, c in zip(d.incidents, d.causes, strict=True) if i.lead.metric == "loss")

    assert (told[0].name, told[0].standing) == ("learning-rate", "observed")
    assert [(r.metric, r.step) for r in told[0].rows] == [("learning_rate", 1981)]


def test_change_of_batch_is_observed():
    """Nothing was wrong with the model: it was given more at a time."""
    columns = spiked()
    batch = np.where(np.arange(3000) < 2000, 256.0, 1024.0)
    columns["grad_norm"][2000:2040] *= 30
    assert causes(make_run(**columns, global_batch_size=batch))["schedule"] == "observed"


@pytest.mark.parametrize(("precision", "standing"), [("fp16", "supported"), ("bf16", "hypothesis")])
def test_overflow_is_likelier_in_half_precision(precision, standing):
    """bf16 has the range of float32."""
    columns = healthy(3000)
    columns["loss"][2000:] = np.nan
    run = make_run(**columns, facts={"precision": precision})
    assert causes(run)["number-format"] == standing


def test_a_loss_scale_that_fell_long_after_the_first_sign_is_the_number_format():
    """The first halvings are a notice eighty rows before the rest of the same incident."""
    columns = healthy(3000)
    columns["loss"][2000:] = np.nan
    columns["loss_scale"] = 65536 / 2.0 ** np.clip((np.arange(3000) - 1900) // 6, 0, 16)
    run = make_run(**columns, facts={"precision": "fp16"})
    assert causes(run)["number-format"] == "observed"


def test_right_after_a_restart():
    """State, data or code."""
    columns = redone(healthy(3000), 1500, 2200)
    columns["loss"][2200:] *= 1.2
    assert causes(make_run(**columns))["restart"] == "supported"


def test_the_surest_comes_first_and_each_once():
    """By standing, then by how well a log shows it."""
    columns = healthy(3000)
    columns["learning_rate"][1980:] *= 4
    columns["loss"][2000:] = np.nan
    for told in diagnose(make_run(**columns)).causes:
        order = [(STANDINGS.index(c.standing), CAUSES.index(c.name)) for c in told]
        assert order == sorted(order)
        assert len({c.name for c in told}) == len(told)


@pytest.mark.parametrize(
    ("kind", "text", "step", "attempt", "told"),
    [
        ("gpu-fault", XID, 1990, 0, "supported"),
        ("gpu-fault", XID, 1500, 0, None),
        ("gpu-fault", XID, 2900, 0, None),
        ("gpu-fault", XID, None, None, None),
        ("gpu-fault", XID, 1990, 1, None),
        ("gpu-fault", "CUDA error: device-side assert triggered", 1990, 0, None),
        ("gpu-fault", "CUDA error: an illegal memory access", 1990, 0, "hypothesis"),
        ("wrong-result", "Possible transient error!", 1990, 0, "supported"),
        ("out-of-memory", "CUDA out of memory", 1990, 0, None),
        ("communication", "NCCL error", 1990, 0, None),
    ],
)
def test_a_fault_that_the_text_tells_of_supports_the_hardware(kind, text, step, attempt, told):
    """Shortly before, in the same attempt, and of a kind that changes numbers."""
    trouble = Trouble(kind=kind, file="a/train.log", line=12, text=text, attempt=attempt, step=step)
    d = diagnose(replace(make_run(**spiked()), troubles=(trouble,)))
    spike = next(c for i, c in zip(d.incidents, d.causes, strict=True) if i.rule == "loss-spike")
    found = {c.name: c.standing for c in spike}

    assert found.get("hardware") == told


def bumped(order, seed=0):
    """A run redone from 1,500 with another order of data or the same, that spikes at 1,600."""
    columns = redone(healthy(3000, seed=seed), 1500, 2200)
    if order:
        columns["loss"][2200:] = healthy(3000, seed=seed + 50)["loss"][1500:]
    columns["loss"][2300] *= 3
    return columns


def test_other_batches_after_a_restart_are_told_by_their_noise():
    """Steps done twice have the losses they had, unless the data came in another order."""
    for seed in range(4):
        assert causes(make_run(**bumped(True, seed)))["reordered-data"] == "supported"
        assert "reordered-data" not in causes(make_run(**bumped(False, seed)))


def test_other_columns_after_a_restart_are_another_configuration():
    """A column that comes or goes with a restart was not there before for a reason."""
    columns = redone(healthy(3000), 1500, 2200)
    columns["loss"][2205] *= 3
    assert "config-change" not in causes(make_run(**columns))
    columns["ema_decay"] = [None] * 2200 + [0.999] * 1500
    assert causes(make_run(**columns))["config-change"] == "supported"


def test_speed_that_gives_way_with_the_loss_supports_hardware():
    """A node that fails is slow and wrong; slowness long before says nothing."""
    columns = spiked()
    columns["loss"][2000:2020] = np.nan
    columns["tokens_per_second"][1998:2040] *= 0.3
    assert ("hardware", "supported") in numeric(columns)
    late = spiked()
    late["tokens_per_second"][1200:1260] *= 0.3
    assert "hardware" not in dict(numeric(late))


def numeric(columns):
    """The causes of every incident of the loss or the gradient."""
    d = diagnose(make_run(**columns))
    told = [c for i, c in zip(d.incidents, d.causes, strict=True) if i.family == "numerics"]
    return [(c.name, c.standing) for some in told for c in some]


@pytest.mark.parametrize(
    ("column", "values"), [("seq_len", (2048.0, 8192.0)), ("data_stage", (0.0, 1.0))]
)
def test_another_length_or_stage_of_the_data_is_the_schedule(column, values):
    """What was changed on purpose is observed, with the row from which it holds."""
    columns = healthy(3000)
    columns["loss"][1502:1506] *= 3  # a new level would begin a new segment
    stage = np.where(np.arange(3000) < 1500, *values)
    d = diagnose(make_run(**columns, **{column: stage}))
    told = next(
        c
        for i, c in zip(d.incidents, d.causes, strict=True)
        if i.family == "numerics" and i.severity != "notice"
    )
    assert (told[0].name, told[0].standing) == ("schedule", "observed")
    assert [(r.step, r.value) for r in told[0].rows] == [(1501, values[1])]
