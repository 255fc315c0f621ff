"""Perplexity: whose validation loss is one, and how evaluations are read as perplexities."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from stabcli.run import Run
from stabcli.series import Signal, signals

MODELS = frozenset(
    {
        *("levanter", "litgpt", "llmc", "maxtext", "megatron", "mlx", "modded-nanogpt", "nanochat"),
        *("nanogpt", "nanotron", "olmo", "openrlhf", "prime-rl", "torchtitan", "torchtune", "verl"),
    }
)
"""Readers of frameworks that train language models and nothing else."""
ANY_MODEL = frozenset({"hf-trainer", "hf-stdout"})
"""Readers of trainers that mostly train language models, and also classifiers."""
TOKENS = ("tokens_per_second", "tokens_per_second_per_gpu", "tokens_seen", "batch_tokens")
"""Columns that count tokens."""
FACTS = ("tokens_per_step", "sequence_length", "vocab_size", "tokenizer")
"""Facts that only what works on tokens has."""
GUESS = 7.5
"""Loss in nats above which a run that begins there guesses among more things than classes."""
_WORDS = re.compile(r"(?:^|[^a-z])(?:lm|tokens?|bpb|bpt|bits_per_byte|ppl|perplexity)(?:$|[^a-z])")
_CLASSES = re.compile(r"(?:^|[^a-z])(?:accuracy|acc|acc1|acc5|top1|top5|f1|auc|auroc|map|miou)\d*$")


def no_perplexity(run: Run) -> str | None:
    """Say why a run has no validation perplexity, logged or as e to its loss; None where it has.

    It is where perplexity was logged, tokens are counted, the framework trains language models
    alone, the log's own words say so, or the loss begins where only a guess among thousands of
    tokens does. Transformers' trainer is believed where it measured no accuracy.
    """
    if not run.has("val_perplexity") and not run.has("val_loss"):
        return "the log has no val_loss or val_perplexity"
    words = _written(run)
    if _of_tokens(run, words):
        return None
    if run.has("loss"):
        losses = run.array("loss")
        losses = losses[np.isfinite(losses)][:3]
        if len(losses) and float(np.median(losses)) > GUESS:
            return None
    measured = next((w for w in words if _CLASSES.search(w)), None)
    if measured is None and run.reader in ANY_MODEL:
        return None
    why = f"the log has {measured}, as classifiers do" if measured else "nothing counts tokens"
    return (
        f"{why}: val_loss is taken for no perplexity;"
        " if it is a language model, add --fact sequence_length=N"
    )


def language_model(run: Run) -> bool:
    """Say whether anything but the loss itself tells that a language model was trained.

    What tells it is what ``no_perplexity`` goes by, without the level of the loss.
    """
    words = _written(run)
    classes = any(_CLASSES.search(w) for w in words)
    return _of_tokens(run, words) or (run.reader in ANY_MODEL and not classes)


def _written(run: Run) -> list[str]:
    """Return the names of a log's columns, as they were written and as they are called here."""
    return [w.lower() for w in (*run.measurements, *run.columns.values())]


def _of_tokens(run: Run, words: list[str]) -> bool:
    """Say whether reader, columns, facts or words of a run are those of a language model."""
    return (
        run.reader in MODELS
        or any(run.has(m) for m in ("val_perplexity", *TOKENS))
        or any(name in run.facts for name in FACTS)
        or any(_WORDS.search(w) for w in words)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluations:
    """The evaluations of one attempt as perplexities."""

    signal: Signal
    """What was logged."""
    metric: str
    """``val_perplexity``, or ``val_loss`` whose power of e is taken."""
    values: np.ndarray
    """Perplexities, those inherited first; NaN where there is none, below 1 too."""
    start: int
    """How many of them are inherited."""

    def told(
        self, stretch: tuple[int, int], *, peak: int, expected: float, limit: float
    ) -> dict[str, Any]:
        """Return what a finding says of evaluations of this attempt, counted from its own first."""
        value = float(self.values[self.start + peak])
        return {
            "metric": "val_perplexity",
            "rows": (int(self.signal.rows[stretch[0]]), int(self.signal.rows[stretch[1]])),
            "peak": int(self.signal.rows[peak]),
            "value": value,
            "expected": expected,
            "score": value / limit,
            "tags": ("from-val-loss",) if self.metric == "val_loss" else (),
        }


def evaluations(run: Run, *, history: int) -> Iterator[Evaluations]:
    """Yield for each attempt its perplexities as logged, or e to the power of its losses."""
    metrics = [m for m in ("val_perplexity", "val_loss") if run.has(m)]
    seen: set[int] = set()
    for metric in metrics:
        for signal in signals(run, metric, history=history):
            if signal.attempt in seen:
                continue
            seen.add(signal.attempt)
            values = np.concatenate([signal.inherited, signal.values])
            if metric == "val_loss":
                with np.errstate(over="ignore"):
                    values = np.exp(values)
            values[~(values >= 1)] = np.nan
            yield Evaluations(
                signal=signal, metric=metric, values=values, start=len(signal.inherited)
            )


CAP = 20.0
"""Log perplexity at which Megatron cuts off what it prints: exp(20) says only that it is large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nats:
    """The finite evaluations of one attempt as log perplexities."""

    signal: Signal
    """What was logged, without what says nothing."""
    metric: str
    """``val_loss``, or ``val_perplexity`` whose logarithm is taken."""
    values: np.ndarray
    """Nats, those inherited first."""
    start: int
    """How many of them are inherited."""


def nats(run: Run) -> Iterator[Nats]:
    """Yield for each attempt its finite validation losses, or the logarithms of perplexities."""
    metric = "val_loss" if run.has("val_loss") else "val_perplexity"
    for raw in signals(run, metric):
        signal, earlier = raw.finite(), raw.inherited
        if metric == "val_perplexity":
            signal = signal.at(_log(signal.values) < CAP)
            earlier = earlier[_log(earlier) < CAP]
        joined = np.concatenate([earlier, signal.values])
        yield Nats(
            signal=signal,
            metric=metric,
            values=joined if metric == "val_loss" else _log(joined),
            start=len(earlier),
        )


def _log(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.log(np.maximum(x, 1e-300)))
