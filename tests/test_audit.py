"""Audit: kinds of training, findings a technique bears on, and every sample against its script."""

import numpy as np
import pytest

from stabcli.audit import audit_config, audit_run, kind_of
from stabcli.configs import Config
from stabcli.diagnosis import diagnose
from stabcli.readers import read_runs
from stabcli.run import Fact
from tests.conftest import SAMPLES
from tests.rules.runs import healthy, make_run


def kind(facts: dict | None = None, **columns) -> str:
    """The kind of training of a run of these columns, or of a configuration."""
    known = {k: Fact(value=v, source="config") for k, v in (facts or {}).items()}
    run = make_run(facts=known, **columns) if columns else None
    return kind_of(known, run)[0]


def constant(value: float) -> np.ndarray:
    return np.full(30, value)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, "pretraining"),
        ({"algorithm": "grpo"}, "rl"),
        ({"algorithm": "trl/PPO"}, "rl"),
        ({"algorithm": "reinforce++"}, "rl"),
        ({"algorithm": "sft"}, "sft"),
        ({"algorithm": "pt"}, "pretraining"),
        ({"algorithm": "something"}, "pretraining"),
        ({"lora_rank": 8}, "sft"),
        ({"base_model": "m", "tokens_per_step": 4e6, "total_steps": 1e5}, "sft"),
        ({"tokens_per_step": 4e6, "total_steps": 250_000}, "pretraining"),
    ],
)
def test_kind_by_settings(facts, expected):
    """What is named wins; adapters and a base model tell a fine-tune; planned tokens a pretraining."""
    assert kind(facts) == expected


@pytest.mark.parametrize(
    ("facts", "columns", "expected"),
    [
        ({}, {"loss": constant(2.1)}, "sft"),
        ({}, {"loss": constant(10.8)}, "pretraining"),
        ({}, {"loss": constant(4.0)}, "pretraining"),
        ({"vocab_size": 64}, {"loss": constant(4.1)}, "pretraining"),
        ({}, {"loss": constant(2.1), "step": np.arange(500, 530)}, "pretraining"),
        ({}, {"loss": constant(np.nan)}, "pretraining"),
        ({}, {"loss": constant(0.1), "reward": constant(0.5)}, "rl"),
        ({"lora_rank": 8}, {"loss": constant(0.1), "reward": constant(0.5)}, "rl"),
        ({}, {"loss": constant(0.6), "rewards/chosen": constant(0.1)}, "sft"),
    ],
)
def test_kind_by_the_log(facts, columns, expected):
    """A first loss near a guess, or far below one; rewards; and a log that begins late tells nothing."""
    assert kind(facts, **columns) == expected


def test_what_is_assumed_is_said():
    """And how to overrule it."""
    assert "--kind" in kind_of({})[1]


def lines(audit):
    return {line.technique.name: line for line in audit.lines}


def nan_from(step: int, n: int = 400):
    columns = healthy(n)
    columns["loss"] = np.where(columns["step"] >= step, np.nan, columns["loss"])
    return columns


def test_a_quiet_run_has_nothing_to_bear_on():
    """No finding, no claim."""
    audit = audit_run(diagnose(make_run(**healthy(400))), "pretraining")

    assert not any(line.bears_on for line in audit.lines)


def test_findings_that_a_technique_bears_on():
    """Number format and automatic stop bear on a NaN; a warm-up in place, or a decay, does not."""
    told = lines(audit_run(diagnose(make_run(**nan_from(300))), "pretraining"))

    for name in ("number-format", "stop-on-nonfinite", "checkpoints"):
        assert [f.rule for f in told[name].bears_on] == ["nonfinite"], name
        assert told[name].bears_on[0].first == 300
    assert told["warm-up"].judgement.status == "in place"
    assert not told["warm-up"].bears_on
    assert not told["weight-decay"].bears_on


def test_a_warm_up_bears_on_the_beginning_alone():
    """A NaN at three quarters of the way has nothing to do with the first steps."""

    def first_bearing(step):
        columns = nan_from(step)
        columns["learning_rate"] = np.full(400, 1e-3)
        return lines(audit_run(diagnose(make_run(**columns)), "pretraining"))["warm-up"].bears_on

    assert not first_bearing(300)
    assert [f.first for f in first_bearing(20)] == [20]


def test_order_is_missing_unknown_in_place():
    """What is to be done stands first."""
    audit = audit_run(diagnose(make_run(**healthy(400))))
    order = [line.judgement.status for line in audit.lines]

    assert order == sorted(order, key=["missing", "unknown", "in place"].index)
    assert len(order) == sum(len(audit.of(s)) for s in ("missing", "unknown", "in place"))


