import warnings

import numpy as np
import polars as pl
import pytest

from stabcli.assembly import LINE, WALL
from stabcli.attempts import PART
from stabcli.errors import LogError
from stabcli.readers import read_runs
from tests.event_writing import NAN, only, runs, spans


def accumulated(folder):
    """Tag -> (step, time, value), as TensorBoard's own library reads a folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from tensorboard.util import tensor_util

        events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
        events.Reload()
        found = {
            tag: [(e.step, e.wall_time, e.value) for e in events.Scalars(tag)]
            for tag in events.Tags()["scalars"]
        }
        for tag in events.Tags()["tensors"]:
            series = events.Tensors(tag)
            if series[0].tensor_proto.dtype != 7:
                found[tag] = [
                    (e.step, e.wall_time, tensor_util.make_ndarray(e.tensor_proto).item())
                    for e in series
                ]
    return found


def assert_same(folder):
    """Every value of every tag stands in the row of its step."""
    expected = accumulated(folder)
    table = only(folder).table
    assert expected
    assert set(table.columns) == {"step", LINE, WALL, PART, *expected}
    for tag, wanted in expected.items():
        rows = table.filter(pl.col(tag).is_not_null())
        assert rows["step"].to_list() == [step for step, _, _ in wanted]
        np.testing.assert_array_equal(rows[tag].to_numpy(), [value for _, _, value in wanted])
    first = min(wall for wanted in expected.values() for _, wall, _ in wanted)
    assert table[WALL].min() == first


@pytest.mark.parametrize("options", [{}, {"new_style": True}, {"double_precision": True}])
def test_torch_writes_what_we_read(tmp_path, options):
    """SummaryWriter in all its spellings, beside histograms and texts."""
    pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(tmp_path)) as writer:
            writer.add_text("note", "hello")
            for step in range(300):
                writer.add_scalar("loss", 8 / (1 + step), step, **options)
                writer.add_scalar("grad_norm", NAN if step == 200 else 0.1 * step, step, **options)
                if step % 50 == 49:
                    writer.add_scalar("eval/loss", step, step, **options)
                    writer.add_histogram("weights", np.arange(step), step)

    expected = accumulated(tmp_path)
    found = only(tmp_path)
    for tag in ("loss", "grad_norm", "eval/loss"):
        rows = found.table.filter(pl.col(tag).is_not_null())
        assert rows["step"].to_list() == [step for step, _, _ in expected[tag]]
        np.testing.assert_array_equal(rows[tag].to_numpy(), [v for _, _, v in expected[tag]])
    np.testing.assert_array_equal(
        found.table[WALL].to_numpy(), [wall for _, wall, _ in expected["loss"]]
    )
    assert found.notes == ("7 values that are no single numbers (texts, histograms, …) left out",)


def test_torch_add_scalars_is_one_run(tmp_path):
    """The folders that add_scalars makes end up as columns of the run."""
    pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(tmp_path)) as writer:
            for step in range(20):
                writer.add_scalars("loss", {"train": step, "val": 2 * step}, step)

    (run,) = runs(tmp_path).values()

    assert (run.columns["loss"], run.columns["val_loss"]) == ("loss/train", "loss/val")
    assert run.frame["val_loss"].to_list() == [2.0 * s for s in range(20)]


def test_torch_purge_step_is_an_attempt(tmp_path):
    """TensorBoard forgets what was purged; here it is the discarded part of an attempt."""
    pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.utils.tensorboard import SummaryWriter

        for first, last, purge in ((0, 10, None), (6, 15, 6)):
            with SummaryWriter(str(tmp_path), purge_step=purge) as writer:
                for step in range(first, last):
                    writer.add_scalar("loss", step + 100 * first, step)

    (run,) = runs(tmp_path).values()

    assert spans(run) == [(0, 9), (6, 14)]
    kept = run.frame.filter(~run.frame["discarded"])
    assert kept["loss"].to_list() == [value for _, _, value in accumulated(tmp_path)["loss"]]


def test_tensorboards_own_writer_is_read(tmp_path):
    """Its EventFileWriter, with a step in several events."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(tmp_path))
    for step in range(200):
        made = Event(wall_time=1.7e9 + step, step=step)
        made.summary.value.add(tag="loss", simple_value=step / 7)
        made.summary.value.add(tag="lr", simple_value=1e-3)
        writer.add_event(made)
        if step % 10 == 0:
            late = Event(wall_time=1.7e9 + step + 0.5, step=step)
            late.summary.value.add(tag="accuracy", simple_value=0.5)
            writer.add_event(late)
    writer.close()

    assert_same(tmp_path)


def test_real_folders_are_sensible_runs(shared_data):
    """Runs and attempts of the folders of real projects, as their files tell them."""
    top = shared_data / "tb"
    expected = {
        "NVIDIA__Megatron-LM/gpt3-357m": [[(1, 100)]] * 4,
        "NVIDIA__Megatron-LM/tensorboard": [[(1, 6)]],
        "hpcaitech__ColossalAI/ParallelMode.GLOBAL_rank_0": [
            [(0, last)] for last in (2668, 226, 46, 4316, 310, 642)
        ],
        "pytorch__torchtitan": [[(1, 10)]] * 3,
        "tensorflow__agents/event_log_too_many": [[(0, 3_000_000)]] * 2,
        "tensorflow__tensorboard/testdata": [[(1, 901), (1001, 2901)]],
        "tloen__alpaca-lora": [[(10, 1164)]],
        "volcengine__verl": [[(0, 105)]] * 2,
    }

    assert {p: [spans(r) for r in runs(top / p).values()] for p in expected} == expected


def test_real_files_are_read_or_told(shared_data):
    """Each file alone is a run, or an error of one line where it holds no scalar."""
    files = sorted((shared_data / "tb").rglob("*tfevents*"))
    empty = [p for p in files if p.stat().st_size < 200]
    assert len(empty) == 6
    for path in files:
        if path in empty and "eval" not in path.parts:
            with pytest.raises(LogError, match=r"^[^\n]+$"):
                read_runs([str(path)])
        else:
            (run,), _ = read_runs([str(path)])
            assert run.reader == "tensorboard"
            assert run.frame.height > 0
