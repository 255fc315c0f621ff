"""The recorder writes a flagged step and those before it, and is never in the way of training."""

import json
import math
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch

from stabcli.record import Recorder, callback
from stabcli.replay.load_batches import load_batches
from tests.conftest import ROOT
from tests.replay.checkpoints import V, llama, tokens


def noise(step: int) -> float:
    """A loss that is never twice the same, within a few percent."""
    return 3.0 + 0.05 * math.sin(12.9898 * step)


def train(record: Recorder, steps: int, bad: dict[int, float] | None = None, rows: int = 4):
    """Feed a recorder a run whose losses are noise but for the bad steps."""
    for step in range(1, steps + 1):
        record(step, tokens(step, rows=rows), loss=(bad or {}).get(step, noise(step)))
    record.flush()


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_quiet_runs_write_nothing(tmp_path):
    """Noise, a falling loss, a constant, a drop: nothing is written, not even the folder."""
    for kind, value in {
        "noise": noise,
        "falling": lambda s: 10.0 / s**0.5,
        "constant": lambda s: 2.0,
        "drop": lambda s: 3.0 if s < 100 else 1.0,
        "zero": lambda s: 0.0,
    }.items():
        record = Recorder(tmp_path / kind)
        for step in range(1, 201):
            record(step, tokens(step), loss=value(step), grad_norm=abs(value(step)) * 0.5)
        record.flush()

        assert record.written == [], kind
        assert not (tmp_path / kind).exists()


@pytest.mark.parametrize("value", [9.0, math.nan, math.inf, -math.inf])
def test_flagged_step_comes_first_then_the_clean_ones(tmp_path, value):
    """A spike or a non-finite loss; what came before is beside it, marked as not flagged."""
    record = Recorder(tmp_path, keep=5)
    train(record, 60, {50: value})
    (path,) = record.written
    flagged, *before = lines(path)

    assert path.name == "step-00000050-rank-0.jsonl"
    assert flagged["step"] == 50
    assert flagged["flagged"]
    assert flagged["why"].startswith("loss")
    assert flagged["input_ids"] == tokens(50, rows=4).tolist()
    assert [line["step"] for line in before] == [49, 48, 47, 46]
    assert not any(line["flagged"] for line in before)
    assert list(tmp_path.iterdir()) == [path]


def test_nonfinite_counts_from_the_first_step(tmp_path):
    """A spike needs a level to leap from; NaN needs none."""
    early = Recorder(tmp_path / "a")
    train(early, 10, {2: math.nan})
    spike = Recorder(tmp_path / "b")
    train(spike, 10, {5: 99.0})

    assert [lines(p)[0]["loss"] for p in early.written] == ["NaN"]
    assert spike.written == []


def test_grad_norm_alone(tmp_path):
    """A gradient norm that leaps while the loss stays."""
    record = Recorder(tmp_path)
    for step in range(1, 80):
        record(
            step,
            tokens(step),
            loss=noise(step),
            grad_norm=7.0 if step == 70 else 1 + 0.1 * math.sin(step),
        )
    record.flush()
    (path,) = record.written

    assert lines(path)[0]["why"].startswith("grad_norm 7, usually 0.99")


def test_at_most_so_many_sequences(tmp_path):
    """A hundred in one dump: the flagged step's first, then whole steps that fit."""
    record = Recorder(tmp_path / "a", keep=8)
    train(record, 50, {50: 9.0}, rows=30)
    counts = [len(line["input_ids"]) for line in lines(record.written[0])]
    assert counts == [30, 30, 30]

    record = Recorder(tmp_path / "b")
    train(record, 50, {50: 9.0}, rows=130)
    (line,) = lines(record.written[0])
    assert len(line["input_ids"]) == 100
    assert line["sequences_in_step"] == 130