def test_a_configuration_alone():
    """Flags overrule it, and what it cannot tell is unknown."""
    facts = {"grad_clip": Fact(value=0.0, source="c.json"), "seed": Fact(value=1, source="c.json")}
    config = Config(name="c.json", source="c.json", facts=facts, keys=5)
    told = lines(audit_config(config, {"grad_clip": Fact(value=1.0, source="--fact")}, "sft"))

    assert told["grad-clipping"].judgement.evidence == "grad_clip 1 (--fact)"
    assert told["step-logging"].judgement.status == "unknown"
    assert told["seed"].judgement.status == "in place"


PUT = {"grad-clipping", "number-format", "warm-up", "weight-decay", "checkpoints", "validation"}
"""What the loop of ``tiny_gpt.py`` has, and writes into its configuration or its rows."""
LORA = {"validation", "warm-up"}

TRUTH = {
    "jsonl/clean.jsonl": ("pretraining", PUT, {"step-logging"}),
    "jsonl/clean_head.jsonl.gz": ("pretraining", PUT, {"step-logging"}),
    "jsonl/bad_batch.jsonl": ("pretraining", PUT, {"step-logging"}),
    "jsonl/restart.jsonl": ("pretraining", PUT, {"step-logging"}),
    "jsonl/moe_collapse.jsonl": ("pretraining", {*PUT, "load-balancing"}, {"step-logging"}),
    "tensorboard/bad_batch": ("pretraining", PUT, {"step-logging"}),
    "wandb-export/bad_batch.jsonl": ("pretraining", LORA, {"step-logging"}),
    "wandb-export/bad_batch.parquet": ("pretraining", LORA, {"step-logging"}),
    "parquet/restart.parquet": ("pretraining", LORA, {"step-logging"}),
    "csv/slow_stretch.csv": ("pretraining", LORA, {"step-logging"}),
    "csv/diverged_metrics.csv": (
        "pretraining", {"validation"}, {"step-logging", "stop-on-nonfinite"},
    ),
    "hf-trainer/lora_fine": ("sft", LORA, {"checkpoints", "step-logging"}),
    "hf-trainer/lora_spike": ("sft", LORA, {"checkpoints", "step-logging"}),
    "hf-trainer/lora_nan": (
        "sft", {"validation"}, {"checkpoints", "step-logging", "stop-on-nonfinite", "warm-up"},
    ),
    "jsonl/entropy_collapse.jsonl": ("rl", set(), {"kl-penalty", "step-logging", "warm-up"}),
    "jsonl/synthetic_7b_spike.jsonl": (
        "pretraining", PUT - {"validation"}, {"step-logging"},
    ),
    "jsonl/synthetic_loss_scale.jsonl": (
        "pretraining", {"warm-up"}, {"number-format", "step-logging"},
    ),
    "jsonl/synthetic_router.jsonl": (
        "pretraining", {"warm-up", "load-balancing"}, {"step-logging"},
    ),
    "jsonl/synthetic_hacking.jsonl": ("rl", {"validation"}, {"step-logging"}),
    "jsonl/synthetic_policy.jsonl": ("rl", set(), {"step-logging"}),
}  # fmt: skip
"""Kind, what is in place and what is missing by the script that made the log; the rest, such as
the clipping of the adapters and their seed, the log does not tell."""


@pytest.mark.parametrize("sample", TRUTH)
def test_samples_against_their_scripts(sample):
    """No line of an audit contradicts the script that made the log."""
    (run,), _ = read_runs([str(SAMPLES / sample)])
    audit = audit_run(diagnose(run))
    expected_kind, in_place, lacks = TRUTH[sample]

    assert audit.kind == expected_kind
    assert {line.technique.name for line in audit.of("in place")} == in_place
    assert {line.technique.name for line in audit.of("missing")} == lacks


def test_clipping_of_the_adapters_is_unknown_until_it_is_told():
    """The spiking fine-tune was not clipped; its state does not say so, and the user can."""
    (run,), _ = read_runs([str(SAMPLES / "hf-trainer" / "lora_spike")])
    told = lines(audit_run(diagnose(run)))["grad-clipping"]
    assert told.judgement.status == "unknown"
    assert [(f.rule, f.first) for f in told.bears_on] == [("loss-spike", 180)]

    run = make_run(
        facts={"grad_clip": 0.0}, step=run.frame["step"], loss=run.frame["loss"].to_numpy()
    )
    assert lines(audit_run(diagnose(run)))["grad-clipping"].judgement.status == "missing"
