import json
import math

import numpy as np
import polars as pl
import pytest

from stabcli.assembly import LINE, WALL, Options, assemble
from stabcli.attempts import PART
from stabcli.errors import LogError
from stabcli.readers.tensorboard import matches
from stabcli.sources import open_source
from tests.event_writing import (
    NAN,
    Tensor,
    Value,
    event,
    log_of,
    losses,
    name,
    only,
    readings,
    runs,
    scalar,
    spans,
    start,
    version,
    write,
)


def test_a_row_is_a_step_and_a_tag_a_column(tmp_path):
    """Tags in order of first appearance, null where not logged, records and times kept."""
    path = write(
        tmp_path,
        name(0),
        log_of([(1, {"loss": 4.0, "lr": 0.5}), (2, {"loss": 3.0}), (3, {"eval/loss": 3.5})]),
        scalar("loss", 3, 2.0, wall=1.7e9 + 30),
    )

    table = only(path).table

    assert table.drop("@part").to_dict(as_series=False) == {
        "step": [1, 2, 3],
        LINE: [2, 4, 5],
        WALL: [1.7e9 + 1, 1.7e9 + 2, 1.7e9 + 3],
        "loss": [4.0, 3.0, 2.0],
        "lr": [0.5, None, None],
        "eval/loss": [None, None, 3.5],
    }
    assert table[PART].n_unique() == 1


def test_a_healthy_log_has_no_notes(tmp_path):
    """Nothing had to be decided, so nothing is said."""
    found = only(write(tmp_path, name(0), log_of(losses(range(300)))))

    assert (found.notes, found.bad.count, dict(found.facts)) == ((), 0, {})
    assert found.name == name(0)


def test_non_finite_values_are_values_and_gaps_are_null(tmp_path):
    """NaN and infinities survive up to the run; what was not logged stays null."""
    rows = [(1, {"loss": 1.0, "g": 1.0}), (2, {"loss": NAN}), (3, {"loss": math.inf, "g": NAN})]
    (run,) = runs(write(tmp_path, name(0), log_of(rows))).values()

    assert str(run.frame["loss"].to_list()) == "[1.0, nan, inf]"
    assert run.frame["g"].is_null().to_list() == [False, True, False]


def test_tags_written_one_after_another_share_rows(tmp_path):
    """All of one tag, then all of another: as many rows as steps."""
    path = write(
        tmp_path, name(0), log_of(losses(range(100))), log_of(losses(range(0, 100, 10), "val"))
    )

    table = only(path).table

    assert table.height == 100
    assert table["val"].drop_nulls().to_list() == [s / 8 for s in range(0, 100, 10)]
    assert table.filter(pl.col("val").is_not_null())["step"].to_list() == list(range(0, 100, 10))


def test_a_step_given_several_times_loses_no_value(tmp_path):
    """A counter that stands still makes a row a value, so that the infinite one is seen."""
    values = [1.0, math.inf, 2.0]
    log = b"".join(scalar("loss", 1, v) + scalar("lr", 1, 0.5) for v in values)
    path = write(tmp_path, name(0), log + scalar("loss", 2, 9.0))

    table = only(path).table
    (run,) = runs(path).values()

    assert table["step"].to_list() == [1, 1, 1, 2]
    assert table["loss"].to_list() == [*values, 9.0]
    assert table["lr"].to_list() == [0.5, 0.5, 0.5, None]
    assert run.frame["loss"].to_list() == [math.inf, 9.0]


def test_a_restart_within_a_file_takes_every_tag_along(tmp_path):
    """A slow tag that does not go back itself still belongs to the second attempt."""
    first = log_of([(s, {"loss": s}) for s in range(10)]) + scalar("eval", 6, 1.0)
    second = scalar("eval", 7, 2.0) + log_of([(s, {"loss": s + 100}) for s in range(7, 12)])
    path = write(tmp_path, name(0), first, second)

    (run,) = runs(path).values()

    assert spans(run) == [(0, 9), (7, 11)]
    again = run.frame.filter((run.frame["attempt"] == 1) & (run.frame["step"] == 7))
    assert again.select("eval", "loss").rows() == [(2.0, 107.0)]
    assert run.frame.filter(run.frame["discarded"])["step"].to_list() == [7, 8, 9]


def test_a_late_value_is_no_restart(tmp_path):
    """One row written out of order is put in order, and that is said."""
    found = only(write(tmp_path, name(0), log_of(losses([1, 2, 4, 3, 5, 6]))))

    assert found.table["step"].to_list() == [1, 2, 3, 4, 5, 6]
    assert found.table[PART].n_unique() == 1
    assert "out of order" in found.notes[0]


def test_steps_in_no_order_at_all_are_put_in_order(tmp_path):
    """Thousands of restarts are not believed."""
    steps = np.random.default_rng(0).permutation(4000).tolist()
    found = only(write(tmp_path, name(0), log_of(losses(steps))))

    assert found.table["step"].to_list() == list(range(4000))
    assert any("no restarts" in note for note in found.notes)


