"""Trees of many runs: several stay several, and all that is left out is named."""

import gzip
import json
import os
from pathlib import Path

import pytest

from stabcli import readers
from stabcli.errors import UnknownFormat
from stabcli.readers import read_runs
from tests.joining.writing import events, jsonl, said, state, text, truth, wandb


def left_out(unread):
    assert all(isinstance(line, UnknownFormat) for line in unread)
    return [str(line) for line in unread]


def test_a_sweep_is_as_many_runs_as_it_has(tmp_path):
    """A folder each, all with a log and a tracker of its own; the names are those of the folders."""
    for i in range(4):
        rows = truth(range(120), seed=i)
        text(tmp_path / f"lr_{i}" / "train.log", rows)
        events(tmp_path / f"lr_{i}", rows)
        (tmp_path / f"lr_{i}" / "config.json").write_text(
            json.dumps({"learning_rate": i / 100 + 0.01})
        )
    runs, unread = read_runs([str(tmp_path)])

    assert [run.name for run in runs] == [f"{tmp_path.name}/lr_{i}" for i in range(4)]
    assert [run.facts["peak_lr"].value for run in runs] == [0.01, 0.02, 0.03, 0.04]
    assert unread == []


def test_an_output_folder_of_transformers(tmp_path):
    """State, checkpoints, events below runs/, models beside: one run, the models named."""
    rows = truth(range(1, 201))
    out = tmp_path / "out"
    for step in (100, 200):
        state(out / f"checkpoint-{step}" / "trainer_state.json", rows[:step])
        (out / f"checkpoint-{step}" / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    events(out / "runs" / "Jan01_10-00-00_host", rows)
    (out / "config.json").write_text(
        '{"model_type": "llama", "vocab_size": 32000, "dtype": "float32"}'
    )
    (out / "tokenizer_config.json").write_text('{"model_max_length": 2048}')
    (out / "all_results.json").write_text('{"train_loss": 1.2, "epoch": 1.0}')
    (run,), unread = read_runs([str(tmp_path)])

    assert (run.reader, run.frame["step"].max()) == ("hf-trainer + tensorboard", 200)
    assert run.facts["checkpoints"].value == (100, 200)
    assert run.facts["vocab_size"].value == 32000
    assert "precision" not in run.facts
    assert left_out(unread) == [
        f"{out}: checkpoints, left out: checkpoint-100, checkpoint-200",
        f"{out}: not logs, left out: all_results.json, tokenizer_config.json",
    ]


def test_a_configuration_above_several_runs_is_of_none(tmp_path):
    """Not used, and said so."""
    for i in range(2):
        jsonl(tmp_path / f"run{i}" / "metrics.jsonl", truth(range(50), seed=i))
    (tmp_path / "config.yaml").write_text("seed: 7\n")
    runs, unread = read_runs([str(tmp_path)])

    assert not any("seed" in run.facts for run in runs)
    assert left_out(unread) == [
        f"{tmp_path}: a configuration, but of which of 2 runs: not used, left out: config.yaml"
    ]


def test_configurations_by_the_name_of_the_log(tmp_path):
    """``a.jsonl`` and ``a.yaml``."""
    for name, seed in (("a", 1), ("b", 2)):
        jsonl(tmp_path / f"{name}.jsonl", truth(range(50), seed=seed))
        (tmp_path / f"{name}.yaml").write_text(f"seed: {seed}\n")
    runs, unread = read_runs([str(tmp_path)])

    assert [run.facts["seed"].value for run in runs] == [1, 2]
    assert unread == []


def test_the_configuration_that_hydra_hides(tmp_path):
    jsonl(tmp_path / "metrics.jsonl", truth(range(50)))
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "config.yaml").write_text("optim:\n  lr: 0.001\n  weight_decay: 0.1\n")
    (run,), _ = read_runs([str(tmp_path)])

    assert run.facts["weight_decay"].source == "config.yaml, weight_decay"