def test_a_long_event_is_a_few_dumps(tmp_path):
    """Steps after the first that spiked are mostly its victims; a later event is dumped anew."""
    record = Recorder(tmp_path, keep=4)
    train(record, 160, {**dict.fromkeys(range(50, 60), 9.0), 120: 9.0})

    assert [int(p.name[5:13]) for p in record.written] == [50, 51, 52, 120]
    assert [line["flagged"] for line in lines(record.written[1])] == [True, True, False, False]


def test_a_new_level_is_learnt(tmp_path):
    """After the loss has settled higher the recorder is quiet again."""
    record = Recorder(tmp_path, window=64)
    train(record, 400, {s: noise(s) + 4 for s in range(100, 401)})

    assert {int(p.name[5:13]) for p in record.written} <= set(range(100, 140))


def test_micro_batches_of_other_lengths(tmp_path):
    """Several calls are one step; short ones are filled up and masked."""
    record = Recorder(tmp_path, labels="own")
    record.batch(
        tokens(1, rows=2, length=6), labels=tokens(1, rows=2, length=6), sample_ids=["a", "b"]
    )
    record.batch(tokens(2, rows=1, length=4), labels=tokens(2, rows=1, length=4), sample_ids=["c"])
    record.step(1, loss=math.nan)
    (found,) = load_batches(record.written)
    targets_BT = found.batch.targets_BT()

    assert found.batch.sample_ids == ("a", "b", "c")
    assert found.batch.attention_mask_BT.tolist()[2] == [True] * 4 + [False] * 2
    assert (targets_BT[2] >= 0).tolist() == [True] * 3 + [False] * 3
    assert targets_BT[0, :5].tolist() == tokens(1, rows=2, length=6)[0, 1:].tolist()


def test_numpy_lists_and_tensors_are_all_taken(tmp_path):
    """And copied: what the loop does to its buffers later does not show."""
    ids = tokens(3)
    buffer, array = ids.clone(), ids.numpy().copy()
    for given in (buffer, array, ids.tolist(), tuple(map(tuple, ids.tolist()))):
        record = Recorder(tmp_path)
        record.batch(given)
        if hasattr(given, "shape"):
            given[:] = 0
        record.step(1, loss=torch.tensor(math.nan))

        assert lines(record.written[0])[0]["input_ids"] == ids.tolist()


def test_training_goes_on_where_nothing_can_be_written(tmp_path):
    """A folder that is a file, parts that do not fit: a warning, no error."""
    (tmp_path / "file").write_text("x")
    record = Recorder(tmp_path / "file")
    with pytest.warns(UserWarning, match="cannot be written"):
        train(record, 2, {2: math.nan})
    record = Recorder(tmp_path / "odd")
    record.batch(tokens(1, rows=2), labels=tokens(1, rows=1))
    with pytest.warns(UserWarning, match="1 labels for 2 sequences"):
        record.step(1, loss=math.nan)

    assert record.written == []


def test_settings_that_make_no_sense():
    """Are refused at once, not at the spike."""
    for wrong in ({"keep": 0}, {"sequences": 0}, {"window": 3}):
        with pytest.raises(ValueError, match="Recorder"):
            Recorder("x", **wrong)


def test_rank_is_in_the_name(tmp_path, monkeypatch):
    """Under torchrun every process writes its own file."""
    monkeypatch.setenv("RANK", "3")
    record = Recorder(tmp_path)
    train(record, 1, {1: math.nan})

    assert record.written[0].name == "step-00000001-rank-3.jsonl"
    assert lines(record.written[0])[0]["rank"] == 3


class Late:
    """A value on another device: its event has not happened until it is asked to."""

    def __init__(self):
        self.there = False

    def query(self):
        return self.there

    def synchronize(self):
        self.there = True


def test_nothing_waits_for_values_on_their_way(tmp_path, monkeypatch):
    """Steps are judged in order once their values are there; at most `keep` steps late, or at flush."""
    from stabcli.record import _recorder

    events = []

    def fetch(loss, grad_norm):
        events.append(Late())
        return loss, grad_norm, events[-1]

    monkeypatch.setattr(_recorder, "_fetch", fetch)
    record = Recorder(tmp_path, keep=3)
    for step in (1, 2, 3):
        record(step, tokens(step), loss=math.nan if step == 1 else 3.0)
    assert record.written == []
    assert not any(event.there for event in events)

    record(4, tokens(4), loss=3.0)
    assert len(record.written) == 1
    assert [event.there for event in events] == [True, False, False, False]

    record.flush()
    assert all(event.there for event in events)