def test_a_session_started_anew_begins_an_attempt(tmp_path):
    """torch's purge_step: what came after that step is kept as an earlier attempt."""
    path = write(
        tmp_path,
        name(0),
        start(0),
        log_of(losses(range(10))),
        start(5),
        log_of(losses(range(12, 20))),
    )

    (run,) = runs(path).values()

    assert spans(run) == [(0, 9), (12, 19)]


def test_a_damaged_record_is_counted_and_its_value_not_used(tmp_path):
    """The reading says which record, where, and what is wrong; its neighbours are kept."""
    log = bytearray(log_of(losses(range(100))))
    log[-6] ^= 1
    path = write(tmp_path, name(0), bytes(log))

    found = only(path)

    assert found.table["step"].to_list() == list(range(99))
    assert found.bad.count == 1
    assert found.bad.first[0][0] == 101
    assert "byte" in found.bad.first[0][1]


def test_a_record_cut_short_is_noted(tmp_path):
    """A crash while writing: what came before is read, and the cut is said."""
    path = write(tmp_path, name(0), log_of(losses(range(5)))[:-3])

    found = only(path)

    assert found.table.height == 4
    assert "cut short" in found.notes[0]


@pytest.mark.parametrize("content", [version(), version()[:20], version() + start(3)])
def test_a_file_without_scalars_is_an_error_of_one_line(tmp_path, content):
    """Nothing to look at is never called clean."""
    path = tmp_path / name(0)
    path.write_bytes(content)

    with pytest.raises(LogError, match=r"no scalar in its \d records") as error:
        readings(path)

    assert "\n" not in str(error.value)


def test_damage_that_leaves_nothing_is_an_error(tmp_path):
    """The message says that there were damaged records."""
    path = tmp_path / name(0)
    path.write_bytes(version() + bytes(500))

    with pytest.raises(LogError, match="1 of them damaged"):
        readings(path)


def test_columns_that_mean_something_else_are_renamed(tmp_path):
    """A tag called step, or beginning with @, cannot pass for a column of ours."""
    log = log_of([(s, {"step": 7 * s, "@line": 1.0, "loss": 2.0}) for s in range(3)])
    (run,) = runs(write(tmp_path, name(0), log)).values()

    assert run.frame["step"].to_list() == [0, 1, 2]
    assert run.frame["tag step"].to_list() == [0.0, 7.0, 14.0]
    assert run.frame["line"].to_list() == [2, 5, 8]
    assert "tag @line" in run.frame.columns


# Words of frameworks


def canonical(tmp_path, *tags):
    rows = [(s, {tag: 1.0 + s + k for k, tag in enumerate(tags)}) for s in range(3)]
    found = only(write(tmp_path, name(0), log_of(rows)))
    run = assemble(found, open_source(tmp_path / name(0)), "tensorboard", Options())
    return dict(run.columns), found


def test_words_of_megatron(tmp_path):
    """The twins over samples are left out and said to be; throughput is TFLOP/s per GPU."""
    tags = ("lm loss", "grad-norm", "learning-rate", "batch-size", "iteration-time", "loss-scale")
    twins = [f"{tag} vs samples" for tag in tags]
    more = ("throughput", "lm loss validation", "lm loss validation ppl", "world-size")
    columns, found = canonical(tmp_path, *tags, *twins, *more)

    assert columns == {
        "step": "step",
        "loss": "lm loss",
        "grad_norm": "grad-norm",
        "learning_rate": "learning-rate",
        "batch_sequences": "batch-size",
        "step_seconds": "iteration-time",
        "loss_scale": "loss-scale",
        "tflops_per_gpu": "throughput",
        "val_loss": "lm loss validation",
        "val_perplexity": "lm loss validation ppl",
        "gpus": "world-size",
    }
    assert found.notes == ("6 tags that repeat others over samples (vs samples) left out",)
    assert not any("vs samples" in column for column in found.table.columns)