def test_what_the_user_says_goes_before_what_a_configuration_says(tmp_path):
    """And a configuration before a log, with a note."""
    from stabcli.assembly import Options
    from stabcli.facts import given_fact

    text(tmp_path / "train.log", truth(range(50)), head="run --seq_length 1024 --seed 5\n")
    (tmp_path / "config.yaml").write_text("seq_length: 2048\nseed: 7\n")
    given = dict([given_fact("seed", 9, "--fact seed")])
    (run,), _ = read_runs([str(tmp_path)], options=Options(facts=given))

    assert (run.facts["seed"].value, run.facts["sequence_length"].value) == (9, 2048)
    assert said(run, "sequence_length: 2048 by config.yaml", "1024 by line 1")


def test_what_wandb_says_where_its_own_file_is_gone(tmp_path):
    """Only ``files/`` was kept: console, configuration and host."""
    folder = tmp_path / "wandb" / "run-20260101_080000-abcd1234" / "files"
    text(folder / "output.log", truth(range(60)))
    (folder / "config.yaml").write_text("_wandb:\n  value: 1\nlr:\n  desc: null\n  value: 0.003\n")
    (folder / "wandb-metadata.json").write_text('{"gpu": "NVIDIA H100", "gpu_count": 8}')
    (run,), _ = read_runs([str(tmp_path)])

    assert run.facts["peak_lr"].value == 0.003
    assert (run.facts["gpu"].value, run.facts["gpus"].value) == ("NVIDIA H100", 8)
    assert "lower bound" in run.facts["gpus"].source


def test_links_empty_files_and_pipes_are_named_not_waited_for(tmp_path):
    """A link in circles, one to nothing, one to a log; a pipe nobody writes into."""
    jsonl(tmp_path / "metrics.jsonl", truth(range(50)))
    os.symlink(tmp_path, tmp_path / "again")
    os.symlink(tmp_path / "metrics.jsonl", tmp_path / "latest.jsonl")
    os.symlink(tmp_path / "nothing", tmp_path / "broken")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "stderr.txt").touch()
    (tmp_path / "sub").mkdir()
    runs, unread = read_runs([str(tmp_path)])

    assert [run.name for run in runs] == ["metrics.jsonl"]
    assert left_out(unread) == [
        f"{tmp_path}: a link to nothing, left out: broken",
        f"{tmp_path}: a pipe or a device, left out: pipe",
        f"{tmp_path}: an empty folder, left out: sub",
        f"{tmp_path}: empty, left out: stderr.txt",
    ]


def test_what_the_kernel_shows_of_itself_is_not_walked(tmp_path):
    """Its files may block for ever, or change from a file to a pipe while they are looked at."""
    jsonl(tmp_path / "metrics.jsonl", truth(range(50)))
    for name in ("proc", "sys", "dev"):
        os.symlink(f"/{name}", tmp_path / name)
    runs, unread = read_runs([str(tmp_path)])

    assert [run.name for run in runs] == ["metrics.jsonl"]
    why = "no files: what the kernel shows of itself"
    assert left_out(unread) == [f"{tmp_path}: {why}, left out: dev, proc, sys"]


def test_an_unreadable_file_is_a_failure_and_costs_only_itself(tmp_path, monkeypatch):
    """What cannot be read may hold anything: it is no file left out."""
    jsonl(tmp_path / "a.jsonl", truth(range(50)))
    jsonl(tmp_path / "b.jsonl", truth(range(50), seed=1))
    opened = Path.open

    def refuse(self, *args, **kwargs):
        if self.name == "b.jsonl":
            raise PermissionError(13, "Permission denied")
        return opened(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refuse)
    runs, unread = read_runs([str(tmp_path)])

    assert len(runs) == 1
    assert [type(line).__name__ for line in unread] == ["LogError"]
    assert "b.jsonl: not readable" in str(unread[0])


