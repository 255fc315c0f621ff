"""Facts: what a configuration says of a run, and what it does not."""

import pytest

from stabcli.errors import SettingError
from stabcli.facts import find_facts, given_fact


def values(config):
    """The facts of a configuration, without their sources."""
    return {name: fact.value for name, fact in find_facts(config, "config.json").items()}


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"warmup_steps": "auto", "max_grad_norm": None, "seed": True},
        {"warmup_steps": -1, "weight_decay": float("nan"), "precision": 16},
        {"bf16": False, "fp16": "off", "full_determinism": None, "shuffle": []},
        {"fp16": {"enabled": "auto"}, "bf16": {"loss_scale": 0}},
        {"stage": 2, "optimizer": {"type": "AdamW"}},
    ],
)
def test_what_says_nothing_is_no_fact(config):
    """Values of another type, switches that are off, `auto` and null."""
    assert {k: v for k, v in values(config).items() if v != "no"} == {}


def test_none_is_a_value():
    """No warm-up, no clipping and no decay are said by 0, which is not the same as not said."""
    told = values({"warmup_steps": 0, "max_grad_norm": 0, "weight_decay": "0.0", "kl_coef": 0.0})

    assert told == {"warmup_steps": 0, "grad_clip": 0, "weight_decay": 0, "kl_coefficient": 0}


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"warmup_steps": 0.03}, {"warmup_ratio": 0.03}),
        ({"warmup_steps": "2k"}, {"warmup_steps": 2000}),
        ({"fp16": False, "bf16": True}, {"precision": "bf16"}),
        ({"fp16": {"enabled": True, "loss_scale": 0}}, {"precision": "fp16"}),
        ({"full_determinism": True}, {"deterministic": "yes"}),
        ({"dedup": "minhash"}, {"deduplicated": "minhash"}),
        ({"dedup": "False"}, {"deduplicated": "no"}),
        ({"algorithm": {"adv_estimator": "grpo", "kl_ctrl": {"kl_coef": 0.001}}},
         {"algorithm": "grpo", "kl_coefficient": 0.001}),
    ],
)  # fmt: skip
def test_words_of_frameworks(config, told):
    """A share of the run as warm-up, switches that name a format, nested tables."""
    assert values(config) == told


def test_a_source_names_the_key():
    """So that the reader of a report can look it up."""
    assert find_facts({"bf16": {"enabled": True}}, "ds.json")["precision"].source == "ds.json, bf16"


def test_a_flag_may_be_a_word_and_zero_a_count():
    """``--fact warmup_steps=0`` says that there was none."""
    assert given_fact("warmup-steps", "0", "--fact")[1].value == 0
    assert given_fact("deterministic", "true", "--fact")[1].value == "yes"
    with pytest.raises(SettingError, match="or 0"):
        given_fact("warmup_steps", "1.5", "--fact")


@pytest.mark.parametrize("value", ["1.5", 2.25, "0.5"])
def test_a_count_that_is_not_whole_is_refused_not_cut(value):
    """``--gpus 1.5`` is a mistake; ``124.44M`` is not, though no float holds it."""
    with pytest.raises(SettingError, match=r"--gpus: takes a whole number from 1"):
        given_fact("gpus", value, "--gpus")
    assert find_facts({"num_gpus": value}, "config") == {}
    assert given_fact("parameters", "124.44M", "--params")[1].value == 124_440_000
    assert given_fact("gpus", "512.0", "--gpus")[1].value == 512
