"""A planted fault and a quiet twin for every rule there is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from stabcli.run import Run, Trouble
from tests.rules.runs import make_run

N = 1200
"""Rows of every case."""
Columns = dict[str, Any]
Change = Callable[[Columns], None]


def every(values: np.ndarray, k: int) -> list[float | None]:
    """Values only in every k-th row."""
    return [float(v) if (i + 1) % k == 0 else None for i, v in enumerate(values)]


def pretraining(n: int = N, seed: int = 5) -> Columns:
    """A pretraining run that nothing is wrong with, with all that any rule looks at."""
    r = np.random.default_rng(seed)
    s = np.arange(1, n + 1)
    far = np.linspace(0, n / N, n)
    return {
        "step": s,
        "wall_time": 1.75e9 + np.cumsum(2.0 + r.normal(0, 0.02, n)),
        "loss": 2.6 - 1.2 * far + r.normal(0, 0.02, n),
        "grad_norm": r.lognormal(np.log(0.3), 0.15, n),
        "learning_rate": 3e-4 * np.clip(s / 60, 0, 1) * (1 - 0.9 * far),
        "tokens_per_second": 3.5e6 * (1 + r.normal(0, 0.01, n)),
        "step_seconds": 2.0 + r.normal(0, 0.02, n),
        "mfu": 0.4 + r.normal(0, 0.004, n),
        "val_loss": every(2.6 - 1.2 * far + r.normal(0, 0.002, n), 20),
        "aux_loss": 0.0100 + r.normal(0, 0.00004, n),
        "expert_load_ratio": 1.3 + r.normal(0, 0.02, n),
        "loss_scale": np.full(n, 65536.0),
        "skipped_steps": np.zeros(n),
        "max_attention_logit": 12 * r.lognormal(0, 0.03, n),
        "update_norm": r.lognormal(-3, 0.1, n),
        "z_loss": 4e-4 * r.lognormal(0, 0.05, n),
        "train/masked instances (%)": np.where(r.random(n) < 0.1, 1 / 512, 0.0),
    }


def policy(n: int = N, seed: int = 6) -> Columns:
    """A run of reinforcement learning that nothing is wrong with."""
    r = np.random.default_rng(seed)
    s = np.arange(1, n + 1)
    return {
        "step": s,
        "actor/pg_loss": r.normal(0, 0.01, n),
        "grad_norm": r.lognormal(np.log(0.1), 0.1, n),
        "reward": 0.1 + 0.7 * (1 - np.exp(-s / 300)) + r.normal(0, 0.01, n),
        "entropy": 1.5 + r.normal(0, 0.01, n),
        "kl": 0.02 * r.lognormal(0, 0.1, n),
        "clip_fraction": 0.08 + r.normal(0, 0.01, n),
        "dead_group_fraction": 0.25 + r.normal(0, 0.01, n),
        "response_length": 300 + r.normal(0, 8, n),
        "val_reward": every(0.1 + 0.6 * (1 - np.exp(-s / 300)) + r.normal(0, 0.004, n), 20),
        "rollout_corr/rollout_is_mean": 1 + r.normal(0, 0.02, n),
        "critic/vf_explained_var": 0.5 + r.normal(0, 0.03, n),
        "rewards/chosen": -np.log1p(s / 300) + r.normal(0, 0.1, n),
    }


def flat(n: int = N, seed: int = 7) -> Columns:
    """A pretraining run on its plateau: what looks both ways finds nothing in it either."""
    columns = pretraining(n, seed)
    columns["loss"] = 2.0 + np.random.default_rng(seed).normal(0, 0.02, n)
    return columns


@dataclass(frozen=True, kw_only=True)
class Case:
    """A fault of one rule: a base without it, what spoils that, and where."""

    change: Change
    first: int
    """Step at which the fault begins."""
    last: int = N
    base: Callable[..., Columns] = pretraining
    twin: Change | None = None
    """What the quiet twin has in common with the spoilt run, where it is more than the base."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    notice: bool = False
    """Whether the rule never says more than a notice."""
    told: tuple[Trouble, ...] = ()
    """What the text of the spoilt run says of hardware."""

    def quiet(self, n: int = N, step: int = 0) -> Run:
        """The twin, of any length, counted from ``step``; its text says nothing."""
        columns = self.base(n)
        if self.twin:
            self.twin(columns)
        columns["step"] = columns["step"] + step
        return replace(make_run(**columns, facts=self.facts), searched=("run.jsonl",))

    def run_of(self, columns: Columns, step: int = 0) -> Run:
        """The spoilt run, made of columns, its text counted from ``step``."""
        told = tuple(replace(t, step=t.step and t.step + step) for t in self.told)
        return replace(make_run(**columns, facts=self.facts), troubles=told)

    def columns(self) -> Columns:
        """The columns of the spoilt run."""
        columns = self.base()
        self.change(columns)
        return columns

    def spoilt(self, step: int = 0) -> Run:
        """The run with the fault."""
        columns = self.columns()
        columns["step"] = columns["step"] + step
        return self.run_of(columns, step)