def test_limits_of_a_walk_are_stated(tmp_path, monkeypatch):
    """Too many files, too many folders in one another: a failure that says where and how many."""
    for i in range(8):
        jsonl(tmp_path / "many" / f"{i}.jsonl", truth(range(20), seed=i))
    jsonl(tmp_path / "a" / "b" / "c" / "x.jsonl", truth(range(20)))
    monkeypatch.setattr(readers, "MOST_FILES", 5)
    _, many = read_runs([str(tmp_path / "many")])
    monkeypatch.setattr(readers, "DEEPEST", 2)
    _, deep = read_runs([str(tmp_path / "a")])

    (line,) = (str(line).partition("/many/")[2] for line in many)
    assert line.startswith("5.jsonl: after 5 files and folders neither this nor what comes after")
    assert [str(line) for line in deep] == []
    monkeypatch.setattr(readers, "DEEPEST", 1)
    _, deep = read_runs([str(tmp_path / "a")])
    assert "1 folders deep" in str(deep[0])


def test_a_walk_beyond_its_limit_ends(tmp_path, monkeypatch):
    """Beyond the limit nothing more is opened or listed, however deep the tree is: one line says so."""
    for i in range(30):
        jsonl(tmp_path / f"d{i:02}" / "log.jsonl", truth(range(20), seed=i))
    monkeypatch.setattr(readers, "MOST_FILES", 8)
    looked: list[Path] = []
    found = readers.gather(str(tmp_path), watch=lambda _, path: looked.append(path))

    assert len(found.runs) == 4  # a folder and its file are two
    assert len(looked) == 8
    assert [str(error).partition(": ")[0] for error in found.failed] == [str(tmp_path / "d04")]


def test_files_given_together_are_joined_and_may_be_kept_apart(tmp_path):
    """``scan train.log metrics.jsonl``; join=False is ``--no-join``."""
    rows = truth(range(100))
    logs = [text(tmp_path / "train.log", rows), jsonl(tmp_path / "metrics.jsonl", rows)]
    joined, _ = read_runs([str(log) for log in logs])
    apart, _ = read_runs([str(log) for log in logs], join=False)

    assert (len(joined), len(apart)) == (1, 2)


def test_errors_in_text_beside_a_log_reach_the_run(tmp_path):
    """Standard error of its own: what it says is kept, the file named as searched."""
    text(tmp_path / "train.log", truth(range(60)))
    (tmp_path / "stderr.txt").write_text(
        "warning: x\n[12.3] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
    )
    (run,), unread = read_runs([str(tmp_path)])

    assert [(t.kind, t.line, t.step) for t in run.troubles] == [("gpu-fault", 2, None)]
    assert said(run, "gpu-fault: stderr.txt, line 2")
    assert left_out(unread) == [
        f"{tmp_path}: not logs, but searched for errors, left out: stderr.txt"
    ]


@pytest.mark.parametrize(
    "line",
    [
        'raise RuntimeError("CUDA error: device-side assert")',
        "    except torch.cuda.OutOfMemoryError:  # CUDA out of memory",
        "# NCCL error is handled below",
        "step 5, loss: 2.0, signal: 1.0",
    ],
)
def test_source_code_in_a_log_is_no_trouble(tmp_path, line):
    """Some logs begin with the script that wrote them."""
    text(tmp_path / "train.log", truth(range(60)), head=line + "\n")
    (run,), _ = read_runs([str(tmp_path)])

    assert run.troubles == ()


def test_one_project_with_many_runs_of_wandb(tmp_path):
    """Two runs, the log of one beside them: it goes to the one it agrees with."""
    rows, other = truth(range(100)), truth(range(100), seed=4)
    wandb(tmp_path, rows, run_id="aaaa1111", name="first")
    wandb(tmp_path, other, run_id="bbbb2222", begun="20260102_080000", name="second")
    text(tmp_path / "train.log", other)
    runs, _ = read_runs([str(tmp_path)])

    assert sorted((run.name, run.reader) for run in runs) == [
        ("first", "wandb"), ("second", "generic-text + wandb")]  # fmt: skip


