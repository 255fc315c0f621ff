"""Facts: what is known of a whole run, and under which names logs and configs say it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from stabcli.errors import SettingError
from stabcli.metrics import normalise
from stabcli.run import Fact
from stabcli.settings import suggestion
from stabcli.units import quantity

Kind = Literal["count", "whole", "number", "text", "flag", "steps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """One kind of fact."""

    kind: Kind
    """``count`` is a number from 1 and ``whole`` one from 0, ``number`` any from 0, ``steps`` a list
    of steps; ``text`` is kept as it is, and so is ``flag``, where true is ``yes`` and false ``no``."""
    meaning: str
    """One line for a person, with the unit."""
    names: tuple[str, ...]
    """Last words of config keys and columns, normalised, that mean just this and nothing else."""


def _known(kind: Kind, meaning: str, names: str) -> Known:
    return Known(kind=kind, meaning=meaning, names=tuple(n.strip() for n in names.split(",")))


FACTS: Mapping[str, Known] = {
    "gpus": _known(
        "count",
        "GPUs in the run",
        "gpus, world_size, num_gpus, n_gpus, num_devices, gpu_count, global_num_gpus",
    ),
    "gpu": _known("text", "GPU model", "gpu, gpu_name, gpu_type, device_name"),
    "parameters": _known(
        "count",
        "parameters of the model",
        "parameters, params, n_params, num_params, num_parameters, n_parameters, parameter_count,"
        "model_params, total_params",
    ),
    "active_parameters": _known(
        "count", "parameters used for one token", "active_parameters, active_params"
    ),
    "tokens_per_step": _known(
        "count", "tokens of one optimizer step", "tokens_per_step, global_batch_tokens"
    ),
    "batch_sequences": _known(
        "count",
        "sequences of one optimizer step",
        "global_batch_size, total_batch_size, total_train_batch_size, batch_sequences",
    ),
    "sequence_length": _known(
        "count",
        "tokens of one sequence",
        "sequence_length, seq_length, seq_len, max_seq_len, max_seq_length, block_size,"
        "context_length",
    ),
    "precision": _known(
        "text", "number format", "precision, dtype, mixed_precision, mixed_precision_param"
    ),
    "peak_lr": _known("number", "highest learning rate", "peak_lr, max_lr, learning_rate, lr"),
    "warmup_steps": _known(
        "whole",
        "steps of learning-rate warm-up; 0 is none",
        "warmup_steps, warmup_iters, lr_warmup_iters, lr_warmup_steps, num_warmup_steps",
    ),
    "warmup_ratio": _known(
        "number",
        "learning-rate warm-up as a share of the planned steps",
        "warmup_ratio, warmup_fraction, lr_warmup_fraction, warmup_proportion",
    ),
    "lr_schedule": _known(
        "text",
        "shape of the learning rate over the run",
        "lr_schedule, lr_scheduler_type, lr_scheduler, lr_decay_style",
    ),
    "optimizer": _known("text", "optimizer", "optimizer, optim, optimizer_name, optimizer_type"),
    "grad_clip": _known(
        "number",
        "gradient norm above which gradients are scaled down; 0 is never",
        "grad_clip, max_grad_norm, clip_grad, gradient_clip_val, clip_grad_norm, grad_norm_clip,"
        "gradient_clipping, grad_clip_norm, gradient_clip_norm, max_norm",
    ),
    "weight_decay": _known("number", "weight decay", "weight_decay"),
    "z_loss_weight": _known(
        "number",
        "weight of the squared log-partition of the output logits",
        "z_loss_weight, z_loss_coef, z_loss_coeff, z_loss_coefficient, z_loss_multiplier",
    ),
    "deduplicated": _known(
        "flag",
        "whether, or how, the training data was deduplicated",
        "deduplicated, dedup, dedupe, deduplication, dedup_method",
    ),
    "checkpoint_every": _known(
        "count",
        "steps between checkpoints",
        "checkpoint_every, save_steps, save_interval, save_every, checkpoint_interval, ckpt_every",
    ),
    "checkpoint_seconds": _known(
        "number", "seconds that training stands still for a checkpoint", "checkpoint_seconds"
    ),
    "checkpoints": _known("steps", "steps at which checkpoints were saved", "checkpoints"),
    "eval_every": _known(
        "whole",
        "steps between evaluations on held-out data; 0 is never",
        "eval_every, eval_steps, eval_interval, eval_freq, val_interval, val_every",
    ),
    "eval_strategy": _known(
        "text", "when held-out data is evaluated", "eval_strategy, evaluation_strategy"
    ),
    "stop_on_nonfinite": _known(
        "flag",
        "whether the trainer stops by itself at a NaN",
        "stop_on_nonfinite, stop_on_nan, terminate_on_nan, check_for_nan_in_loss_and_grad",
    ),
    "outcome": _known("text", "how the training ended, in the log's own words", "outcome"),
    "seed": _known("whole", "random seed", "seed, random_seed"),
    "data_seed": _known(
        "whole",
        "random seed of the order of the data",
        "data_seed, shuffle_seed, dataset_seed, data_shuffle_seed, sampler_seed",
    ),
    "data_order": _known(
        "text",
        "in which order data is read, or where that is recorded",
        "data_order, data_order_file, index_file",
    ),
    "shuffle": _known("flag", "whether data is shuffled", "shuffle, shuffle_data"),
    "tokenizer": _known(
        "text",
        "tokenizer",
        "tokenizer, tokenizer_name, tokenizer_name_or_path, tokenizer_path, tokenizer_model",
    ),
    "tokenizer_version": _known(
        "text",
        "revision or checksum of the tokenizer",
        "tokenizer_version, tokenizer_revision, tokenizer_sha256, tokenizer_hash",
    ),
    "deterministic": _known(
        "flag",
        "whether only algorithms are used that repeat bit by bit",
        "deterministic, full_determinism, deterministic_mode, use_deterministic_algorithms",
    ),
    "base_model": _known(
        "text",
        "trained model that this run goes on from",
        "base_model, base_model_name_or_path, pretrained_model_name_or_path, model_name_or_path",
    ),
    "lora_rank": _known(
        "count", "rank of low-rank adapters", "lora_rank, lora_r, lora_dim, adapter_rank"
    ),
    "algorithm": _known(
        "text",
        "how the model is trained: pretraining, sft, dpo, grpo, ppo, ...",
        "algorithm, rl_algorithm, adv_estimator, advantage_estimator, stage, training_stage",
    ),
    "kl_coefficient": _known(
        "number",
        "weight of the divergence of the policy from its reference",
        "kl_coefficient, kl_coef, kl_coeff, kl_loss_coef, init_kl_coef, kl_penalty_coef",
    ),
    "kl_estimator": _known(
        "text", "how the divergence is estimated from samples: k1, k2, k3, ...", "kl_estimator"
    ),
    "kl_loss_type": _known(
        "text", "how the divergence in the loss is estimated: low_var_kl, ...", "kl_loss_type"
    ),
    "entropy_coefficient": _known(
        "number",
        "weight of the entropy that is rewarded",
        "entropy_coefficient, entropy_coef, entropy_coeff, ent_coef, entropy_bonus",
    ),
    "total_steps": _known(
        "count", "planned optimizer steps", "total_steps, max_steps, train_iters, num_steps"
    ),
    "vocab_size": _known("count", "tokens in the vocabulary", "vocab_size, padded_vocab_size"),
    "experts": _known(
        "count", "experts per layer", "experts, num_experts, n_experts, num_local_experts"
    ),
    "top_k": _known(
        "count", "experts per token", "num_experts_per_tok, moe_router_topk, router_top_k"
    ),
    "aux_loss_coefficient": _known(
        "number",
        "weight of the load-balancing loss",
        "aux_loss_coefficient, aux_loss_coef, router_aux_loss_coef, moe_aux_loss_coeff",
    ),
    "gpu_hours_per_trillion": _known(
        "number", "GPU-hours per 1e12 tokens", "gpu_hours_per_trillion"
    ),
    "gpu_price": _known("number", "US dollars per GPU-hour", "gpu_price"),
    "mfu": _known("number", "model FLOP/s utilisation assumed, a fraction", "assumed_mfu"),
    "target_mfu": _known("number", "MFU to compare with, a fraction", "target_mfu"),
    "peak_tflops": _known("number", "peak TFLOP/s of one GPU", "peak_tflops"),
    "flops_convention": _known(
        "text", "how to count FLOPs: titan, megatron, hf, all-params", "flops_convention"
    ),
    "layers": _known(
        "count", "transformer layers", "num_layers, n_layers, n_layer,num_hidden_layers"
    ),
    "width": _known("count", "size of a hidden state", "hidden_size, n_embd, d_model"),
}
"""Every fact by name."""

_BY_NAME = {alias: fact for fact, known in FACTS.items() for alias in known.names}


def find_facts(config: Mapping[str, Any], source: str) -> dict[str, Fact]:
    """Pick the facts out of a configuration.

    Args:
        config: Names, nested or flat, and their values. Of a name only the last part counts,
            so that ``model/vocab_size`` and ``{"model": {"vocab_size": …}}`` say the same.
        source: Where the configuration stands, for the report.

    Returns:
        Fact name -> fact; the first mention of each wins, values of the wrong type are passed by.
    """
    found: dict[str, Fact] = {}
    stack: list[Mapping[str, Any]] = [config]
    while stack:
        level = stack.pop(0)
        for key, value in level.items():
            name = normalise(str(key)).replace(".", "/").rpartition("/")[2]
            if name not in _FORMATS and isinstance(value, Mapping):
                stack.append(value)
                continue
            fact, said = _meant(name, value)
            if fact is None or fact in found:
                continue
            checked = _value(FACTS[fact].kind, said)
            if checked is not None:
                found[fact] = Fact(value=checked, source=f"{source}, {key}")
    return found


def may_tell(name: str) -> bool:
    """Say whether a fact may stand under a name, as ``find_facts`` looks for them."""
    last = normalise(name).replace(".", "/").rpartition("/")[2]
    return last in _FORMATS or last in _BY_NAME


_FORMATS = ("bf16", "fp16")
"""Switches that name the number format: ``bf16: true``, or DeepSpeed's ``{"enabled": true}``."""


