"""Techniques: what each says of settings and logs, and what each file owes its reader."""

import re

import numpy as np
import pytest

from stabcli.audit import audit_run
from stabcli.diagnosis import diagnose
from stabcli.rules import rules
from stabcli.run import Fact
from stabcli.techniques import KINDS, Judgement, Subject, Technique, techniques
from tests.conftest import ROOT
from tests.golden import block
from tests.rules.runs import healthy, make_run

HEADINGS = ["Why it matters", "What to do", "How to log it", "Sources"]


def judged(name: str, kind: str = "pretraining", **facts: object) -> Judgement | None:
    """What a technique says of a configuration."""
    known = {k: Fact(value=v, source="config") for k, v in facts.items()}
    return techniques[name].judge(Subject(kind=kind, facts=known))


def seen(name: str, kind: str = "pretraining", facts: dict | None = None, **columns) -> Judgement:
    """What a technique says of a run of these columns."""
    run = make_run(facts=facts, **columns)
    lines = audit_run(diagnose(run), kind).lines
    return next(line.judgement for line in lines if line.technique.name == name)


@pytest.mark.parametrize("technique", list(techniques), ids=lambda t: t.name)
def test_page_has_every_heading_in_order(technique: Technique):
    """A technique says why it matters, what to do, how to log it, and where that is from."""
    assert re.findall(r"^## (.+)$", technique.page, re.MULTILINE) == HEADINGS
    assert all(technique.section(h) for h in HEADINGS)
    assert technique.summary.endswith(".")
    assert technique.sources


@pytest.mark.parametrize("technique", list(techniques), ids=lambda t: t.name)
def test_bears_on_rules_that_exist(technique: Technique):
    """Findings are named by their rules, and what is done about them is said."""
    assert set(technique.guards) <= {r.name for r in rules}
    assert bool(technique.guards) == bool(technique.effect)
    assert set(technique.kinds) <= set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("technique", list(techniques), ids=lambda t: t.name)
def test_knowing_nothing_is_never_missing(technique: Technique, kind: str):
    """Without a log and a setting every technique is unknown, or the question does not come up."""
    told = technique.judge(Subject(kind=kind, facts={}))

    assert told is None or told.status == "unknown"


@pytest.mark.parametrize(
    ("name", "facts", "status"),
    [
        ("grad-clipping", {"grad_clip": 1.0}, "in place"),
        ("grad-clipping", {"grad_clip": 0}, "missing"),
        ("warm-up", {"warmup_steps": 2000}, "in place"),
        ("warm-up", {"warmup_steps": 0}, "missing"),
        ("warm-up", {"warmup_steps": 0, "warmup_ratio": 0.03}, "in place"),
        ("number-format", {"precision": "bf16"}, "in place"),
        ("number-format", {"precision": "bf16-mixed"}, "in place"),
        ("number-format", {"precision": "torch.bfloat16"}, "in place"),
        ("number-format", {"precision": "fp32"}, "in place"),
        ("number-format", {"precision": "32-true"}, "in place"),
        ("number-format", {"precision": "16-mixed"}, "missing"),
        ("number-format", {"precision": "float16"}, "missing"),
        ("number-format", {"precision": "fp8"}, "unknown"),
        ("number-format", {"precision": "no"}, "unknown"),
        ("weight-decay", {"weight_decay": 0.1}, "in place"),
        ("weight-decay", {"weight_decay": 0.0}, "missing"),
        ("deduplication", {"deduplicated": "minhash"}, "in place"),
        ("deduplication", {"deduplicated": "no"}, "missing"),
        ("z-loss", {"z_loss_weight": 1e-4}, "in place"),
        ("z-loss", {"z_loss_weight": 0.0}, "missing"),
        ("checkpoints", {"checkpoint_every": 100, "total_steps": 1000}, "in place"),
        ("checkpoints", {"checkpoint_every": 500, "total_steps": 1000}, "missing"),
        ("checkpoints", {"checkpoint_every": 1000, "total_steps": 1000}, "missing"),
        ("checkpoints", {"checkpoint_every": 1000}, "in place"),
        ("checkpoints", {"checkpoints": (100, 200)}, "in place"),
        ("checkpoints", {"checkpoints": (100,)}, "unknown"),
        ("validation", {"eval_every": 100}, "in place"),
        ("validation", {"eval_every": 0}, "missing"),
        ("validation", {"eval_every": 500, "eval_strategy": "no"}, "missing"),
        ("stop-on-nonfinite", {"stop_on_nonfinite": "yes"}, "in place"),
        ("stop-on-nonfinite", {"stop_on_nonfinite": "no"}, "missing"),
        ("seed", {"seed": 0}, "in place"),
        ("data-order", {"data_seed": 1}, "in place"),
        ("data-order", {"shuffle": "no"}, "in place"),
        ("data-order", {"shuffle": "yes", "seed": 1}, "unknown"),
        ("tokenizer-version", {"tokenizer_version": "abc"}, "in place"),
        ("tokenizer-version", {"tokenizer": "gpt2"}, "unknown"),
        ("deterministic-algorithms", {"deterministic": "yes"}, "in place"),
        ("deterministic-algorithms", {"deterministic": "no"}, "missing"),
        ("kl-penalty", {"kl_coefficient": 0.01}, "in place"),
        ("kl-penalty", {"kl_coefficient": 0.0}, "missing"),
        ("entropy-bonus", {"entropy_coefficient": 0.0}, "missing"),
        ("load-balancing", {"experts": 8}, "unknown"),
        ("load-balancing", {"experts": 8, "aux_loss_coefficient": 0.01}, "in place"),
        ("load-balancing", {"experts": 8, "aux_loss_coefficient": 0.0}, "missing"),
    ],
)  # fmt: skip
def test_settings(name, facts, status):
    """Each value a setting can have, with the setting named as evidence."""
    told = judged(name, "sft", **facts)

    assert told is not None
    assert told.status == status
    assert status == "unknown" or any(f in told.evidence for f in (*facts, "config"))