def said(kind: str, step: int | None, text: str, line: int = 7, attempt: int = 0) -> Trouble:
    """A line of text that stands after a step."""
    at = None if step is None else attempt
    return Trouble(kind=kind, file="run.jsonl", line=line, text=text, attempt=at, step=step)


def nothing(columns: Columns) -> None:
    """Change nothing."""


def put(metric: str, first: int, last: int, change: Callable[[np.ndarray], Any]) -> Change:
    """Change a column from step ``first`` to ``last``, both inclusive; rows without it stay so."""

    def spoil(columns: Columns) -> None:
        part = slice(first - 1, last)
        values = columns[metric]
        if isinstance(values, list):
            known = np.array([np.nan if v is None else v for v in values])
            known[part] = change(known[part])
            columns[metric] = [
                None if v is None else float(k) for v, k in zip(values, known, strict=True)
            ]
        else:
            values[part] = change(values[part])

    return spoil


def both(*changes: Change) -> Change:
    """Make several changes."""

    def spoil(columns: Columns) -> None:
        for change in changes:
            change(columns)

    return spoil


def restart(back: int, at: int, change: Change | None = None) -> Change:
    """Go back to step ``back`` after step ``at`` and redo all from there; then change that."""

    def spoil(columns: Columns) -> None:
        for name, values in columns.items():
            again = values[back - 1 :]
            if isinstance(values, list):
                columns[name] = [*values[:at], *again]
            else:
                late = (at - back) * 2.0 if name == "wall_time" else 0
                columns[name] = np.concatenate([values[:at], again + late])
        if change:
            change(columns)

    return spoil


def second(metric: str, at: int, rows: int, factor: float) -> Change:
    """Multiply the first rows after a restart at row ``at``."""

    def spoil(columns: Columns) -> None:
        columns[metric][at : at + rows] *= factor

    return spoil


def ramp(first: int, last: int, top: float) -> Callable[[np.ndarray], np.ndarray]:
    """Add what grows from 0 at step ``first`` to ``top`` at ``last`` and stays, to the end."""
    return lambda x: x + top * np.clip((np.arange(len(x)) + 1) / (last - first), 0, 1)


def spikes(columns: Columns) -> None:
    """Five spikes of one row, 200 rows apart."""
    for k, at in enumerate(range(200, N, 200)):
        columns["loss"][at - 1] *= 1.6 + 0.2 * k
        columns["grad_norm"][at - 1] *= 8


SPIKE = put("loss", 600, 603, lambda x: 3 * x)
LEAP = put("loss", 600, 602, lambda x: 30 * x)
NORM = put("grad_norm", 600, 603, lambda x: 60 * x)
UP = put("val_loss", 601, N, lambda x: x + 0.6)
SLOW = put("tokens_per_second", 600, 700, lambda x: x * 0.6)
NAN = put("loss", 600, N, lambda x: np.nan)
HANG = put("wall_time", 600, N, lambda x: x + 18000)
COLLAPSE = put("entropy", 600, N, lambda x: 0.02 + 0.05 * x)