def _meant(name: str, value: Any) -> tuple[str | None, Any]:
    """Return the fact that a key of a configuration is about, if any, and what it says of it."""
    if name in _FORMATS:
        on = value.get("enabled") if isinstance(value, Mapping) else value
        return "precision", name if _flag(on) == "yes" else None
    fact = _BY_NAME.get(name)
    if fact == "warmup_steps" and isinstance(value, float) and 0 < value < 1:
        return "warmup_ratio", value  # transformers 5 takes less than one step as a share
    return fact, value


def _flag(value: Any) -> str | None:
    """Return ``yes`` or ``no`` for a switch, other text as it is, None for anything else."""
    if isinstance(value, bool) or (isinstance(value, (int, float)) and value in (0, 1)):
        return "yes" if value else "no"
    if not isinstance(value, str) or not value.strip():
        return None
    said = value.strip()
    return {"true": "yes", "on": "yes", "1": "yes", "false": "no", "off": "no", "0": "no"}.get(
        said.lower(), said.lower() if said.lower() in ("yes", "no") else said
    )


def _value(kind: Kind, value: Any) -> float | int | str | tuple[int, ...] | None:
    """Return ``value`` as ``kind``, or None where it is something else."""
    if kind == "text":
        return value.strip() if isinstance(value, str) and value.strip() else None
    if kind == "flag":
        return _flag(value)
    if kind == "steps":
        if isinstance(value, (list, tuple)) and all(isinstance(v, int) for v in value):
            return tuple(sorted(value))
        return None
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        value = _read(value)
    if not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        return None
    if kind == "number":
        return value
    whole = round(value)  # 124.44M is no whole number as a float
    if abs(value - whole) > _EXACT * max(1.0, value):
        return None
    return whole if kind == "whole" or whole >= 1 else None


