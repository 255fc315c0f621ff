"""Facts that text logs state, by framework and by the ways in which loops print their arguments."""

import pytest

from stabcli.readers import read_runs
from tests.textlogs import read

STEPS = "".join(f"step {i}, loss: {3 - i / 1000:.4f}, grad_norm: 0.5\n" for i in range(60))
TITAN = "".join(
    f"step: {i:2}  loss: {3 - i / 99:7.4f}  memory: 4.00GiB(5.00%)  tps: 4,000  tflops: 247.25  mfu: 25.00%\n"
    for i in range(1, 30)
)
VERL = "".join(
    f"step:{i} - actor/pg_loss:{i / 99:.5f} - actor/entropy:0.3 - critic/rewards/mean:0.5\n"
    for i in range(30)
)
HF = "".join(
    "{'loss': 2.0, 'grad_norm': 0.5, 'learning_rate': 5e-05, 'epoch': %s}\n" % (i / 10)
    for i in range(1, 30)
)
MEGATRON = "".join(
    f" iteration {i:8}/ 1000 | lm loss: 2.3E+00 | grad norm: 0.4 |\n" for i in range(1, 30)
)
LITGPT = "".join(
    f"Epoch 1 | iter {i} step {i} | loss train: 3.{i:03}, val: n/a | iter time: 5.00 ms (step)\n"
    for i in range(1, 40)
)
MODDED = "".join(
    f"step:{i}/700 train_loss:4.{i:04} train_time:{i * 90}ms step_avg:90.1ms\n"
    for i in range(1, 60)
)


@pytest.mark.parametrize(
    ("head", "log", "fact", "value", "line"),
    [
        (
            "hi\nNamespace(lr=0.0003, max_seq_length=2048, seed=7)\n",
            STEPS,
            "peak_lr",
            0.0003,
            "line 2",
        ),
        ("{'optim': {'weight_decay': 0.1}, 'seed': 7}\n", STEPS, "weight_decay", 0.1, "line 1"),
        ('config:\n{\n  "seed": 42,\n  "grad_clip": 1.0\n}\n', STEPS, "seed", 42, "line 3"),
        (
            "2026-01-01 10:00:00,123 - INFO - warmup_steps: 200\n",
            STEPS,
            "warmup_steps",
            200,
            "line 1",
        ),
        ("learning_rate = 6e-4 # the highest\n", STEPS, "peak_lr", 6e-4, "line 1"),
        ("Overriding: weight_decay = 0.05\n", STEPS, "weight_decay", 0.05, "line 1"),
        ("  seq_len ............ 4096\n  bf16: true\n", STEPS, "precision", "bf16", "line 2"),
        ("| seed | 12 |\n", STEPS, "seed", 12, "line 1"),
        (
            "TrainArgs(global_batch_size=512, lr_warmup_steps=2000, max_norm=1.0)\n",
            STEPS,
            "grad_clip",
            1.0,
            "line 1",
        ),
        (
            "[rank0]:[titan] - INFO - Building 2-D device mesh with ['dp', 'tp'], [8, 4]\n",
            TITAN,
            "gpus",
            32,
            "line 1",
        ),
        (
            '{"optimizer": {"name": "AdamW", "lr": 0.0008}, "training": {"max_norm": 1.0}}\n'.replace(
                "{", "x {", 1
            ),
            TITAN,
            "peak_lr",
            0.0008,
            "line 1",
        ),
        ("", TITAN, "peak_tflops", 989.0, "tflops over mfu"),
        (
            "(TaskRunner pid=1)  'n_gpus_per_node': 8,\n(TaskRunner pid=1)  'nnodes': 4,\n",
            VERL,
            "gpus",
            32,
            "lines 1 and 2",
        ),
        ("(TaskRunner pid=1)  'optim': {'lr': 1e-06,\n", VERL, "peak_lr", 1e-6, "line 1"),
        (
            "Process rank: 0, world size: 4, device: cuda:0, compute dtype: torch.bfloat16\n",
            HF,
            "gpus",
            4,
            "line 1",
        ),
        (
            "Process rank: 0, world size: 4, device: cuda:0, compute dtype: torch.bfloat16\n",
            HF,
            "precision",
            "bfloat16",
            "line 1",
        ),
        (
            "  Trainable parameters = 40,370,176 of 3,261,120,512 (1.24% trained)\n",
            HF,
            "parameters",
            3261120512,
            "line 1",
        ),
        (
            "TrainingArguments(\nlearning_rate=2e-05,\nmax_grad_norm=1.0,\n)\n",
            HF,
            "grad_clip",
            1.0,
            "line 3",
        ),
        (
            "  lr_warmup_samples ............... 51200\n  global_batch_size ............... 512\n",
            MEGATRON,
            "warmup_steps",
            100,
            "lines 1 and 2",
        ),
        (
            "  train_batch_size ............ 1024........updated\n  seq_length ...... 2048.....default\n",
            MEGATRON,
            "tokens_per_step",
            2097152,
            "lines 1 and 2",
        ),
        ("{'devices': 8, 'num_nodes': 2, 'seed': 42}\n", LITGPT, "gpus", 16, "line 1"),
        (
            "import x\nfrom a import b\nclass Hyper:\n    batch_size : int = 8*64 # all\n    sequence_length : int = 1024\n",
            MODDED,
            "tokens_per_step",
            524288,
            "lines 4 and 5",
        ),
    ],
)
def test_a_setting_that_a_log_states(tmp_path, head, log, fact, value, line):
    """With the line that says it."""
    run = read(tmp_path / "train.log", head + log)

    assert run.facts[fact].value == value
    assert run.facts[fact].source.startswith(line)