CASES: dict[str, Case] = {
    "adagc": Case(change=NORM, first=100, notice=True),
    "arc": Case(change=LEAP, first=600, last=602),
    "attention-logits": Case(
        change=put("max_attention_logit", 600, N, lambda x: 15 * x), first=600
    ),
    "axlearn-drop": Case(change=NORM, first=600, last=603),
    "axolotl-watchdog": Case(change=SPIKE, first=602, last=603),
    "chosen-reward-drop": Case(
        change=put("rewards/chosen", 600, N, lambda x: x - 3), first=600, base=policy
    ),
    "clip-fraction-high": Case(
        change=put("clip_fraction", 600, N, lambda x: x + 0.4), first=600, base=policy
    ),
    "clip-saturation": Case(
        change=put("grad_norm", 750, N, lambda x: 8 * x), first=750, facts={"grad_clip": 1.0}
    ),
    "dead-groups": Case(
        change=put("dead_group_fraction", 600, N, lambda x: x + 0.65), first=600, base=policy
    ),
    "discarded-steps": Case(change=restart(501, 620), first=501, last=620, notice=True),
    "early-spike": Case(change=put("loss", 9, 10, lambda x: 4 * x), first=9, last=10),
    "entropy-collapse": Case(change=COLLAPSE, first=600, base=policy),
    "entropy-explosion": Case(
        change=both(
            put("entropy", 600, N, ramp(600, 800, 5.0)),
            put("reward", 600, N, ramp(600, 900, -0.4)),
        ),
        first=600,
        base=policy,
    ),
    "expert-imbalance": Case(change=put("expert_load_ratio", 600, N, lambda x: 5 * x), first=600),
    "fatal-end": Case(
        change=nothing,
        told=(said("out-of-memory", N, "torch.OutOfMemoryError: CUDA out of memory."),),
        first=N,
        last=N,
    ),
    "frozen-values": Case(change=put("loss", 600, 640, lambda x: x[0]), first=600, last=640),
    "goodput": Case(change=put("step_seconds", 600, 640, lambda x: 3 * x), first=1, notice=True),
    "grad-norm-drift": Case(
        change=put("grad_norm", 500, N, lambda x: x * np.exp(ramp(500, 1000, 2.0)(0 * x))),
        first=500,
    ),
    "grad-norm-high": Case(
        change=put("grad_norm", 600, 900, lambda x: 5 * x), first=1, notice=True
    ),
    "grad-norm-run": Case(change=put("grad_norm", 600, 640, lambda x: 60 * x), first=600, last=640),
    "grad-norm-spike": Case(change=both(NORM, SPIKE), first=600, last=603),
    "grad-norm-vanishing": Case(change=put("grad_norm", 600, N, lambda x: 0 * x), first=600),
    "hardware-fault": Case(
        change=nothing,
        told=(said("gpu-fault", 600, "NVRM: Xid (PCI:0000:3b:00): 63, Row Remapper"),),
        first=600,
        last=600,
    ),
    "hidden-nonfinite": Case(
        change=both(
            put("loss", 600, N, lambda x: 0 * x), put("grad_norm", 600, N, lambda x: np.nan)
        ),
        first=600,
    ),
    "kl-runaway": Case(change=put("kl", 600, N, ramp(600, 800, 5.0)), first=600, base=policy),
    "levanter-clipupdate": Case(
        change=put("update_norm", 600, 603, lambda x: 5 * x), first=600, last=603, notice=True
    ),
    "levanter-skip": Case(change=SPIKE, first=600, last=603),
    "lightning-earlystop": Case(change=UP, first=660),
    "lightning-spike": Case(change=put("loss", 600, 603, lambda x: 5 * x), first=600, last=603),
    "llmfoundry-killlossspike": Case(
        change=put("loss", 600, 620, lambda x: 4 * x), first=604, last=620
    ),
    "loss-broken": Case(change=put("loss", 1, N, lambda x: x + 20), first=1),
    "loss-divergence": Case(change=put("loss", 600, N, ramp(600, 900, 2.0)), first=600),
    # At no simple fraction of the steps, shifted or not: there an epoch may end.
    "loss-drop": Case(change=put("loss", 700, N, lambda x: 0.7 * x), first=700),
    "loss-plateau": Case(
        change=put("loss", 200, N, lambda x: 2.4 + 0.002 * np.sin(np.arange(len(x)))),
        first=200,
        notice=True,
    ),
    "loss-scale-collapse": Case(
        change=put("loss_scale", 600, N, lambda x: 2.0 ** -np.arange(len(x)).clip(0, 16) * x),
        first=600,
    ),
    "loss-rescaled": Case(change=put("loss", 600, N, lambda x: 8 * x), first=600),
    "loss-shift": Case(change=put("loss", 600, 800, lambda x: 1.15 * x), first=600, last=800),
    "loss-spike": Case(change=SPIKE, first=600, last=603),
    "lr-jump": Case(change=put("learning_rate", 600, N, lambda x: 3 * x), first=600),
    "lr-stuck": Case(change=put("learning_rate", 600, 680, lambda x: 0 * x), first=600, last=680),
    "masked-data": Case(
        change=put("train/masked instances (%)", 600, 640, lambda x: x + 0.3), first=600, last=640
    ),
    "megatron-rerun": Case(change=LEAP, first=600, last=602),
    "metaseq-ewm": Case(change=SPIKE, first=600, last=603, settings={"ratio": 1.5}),
    "mfu-impossible": Case(change=put("mfu", 1, N, lambda x: x + 0.8), first=1, notice=True),
    "mfu-low": Case(change=put("mfu", 600, N, lambda x: x * 0.5), first=600),
    "moe-aux-loss": Case(
        change=put("aux_loss", 600, N, lambda x: 3 * x),
        first=600,
        facts={"aux_loss_coefficient": 0.01, "experts": 8},
    ),
    "nonfinite": Case(change=NAN, first=600),
    "nvrx-straggler": Case(change=SLOW, first=600, last=700),
    "objective-loss-explosion": Case(
        change=put("actor/pg_loss", 600, N, lambda x: 400 * x), first=600, base=policy
    ),
    "olmo-skipstep": Case(change=SPIKE, first=600, last=603),
    "olmo-stability": Case(change=SPIKE, first=600, last=603),
    "olmo2-paper": Case(change=put("loss", 1050, 1053, lambda x: 3 * x), first=1050, last=1053),
    "overfitting": Case(change=put("val_loss", 601, N, ramp(601, N, 2.0)), first=600),
    "perplexity-jump": Case(
        change=put("val_loss", 601, 620, lambda x: x + 0.6), first=620, last=620
    ),
    "perplexity-rise": Case(change=UP, first=620),
    "qk-clip": Case(change=put("max_attention_logit", 600, N, lambda x: 15 * x), first=600),
    "repeated-data": Case(
        change=restart(501, 620, second("loss", 620, 120, 0.9)),
        twin=restart(501, 620),
        first=501,
        last=620,
    ),
    "resume-bump": Case(
        change=restart(501, 620, second("loss", 620, 700, 1.1)),
        twin=restart(501, 620),
        first=501,
        last=N,
    ),
    "reward-drop": Case(change=put("reward", 600, N, lambda x: x - 0.65), first=600, base=policy),
    "reward-hacking": Case(
        change=both(
            put("reward", 600, N, ramp(600, N, 0.6)),
            put("val_reward", 600, N, ramp(600, N, -0.5)),
        ),
        first=600,
        base=policy,
    ),
    "router-z-loss": Case(change=put("z_loss", 600, 660, lambda x: 6 * x), first=600, last=660),
    "router-hacking": Case(
        change=put("aux_loss", 600, N, lambda x: 0.85 * x),
        first=600,
        facts={"aux_loss_coefficient": 0.01, "experts": 8},
    ),
    "seed-entropy-collapse": Case(change=COLLAPSE, first=600, base=policy),
    "seed-grad-norm-high": Case(change=NORM, first=600, last=603),
    "seed-grad-norm-run": Case(change=NORM, first=600, last=603),
    "seed-loss-spike": Case(change=SPIKE, first=600, last=603),
    "seed-mfu-low": Case(change=put("mfu", 600, N, lambda x: x * 0.5), first=600),
    "seed-moe-aux-loss": Case(change=put("aux_loss", 600, N, lambda x: 20 * x), first=600),
    "seed-nonfinite": Case(change=NAN, first=600),
    "seed-overfitting": Case(change=put("val_loss", 601, N, ramp(601, N, 2.0)), first=600),
    "seed-perplexity-jump": Case(
        change=put("val_loss", 601, 620, lambda x: x + 0.6), first=620, last=620
    ),
    "seed-perplexity-rise": Case(change=UP, first=620),
    "seed-throughput-drop": Case(change=SLOW, first=600, last=700),
    "smdebug-loss-not-decreasing": Case(
        change=put("loss", 600, N, lambda x: x[0] + 0 * x), first=600, notice=True
    ),
    "smdebug-overfit": Case(change=UP, first=620),
    "smdebug-overtraining": Case(change=UP, first=800),
    "smdebug-stalled-training": Case(change=HANG, first=600, last=600),
    "smdebug-step-outlier": Case(
        change=put("step_seconds", 600, 601, lambda x: 5 * x), first=600, last=601
    ),
    "soup": Case(change=put("loss", 600, 620, lambda x: 3 * x), first=604, last=620),
    "spike-rate": Case(change=spikes, first=200, notice=True),
    "standstill": Case(change=HANG, first=600, last=600),
    "throughput-drop": Case(change=SLOW, first=600, last=700),
    "trainscope-cusum": Case(change=SPIKE, first=600, last=603, base=flat),
    "trainscope-z": Case(change=SPIKE, first=600, last=603),
    "trl-skywork": Case(change=COLLAPSE, first=600, base=policy),
    "validation-unmoved": Case(
        change=put("loss", 600, N, lambda x: 1.2 * x), first=600, notice=True
    ),
    "value-collapse": Case(
        change=put("critic/vf_explained_var", 600, N, lambda x: x - 1),
        first=600,
        base=policy,
    ),
    "verl-rolloutcorr": Case(
        change=put("rollout_corr/rollout_is_mean", 600, N, lambda x: x + 1.5),
        first=600,
        base=policy,
    ),
    "wandb-watcher": Case(change=SPIKE, first=600, last=603),
    "zclip": Case(change=NORM, first=25, notice=True),
}