_EXACT = 1e-9
"""Relative distance from a whole number up to which a float is that number."""


def _read(text: str) -> float | None:
    """Return the number that a text is, ``0.1`` or ``4M``; None where it is none."""
    for read in (float, quantity):
        with contextlib.suppress(ValueError):
            return read(text)
    return None


def given_fact(name: str, value: Any, source: str) -> tuple[str, Fact]:
    """Return a fact that the user gave, with its canonical name.

    Args:
        name: Name of the fact, or one it goes by.
        value: Its value; text such as ``4M`` is read as a count.
        source: Where it was given: ``--gpus``, ``stabcli.toml``.

    Raises:
        SettingError: There is no such fact, or the value is none of its kind.
    """
    fact = name if name in FACTS else _BY_NAME.get(normalise(name))
    if fact is None:
        raise SettingError(f"{source}: no such fact as {name!r}: {suggestion(name, FACTS)}")
    kind = FACTS[fact].kind
    read = value
    if isinstance(value, str) and kind == "steps":
        with contextlib.suppress(ValueError):
            read = [int(v) for v in value.split(",")]
    checked = _value(kind, read)
    if checked is None:
        where = (
            source
            if name.replace("_", "-") in source.lower().replace("_", "-")
            else f"{source}: {name}"
        )
        raise SettingError(f"{where}: takes {_TAKES[kind]}, not {value!r}")
    return fact, Fact(value=checked, source=source)


_TAKES: Mapping[Kind, str] = {
    "count": "a whole number from 1, such as 512, 7e9 or 4M",
    "whole": "a whole number such as 2000, or 0",
    "number": "a number from 0 on",
    "text": "a word",
    "flag": "yes, no or a word",
    "steps": "steps such as 1000,2000",
}