@pytest.mark.parametrize(
    ("names", "steps"),
    [
        (("checkpoint-100", "checkpoint-200"), (100, 200)),
        (("checkpoints/step_50", "checkpoints/step_100"), (50, 100)),
        (("iter_0000500", "iter_0001000"), (500, 1000)),
        (("global_step20",), (20,)),
        (("ckpts/ep0-ba100-rank0.pt",), (100,)),
        (("checkpoints/epoch=0-step=300.ckpt",), (300,)),
        (("step1000-unsharded", "latest"), (1000,)),
        (("my_steps", "step_0", "checkpoint-best"), None),
    ],
)
def test_checkpoints_that_lie_beside_a_log(tmp_path, names, steps):
    """By the names that frameworks give them; in a folder that was asked about only."""
    log = jsonl(tmp_path / "metrics.jsonl", truth(range(50)))
    for name in names:
        (tmp_path / name).mkdir(parents=True)
    (run,), _ = read_runs([str(tmp_path)])
    (alone,), _ = read_runs([str(log)])

    assert (run.facts["checkpoints"].value if "checkpoints" in run.facts else None) == steps
    assert "checkpoints" not in alone.facts


def test_checkpoints_of_several_runs_are_of_none(tmp_path):
    """Whose they are nobody says."""
    for i in range(2):
        jsonl(tmp_path / f"{'ab'[i]}.jsonl", truth(range(50), seed=i))
    (tmp_path / "checkpoint-100").mkdir()
    runs, _ = read_runs([str(tmp_path)])

    assert not any("checkpoints" in run.facts for run in runs)


def test_source_code_beside_a_log_is_named_and_not_looked_into(tmp_path):
    """W&B keeps the code of a run; the log in a script's strings is no log."""
    jsonl(tmp_path / "metrics.jsonl", truth(range(50)))
    (tmp_path / "train.py").write_text('print("step 1, loss: 2.0")\n' * 50)
    runs, unread = read_runs([str(tmp_path)])

    assert len(runs) == 1
    assert left_out(unread) == [f"{tmp_path}: source code, left out: train.py"]


def test_what_may_not_be_looked_at_is_a_failure_of_its_own(tmp_path, monkeypatch):
    """A folder of somebody else's: the rest of the tree is read."""
    jsonl(tmp_path / "metrics.jsonl", truth(range(50)))
    (tmp_path / "theirs").mkdir()
    looked = Path.is_dir

    def refuse(self):
        if self.name == "theirs":
            raise PermissionError(13, "Permission denied")
        return looked(self)

    monkeypatch.setattr(Path, "is_dir", refuse)
    runs, unread = read_runs([str(tmp_path)])

    assert len(runs) == 1
    assert "theirs: cannot be read: Permission denied" in str(unread[0])


def test_a_checkpoint_that_was_asked_about_is_looked_into(tmp_path):
    """Its files are named as they are; of one below it, the whole."""
    state(tmp_path / "checkpoint-50" / "trainer_state.json", truth(range(1, 51)))
    for name in ("model.bin", "step_7/model.bin"):
        path = tmp_path / "checkpoint-50" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"\0\1")
    _, unread = read_runs([str(tmp_path / "checkpoint-50")])

    assert left_out(unread) == [
        f"{tmp_path}/checkpoint-50: checkpoints, left out: step_7",
        f"{tmp_path}/checkpoint-50: not logs, left out: model.bin",
    ]


def test_packed_logs_tell_as_much_as_plain_ones(tmp_path):
    """Settings before the first step, and errors, of what was unpacked."""
    log = text(
        tmp_path / "train.log",
        truth(range(60)),
        head="Namespace(seed=7)\n",
        tail="RuntimeError: CUDA error: an illegal memory access\n",
    )
    (tmp_path / "train.log.gz").write_bytes(gzip.compress(log.read_bytes()))
    log.unlink()
    (run,), _ = read_runs([str(tmp_path)])

    assert run.facts["seed"].source == "line 1, seed"
    assert [(t.kind, t.line, t.step) for t in run.troubles] == [("gpu-fault", 62, 59)]
