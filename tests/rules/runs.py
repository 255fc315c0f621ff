"""Runs made of arrays, and what a rule says of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stabcli.assembly import Options, Reading, assemble
from stabcli.rules import Finding, run_rules, select
from stabcli.run import Fact, Run
from stabcli.sources import Source

Values = np.ndarray | pl.Series | Sequence[float | None]
"""One column: NaN is a value the trainer had, None one it did not log."""


def make_run(
    *,
    step: Values | None = None,
    name: str = "run",
    facts: Mapping[str, Fact | float | int | str] | None = None,
    **columns: Values,
) -> Run:
    """Assemble a run as a reader's reading is assembled.

    Args:
        step: Steps in the order of the log; 1, 2, 3, … where not given.
        name: Name of the run.
        facts: Name -> fact, or its bare value.
        columns: Columns by canonical name or any name a log might use. All of one length.
    """
    series = [_series(key, values) for key, values in columns.items()]
    height = len(series[0]) if series else 0
    steps = np.arange(1, height + 1) if step is None else step
    given = {
        key: value if isinstance(value, Fact) else Fact(value=value, source="test")
        for key, value in (facts or {}).items()
    }
    table = pl.DataFrame([_series("step", steps), *series])
    source = Source(shown=f"{name}.jsonl", path=Path(f"{name}.jsonl"), head=b"")
    return assemble(Reading(name=name, table=table, facts=given), source, "jsonl", Options())


def _series(name: str, values: Values) -> pl.Series:
    if isinstance(values, (pl.Series, np.ndarray)):
        return pl.Series(name, values)
    kind = pl.Int64 if name == "step" else pl.Float64
    return pl.Series(name, list(values), dtype=kind, strict=False)


def findings(run: Run, rule_name: str, **settings: Any) -> list[Finding]:
    """Return what one rule finds; fail where it could not look, which is not the same as nothing."""
    found, not_looked = run_rules(run, select((), (rule_name,)), {rule_name: settings})
    assert not not_looked, f"{rule_name} could not look: {not_looked[0].why}"
    return found


def grave(run: Run, rule_name: str, **settings: Any) -> list[Finding]:
    """What a rule finds above notice."""
    return [f for f in findings(run, rule_name, **settings) if f.severity != "notice"]


def fires(rule_name: str, **columns: Values) -> bool:
    """Say whether one rule, as it is by default, finds anything in a run of these columns."""
    return bool(findings(make_run(**columns), rule_name))


def skipped(run: Run, rule_name: str) -> str | None:
    """Return why a rule could not look, or None where it did."""
    _, not_looked = run_rules(run, select((), (rule_name,)))
    return not_looked[0].why if not_looked else None


def healthy(n: int = 2000, seed: int = 0, noise: float = 0.035) -> dict[str, np.ndarray]:
    """Return the columns of a clean pretraining run of ``n`` steps, to be spoilt by a test.

    The loss falls as a power law with normal noise of ``noise`` nats; the gradient norm is
    lognormal around 0.35 and five times that at the start; the learning rate warms up over a
    twentieth of the steps and decays as a cosine to a tenth; the throughput has 1 % noise.
    """
    random = np.random.default_rng(seed)
    step = np.arange(1, n + 1)
    warm = max(1, n // 20)
    done = np.clip((step - warm) / max(1, n - warm), 0.0, 1.0)
    rate = np.where(step < warm, step / warm, 0.1 + 0.45 * (1 + np.cos(np.pi * done)))
    return {
        "step": step,
        "loss": 1.9 + 8.5 * (step + 20.0) ** -0.42 + random.normal(0, noise, n),
        "grad_norm": random.lognormal(np.log(0.35), 0.18, n) * (1 + 4 * np.exp(-step / 80)),
        "learning_rate": 3e-4 * rate,
        "tokens_per_second": 3.5e6 * (1 + random.normal(0, 0.01, n)),
    }