def test_import_is_light():
    """The training loop gets nothing but the standard library."""
    code = (
        "import sys; import stabcli.record; "
        "print([m for m in ('torch', 'numpy', 'polars', 'transformers', 'rich', 'typer') if m in sys.modules])"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert out.stdout == "[]\n"


def test_transformers_trainer(tmp_path):
    """The callback sees what the model is fed and the loss of every step, accumulation included."""
    pytest.importorskip("accelerate", reason="transformers' Trainer needs accelerate")
    from transformers import Trainer, TrainingArguments

    rows = tokens(9, rows=160, length=12)
    rows[::2] = rows[0]  # something to learn
    data = [{"input_ids": row, "labels": row.clone()} for row in rows]
    back = callback(tmp_path / "flagged", keep=4)
    model = llama(8)
    broken = {"after": 30}

    class Spoilt(Trainer):
        def compute_loss(self, model, inputs, **named):
            if self.state.global_step == broken["after"] and model.training:
                inputs = {**inputs, "input_ids": inputs["input_ids"] * 0 + V - 1}
                inputs["labels"] = torch.randint(2, V, inputs["labels"].shape)
            return super().compute_loss(model, inputs, **named)

    arguments = TrainingArguments(
        output_dir=str(tmp_path / "out"), max_steps=36, per_device_train_batch_size=2,
        gradient_accumulation_steps=2, logging_steps=1, report_to=[], save_strategy="no",
        use_cpu=True, disable_tqdm=True, seed=1, dataloader_pin_memory=False,
    )  # fmt: skip
    model.forward = nan_at(model, lambda: trainer.state.global_step == broken["after"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Spoilt(model=model, args=arguments, train_dataset=data, callbacks=[back])
        trainer.train()
    flagged, *before = lines(back.recorder.written[0])

    assert flagged["step"] == 31
    assert flagged["loss"] == "NaN"
    assert flagged["sequences_in_step"] == 4
    assert flagged["labels_are"] == "own"
    assert {i for row in flagged["input_ids"] for i in row} == {V - 1}
    logged = {entry["step"]: entry for entry in trainer.state.log_history if "loss" in entry}
    for line in before:
        assert line["loss"] == pytest.approx(logged[line["step"]]["loss"], abs=2e-3)
        assert line["grad_norm"] == pytest.approx(logged[line["step"]]["grad_norm"], rel=1e-3)


def nan_at(model, when):
    """A forward whose loss is NaN at one step, as an overflow makes it."""
    plain = model.forward

    def forward(*arguments, **named):
        out = plain(*arguments, **named)
        if when() and out.loss is not None:
            out.loss = out.loss * math.nan
        return out

    forward.__signature__ = __import__("inspect").signature(plain)
    return forward


def test_evaluation_is_not_recorded(tmp_path):
    """Batches that the model sees outside training are not the step's."""
    from types import SimpleNamespace

    back = callback(tmp_path)
    model = llama()
    state = SimpleNamespace(global_step=1)
    back.on_train_begin(None, state, None, model=model)
    model.eval()
    model(input_ids=tokens(1), labels=tokens(1))
    model.train()
    model(input_ids=tokens(2), labels=tokens(2))
    back.on_step_end(None, state, None)
    back.on_log(None, state, None, logs={"grad_norm": math.nan})
    back.on_train_end(None, state, None)
    (path,) = back.recorder.written
    model(input_ids=tokens(3), labels=tokens(3))

    assert lines(path)[0]["input_ids"] == tokens(2).tolist()
    assert lines(path)[0]["grad_norm"] == "NaN"
    assert np.isfinite(lines(path)[0]["loss"])
    assert not model._forward_hooks