def test_the_balancing_loss_that_is_switched_on_is_taken(tmp_path):
    """Megatron logs 0 for the kind of balancing loss that is not in use."""
    rows = [
        (s, {"lm loss": 2.0, "load_balancing_loss": 0.0, "seq_load_balancing_loss": 1.1})
        for s in range(3)
    ]
    found = only(write(tmp_path, name(0), log_of(rows)))

    assert found.names["aux_loss"] == "seq_load_balancing_loss"


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (
            ("loss_metrics/global_avg_loss", "mfu(%)", "throughput(tps)"),
            {
                "loss": "loss_metrics/global_avg_loss",
                "mfu": "mfu(%)",
                "tokens_per_second_per_gpu": "throughput(tps)",
            },
        ),
        (
            ("train/loss", "train/epoch", "eval/loss", "train/train_loss", "train/grad_norm"),
            {
                "loss": "train/loss",
                "epoch": "train/epoch",
                "val_loss": "eval/loss",
                "grad_norm": "train/grad_norm",
            },
        ),
        (
            (
                "training/global_step",
                "critic/rewards/mean",
                "perf/total_num_tokens",
                "val-core/gsm8k/reward/mean@1",
            ),
            {
                "reward": "critic/rewards/mean",
                "batch_tokens": "perf/total_num_tokens",
                "val_reward": "val-core/gsm8k/reward/mean@1",
            },
        ),
        (("Loss/train", "LR/train", "Loss/test"), {
            "loss": "Loss/train", "learning_rate": "LR/train", "val_loss": "Loss/test"}),
        (("AverageReturn",), {"reward": "AverageReturn"}),
        (("throughput", "loss"), {"loss": "loss"}),
        (("epoch_loss",), {"loss": "epoch_loss"}),
    ],
)  # fmt: skip
def test_words_of_other_frameworks(tmp_path, tags, expected):
    """torchtitan, transformers, verl, plain torch, TF-Agents, and a throughput of no known unit."""
    columns, _ = canonical(tmp_path, *tags)

    assert columns == {"step": "step", **expected}


def test_steps_of_deepspeed_are_samples_and_said_to_be(tmp_path):
    """DeepSpeed's monitor counts global samples."""
    columns, found = canonical(tmp_path, "Train/Samples/train_loss", "Train/Samples/lr")

    assert columns["loss"] == "Train/Samples/train_loss"
    assert columns["learning_rate"] == "Train/Samples/lr"
    assert "in samples" in found.notes[0]


def text(tag, content):
    held = Tensor(dtype=7, string_val=[content.encode()])
    return event(0, Value(tag=f"{tag}/text_summary", tensor=held))


@pytest.mark.parametrize(("strategy", "expected"), [("steps", 500), ("epoch", None)])
def test_arguments_of_transformers_are_facts(tmp_path, strategy, expected):
    """They are one text of JSON; save_steps counts only where steps decide about saving."""
    arguments = {
        "learning_rate": 5e-05,
        "max_steps": -1,
        "save_steps": 500,
        "save_strategy": strategy,
        "max_grad_norm": 1.0,
        "seed": 42,
    }
    found = only(
        write(tmp_path, name(0), text("args", json.dumps(arguments)), log_of(losses(range(3))))
    )

    facts = {k: fact.value for k, fact in found.facts.items()}
    assert facts.pop("checkpoint_every", None) == expected
    assert facts == {"peak_lr": 5e-05, "grad_clip": 1.0, "seed": 42}
    assert found.facts["seed"].source == "text 'args', seed"


def test_arguments_of_megatron_are_facts(tmp_path):
    """They are a text each; None is no value, and a long text no argument."""
    given = {"seq_length": "4096", "world_size": "64", "lr": "0.0003", "seed": "None"}
    texts = [text(k, v) for k, v in given.items()]
    log = [*texts, text("args", "{broken"), text("story", "x" * 100), log_of(losses(range(3)))]
    found = only(write(tmp_path, name(0), *log))

    values = {k: fact.value for k, fact in found.facts.items()}
    assert values == {"sequence_length": 4096, "gpus": 64, "peak_lr": 0.0003}
    assert "6 values that are no single numbers" in found.notes[0]


# Whose is it


def test_event_files_are_claimed_by_name_or_content(tmp_path):
    """Either is enough; a text that has the word in its name is not ours."""
    renamed = write(tmp_path, "renamed.bin", log_of(losses(range(3))))
    headless = tmp_path / name(0)
    headless.write_bytes(scalar("loss", 1, 2.0))
    notes = tmp_path / "tfevents.md"
    notes.write_text("how to read tfevents")

    assert matches(open_source(renamed))
    assert matches(open_source(headless))
    assert not matches(open_source(notes))


def test_folders_are_claimed_where_nothing_else_would_be_lost(tmp_path):
    """With event files in it, or of nothing but such folders, or a pair; W&B's are W&B's."""
    write(tmp_path / "runs" / "a", name(0), log_of(losses(range(3))))

    assert matches(open_source(tmp_path / "runs" / "a"))
    assert matches(open_source(tmp_path / "runs"))
    assert not matches(open_source(tmp_path))
    (tmp_path / "runs" / "metrics.jsonl").write_text("{}")
    assert not matches(open_source(tmp_path / "runs"))
    for half in ("train", "validation"):
        write(tmp_path / "runs" / half, name(0), log_of(losses(range(3))))
    assert matches(open_source(tmp_path / "runs"))
    (tmp_path / "runs" / "a" / "run-1.wandb").write_text("x")
    assert not matches(open_source(tmp_path / "runs" / "a"))
