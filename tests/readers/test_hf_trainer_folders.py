import json

import pytest

from stabcli.assembly import Options, assemble
from stabcli.errors import LogError
from stabcli.readers.hf_trainer import hf_trainer, matches
from stabcli.sources import open_source
from tests.conftest import SAMPLES

NAN = float("nan")
SUMMARY = {"epoch": 1.0, "total_flos": 1e15, "train_loss": 1.23, "train_runtime": 812.4}


def row(step, **more):
    known = {"epoch": step / 100, "grad_norm": 1.0, "learning_rate": 1e-5, "loss": 2.5}
    return known | {"step": step} | more


@pytest.fixture
def state(tmp_path):
    """Write a state as the Trainer does, and open it."""

    def write(rows, name="trainer_state.json", cut=None, **more):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = {"log_history": rows, "global_step": 50, **more}
        path.write_text(json.dumps(whole, indent=2, sort_keys=True)[:cut])
        return open_source(path)

    return write


def the_run(source):
    (reading,) = hf_trainer(source)
    return assemble(reading, source, "hf-trainer", Options())


def test_the_state_says_what_it_knows_and_the_batch_of_one_device_is_not_the_batch(state):
    more = {"max_steps": 500, "save_steps": 10, "train_batch_size": 8, "logging_steps": 5}
    run = the_run(state([row(s) for s in range(5, 55, 5)], num_input_tokens_seen=51_200, **more))

    assert run.facts["total_steps"].value == 500
    assert run.facts["checkpoint_every"].value == 10
    assert "if save_strategy is steps" in run.facts["checkpoint_every"].source
    assert run.facts["tokens_per_step"].value == 1024
    assert "batch_sequences" not in run.facts
    assert any("mean of 5 steps" in note for note in run.notes)


def test_checkpoints_beside_the_state_are_facts_and_overrule_the_interval(state, tmp_path):
    """save_steps keeps its default where saving goes by epochs."""
    for step in (30, 50):
        (tmp_path / f"checkpoint-{step}").mkdir()
    for save_steps, known in ((10, True), (7, False)):
        run = the_run(state([row(1), row(2)], save_steps=save_steps))

        assert run.facts["checkpoints"].value == (30, 50)
        assert ("checkpoint_every" in run.facts) == known


def test_configurations_beside_the_state_add_facts(state, tmp_path):
    (tmp_path / "config.json").write_text(
        '{"vocab_size": 32000, "n_routed_experts": 64, "dtype": "float32"}'
    )
    (tmp_path / "args.json").write_text('{"max_grad_norm": 1.0, "max_steps": -1, "seed": 7}')
    run = the_run(state([row(1), row(2)], max_steps=500))

    assert {k: f.value for k, f in run.facts.items()} == {
        "vocab_size": 32000,
        "experts": 64,
        "grad_clip": 1.0,
        "seed": 7,
        "total_steps": 500,
    }


def test_a_broken_configuration_adds_nothing(state, tmp_path):
    (tmp_path / "config.json").write_text('{"vocab_size": 320')

    assert the_run(state([row(1), row(2)])).facts == {}


def test_of_an_output_folder_the_newest_checkpoint_is_read():
    run = the_run(open_source(SAMPLES / "hf-trainer" / "output"))

    assert run.frame["step"].max() == 200
    assert run.facts["checkpoints"].value == (100, 200)
    assert run.facts["checkpoint_every"].value == 100
    assert "read checkpoint-200/trainer_state.json" in run.notes


def test_a_checkpoint_folder_is_read_alone():
    run = the_run(open_source(SAMPLES / "hf-trainer" / "output" / "checkpoint-100"))

    assert run.frame["step"].max() == 100
    assert run.facts["checkpoints"].value == (100, 200)


def test_checkpoints_are_ordered_as_numbers(state, tmp_path):
    for last in (9, 10):
        state([row(s) for s in range(1, last + 1)], f"checkpoint-{last}/trainer_state.json")

    assert the_run(open_source(tmp_path)).frame["step"].max() == 10


def test_the_state_of_the_folder_itself_is_preferred(state, tmp_path):
    rows = [row(s) for s in range(1, 11)]
    state(rows, "checkpoint-10/trainer_state.json")
    state([*rows, SUMMARY | {"step": 10}])
    run = the_run(open_source(tmp_path))

    assert run.frame["step"].max() == 10
    assert run.notes == ("a training ended at step 10 after 812 s, mean loss 1.23",)


def test_a_training_that_was_resumed_and_died_is_in_the_newer_checkpoint(state, tmp_path):
    rows = [row(s, loss=NAN if s == 20 else 2.5) for s in range(1, 21)]
    state([*rows[:10], SUMMARY | {"step": 10}])
    state(rows, "checkpoint-20/trainer_state.json")
    run = the_run(open_source(tmp_path))

    assert run.frame["step"].max() == 20
    assert "checkpoint-20/trainer_state.json goes on after trainer_state.json" in run.notes


def test_a_longer_checkpoint_of_another_training_is_left_out_and_named(state, tmp_path):
    state([row(s) for s in range(1, 11)])
    state([row(s, loss=9.0) for s in range(1, 21)], "checkpoint-20/trainer_state.json")
    run = the_run(open_source(tmp_path))

    assert run.frame["step"].max() == 10
    assert any("another training" in note for note in run.notes)


def test_a_newest_checkpoint_that_was_never_finished_gives_way(state, tmp_path):
    state([row(s) for s in range(1, 11)], "checkpoint-10/trainer_state.json")
    state([row(s) for s in range(1, 21)], "checkpoint-20/trainer_state.json", cut=300)
    run = the_run(open_source(tmp_path))

    assert run.frame["step"].max() == 10
    assert run.frame.height == 10


def test_folders_without_a_state_are_not_claimed(tmp_path):
    (tmp_path / "checkpoint-10").mkdir()
    (tmp_path / "checkpoint-10" / "model.bin").write_text("x")

    assert not matches(open_source(tmp_path))
    with pytest.raises(LogError, match=r"no readable trainer_state\.json"):
        list(hf_trainer(open_source(tmp_path)))