def test_questions_that_do_not_come_up():
    """A dense model has no experts to balance; a pretraining need not be deterministic."""
    assert judged("load-balancing") is None
    assert judged("load-balancing", experts=1) is None
    assert judged("deterministic-algorithms", deterministic="no") is None
    told = judged("deterministic-algorithms", deterministic="yes")
    assert told is not None
    assert "10-30 %" in told.evidence


def rate(*values: float) -> np.ndarray:
    return np.array(values, float)


@pytest.mark.parametrize(
    ("values", "first", "status"),
    [
        (np.linspace(0.1, 1, 10).tolist() + [1.0] * 90, 1, "in place"),
        (np.linspace(0, 1, 50).tolist() + np.linspace(1, 0, 50).tolist(), 0, "in place"),
        ([1.0] * 100, 1, "missing"),
        (np.linspace(1, 0, 100).tolist(), 0, "missing"),
        (np.linspace(1, 0, 100).tolist(), 10, "unknown"),
        (np.linspace(0, 1, 100).tolist(), 1, "unknown"),
        ([1.0], 1, "unknown"),
        ([float("nan")] * 20, 1, "unknown"),
    ],
)
def test_warm_up_shows_in_the_rate(values, first, status):
    """It rises and stops rising; it never rose; or the log does not show its beginning or end."""
    n = len(values)
    told = seen(
        "warm-up", step=np.arange(first, first + n), loss=np.full(n, 2.0), lr=np.array(values)
    )

    assert told.status == status


def test_a_log_overrules_a_warm_up_that_was_only_configured():
    """A rate at its peak at step 1 had no warm-up, whatever the configuration says."""
    told = seen("warm-up", facts={"warmup_steps": 50}, loss=np.full(99, 2.0), lr=np.full(99, 1e-3))

    assert told.status == "missing"
    assert "warmup_steps 50" in told.evidence


def test_clipping_shows_where_norms_are_cut():
    """Norms pinned at one value were cut before they were logged; free or constant ones were not."""
    norms = np.random.default_rng(0).lognormal(0, 0.5, 400)
    loss = np.full(400, 2.0)

    assert seen("grad-clipping", loss=loss, grad_norm=norms).status == "unknown"
    assert seen("grad-clipping", loss=loss, grad_norm=np.ones(400)).status == "unknown"
    assert seen("grad-clipping", loss=loss, grad_norm=np.full(400, np.nan)).status == "unknown"
    cut = seen("grad-clipping", loss=loss, grad_norm=np.minimum(norms, 1.5))
    assert cut.status == "in place"
    assert "1.5" in cut.evidence


@pytest.mark.parametrize(("scale", "status"), [(65536.0, "missing"), (1.0, "unknown")])
def test_a_loss_scale_gives_fp16_away(scale, status):
    """bf16 runs of Megatron log a scale of 1."""
    told = seen("number-format", loss=np.full(50, 2.0), loss_scale=np.full(50, scale))

    assert told.status == status


def test_logging_names_what_is_absent_and_what_follows():
    """Tokens/s follow from a clock and tokens per step; every k-th step is not every step."""
    columns = healthy(400)
    full = seen("step-logging", **columns, mfu=np.full(400, 0.4))
    assert full.status == "in place"
    clock = {k: v for k, v in columns.items() if k != "tokens_per_second"}
    clock |= {"timestamp": 1.7e9 + columns["step"], "mfu": np.full(400, 0.4)}
    assert "tokens/s" in seen("step-logging", **clock).evidence.partition("not logged")[2]
    followed = seen("step-logging", facts={"tokens_per_step": 1000}, **clock)
    assert followed.status == "in place"
    assert "tokens/s (worked out)" in followed.evidence
    sparse = seen("step-logging", **{**columns, "step": 10 * columns["step"]}, mfu=np.ones(400))
    assert sparse.status == "missing"
    assert "one row in 10 steps" in sparse.evidence


def test_a_run_that_trains_on_after_a_nan_did_not_stop():
    """And one whose log ends at the NaN did; a NaN that heals shows nothing."""
    loss = np.full(100, 2.0) + np.random.default_rng(0).normal(0, 0.01, 100)

    def told(*nan_rows):
        spoilt = loss.copy()
        spoilt[list(nan_rows)] = np.nan
        return seen("stop-on-nonfinite", loss=spoilt).status

    assert told() == "unknown"
    assert told(50) == "unknown"
    assert told(99) == "in place"
    assert told(*range(60, 100)) == "missing"


def test_a_router_z_loss_is_not_that_of_the_output():
    """Both are called z-loss."""
    ones = np.full(50, 0.1)
    assert seen("z-loss", loss=ones, z_loss=ones).status == "in place"
    assert seen("z-loss", loss=ones, router_z_loss=ones).status == "unknown"
    assert seen("z-loss", loss=ones, z_loss=np.zeros(50)).status == "unknown"


def test_table_is_what_the_registry_says():
    """The table of techniques in README; STABCLI_UPDATE=1 writes it anew."""
    lines = ["| Technique | In | Is |", "| --- | --- | --- |"]
    lines += [
        f"| `{t.name}` | {'all' if set(t.kinds) == set(KINDS) else ', '.join(t.kinds)} | {t.summary} |"
        for t in techniques
    ]
    block(ROOT / "README.md", "techniques", "\n".join(lines) + "\n")