@pytest.mark.parametrize(
    "head",
    [
        "import torch\nfrom x import y\ndef main():\n    seed = 5\n    weight_decay=0.3,\n",
        "the seed: of all evil\n",
        "precision: 16\nseed: none\nwarmup_steps=args.warmup,\n",
    ],
)
def test_what_is_no_setting(tmp_path, head):
    """Source code, prose, and words that are no values."""
    run = read(tmp_path / "train.log", head + STEPS)

    assert run.facts == {}


def test_what_stands_after_the_first_step_is_no_setting(tmp_path):
    """``lr: 0.1`` may be anything there."""
    run = read(tmp_path / "train.log", STEPS + "seed: 7\n")

    assert "seed" not in run.facts


def test_trainings_in_one_log_have_their_own_settings(tmp_path):
    """What stands before the first holds for all that do not say otherwise."""
    one = "Initializing a new model from scratch\n" + "".join(
        f"iter {i}: loss {4 - i / 100:.4f}, time 90.00ms, mfu 30.00%\n" for i in range(40)
    )
    path = tmp_path / "sweep.log"
    path.write_text(f"seed = 1\nmax_norm: 1.0\n{one}seed = 2\n{one}{one}")
    runs, _ = read_runs([str(path)])

    assert [run.facts["seed"].value for run in runs] == [1, 2, 1]
    assert [run.facts["seed"].source.split(",")[0] for run in runs] == [
        "line 1",
        "line 44",
        "line 1",
    ]
    assert [run.facts["grad_clip"].value for run in runs] == [1.0, 1.0, 1.0]


def test_checkpoints_that_transformers_says_it_saved(tmp_path):
    log = HF + "Saving model checkpoint to out/checkpoint-20\n" + HF.replace("0.1}", "9.1}")
    run = read(tmp_path / "train.log", log)

    assert 20 in run.facts["checkpoints"].value


def test_a_scaled_loss_is_fp16(tmp_path):
    """Only fp16 is scaled; a scale of 1 says nothing."""
    scaled = "".join(f"step {i}, loss: 2.{i:03}, loss_scale: 65536\n" for i in range(60))
    run = read(tmp_path / "a.log", scaled)
    plain = read(tmp_path / "b.log", scaled.replace("65536", "1"))

    assert run.facts["precision"].value == "fp16"
    assert "precision" not in plain.facts
