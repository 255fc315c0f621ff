"""Metrics: the canonical columns, their units, and the names they go by.

Only names that several tools share stand here. The words of one framework live in the
reader of its format, which hands them over as its own mapping and is believed first.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One canonical column of a run's frame."""

    name: str
    """As it is called in the frame, in JSON and on the command line."""
    unit: str
    """Its unit after reading, whatever the log used."""
    meaning: str
    """One line for a person."""
    names: tuple[str, ...] = ()
    """Names in logs, normalised by ``normalise``, the most trusted first."""


def _metric(name: str, unit: str, meaning: str, names: str = "") -> Metric:
    spelt = tuple(n.strip() for n in names.split(",") if n.strip())
    return Metric(name=name, unit=unit, meaning=meaning, names=(name, *spelt))


_ALL = (
    _metric(
        "step",
        "optimizer steps",
        "optimizer step of the row",
        "train/global_step, trainer/global_step, global_step, training/global_step, num_updates,"
        "current_steps, iteration, train_step, train/step, update, steps, iter, batch_idx, batch,"
        "_step, x",
    ),
    _metric("epoch", "passes over the data", "epoch, fractional where logged", "train/epoch"),
    _metric(
        "wall_time",
        "s since 1970",
        "time of the row",
        "_timestamp, timestamp, wall_clock_time, created_at, datetime, time, ts, date",
    ),
    _metric(
        "elapsed_seconds",
        "s",
        "time since the start of the attempt",
        "_runtime, runtime, elapsed, elapsed_s, elapsed_time, train_wall, total_duration,"
        "relative_time_(process)",
    ),
    _metric(
        "tokens_seen",
        "tokens",
        "training tokens so far",
        "num_input_tokens_seen, num_tokens, consumed_tokens, total_tokens, tokens_total,"
        "optim/total_tokens, throughput/total_tokens, time/token, n_tokens_seen, trained_tokens,"
        "num_consumed_tokens, tokens/total, tokens",
    ),
    _metric(
        "samples_seen", "sequences", "training sequences so far", "consumed_samples, time/sample"
    ),
    _metric(
        "loss",
        "nats/token",
        "training loss of the row",
        "lm_loss, reduced_train_loss, loss_metrics/global_avg_loss, global_avg_loss, train/ce_loss,"
        "train/crossentropyloss, loss/train, train/loss, training_loss, train_loss, loss/total,"
        "train_loss_step, loss_step, gpt_loss, loss/out, loss/mean, train/loss_step, ce_loss,"
        "cross_entropy_loss, nll_loss, train_cross_entropy, total_loss",
    ),
    _metric(
        "objective_loss",
        "the objective's own",
        "loss of a policy or preference objective, which may be negative or sit near zero",
        "train/policy_loss, policy_loss, actor/pg_loss, actor_loss, train/actor_loss",
    ),
    _metric(
        "loss_max",
        "nats/token",
        "largest loss of any rank or micro-batch",
        "loss_metrics/global_max_loss, global_max_loss, max_loss",
    ),
    _metric(
        "grad_norm",
        "L2 norm",
        "global gradient norm before clipping",
        "actor/grad_norm, actor_grad_norm, optim/total_grad_norm, grad/norm/total,"
        "l2_norm/grad/global, optim/grad_norm, learning/grad_norm, gradient_norm, grad_norm_total,"
        "total_grad_norm, gradnorm, global_grad_norm, global_norm, gnorm, norm, grad",
    ),
    _metric(
        "learning_rate",
        "per step",
        "learning rate of the first parameter group",
        "optim/learning_rate, optim/learning_rate_group0, optim/lr_(group_0), current_lr,"
        "learning/current_learning_rate, actor/lr, actor_lr, lr/group0, lr_adamw, lr",
    ),
    _metric("loss_scale", "factor", "scale of the loss under fp16", "train/samples/loss_scale"),
    _metric(
        "skipped_steps",
        "steps per row",
        "optimizer steps skipped in the row",
        "number_of_skipped_iterations, optim/step_skipped, optim/skipped_step, skipped_iterations,"
        "inf_nan_skip_batches",
    ),
    _metric(
        "nonfinite_steps",
        "steps per row",
        "steps of the row whose loss was not finite",
        "number_of_nan_iterations, nan_iterations",
    ),
    _metric(
        "step_seconds",
        "s",
        "time of one step",
        "elapsed_time_per_iteration_(ms), elapsed_time_per_iteration_(s), iteration_time, time_metrics/end_to_end(s), step_time,"
        "step_time_s, step_time_ms, iter_time, iter_time_ms, time_per_step, perf/time_per_step,"
        "perf/step_time_seconds, seconds_per_step, sec_per_step, throughput/duration, dt,"
        "train_step_timing_in_s, time_per_iteration_ms, per_step_time, train_speed(s/it)",
    ),
    _metric(
        "tokens_per_second",
        "tokens/s, all GPUs",
        "throughput of the whole run",
        "tokens_per_sec, tokens/sec, tokens_per_s, tok_per_sec, tok/s, tok/sec, toks/s,"
        "throughput/tokens_per_second, throughput/tokens_per_sec, runtime/tokens_per_sec, tps",
    ),
    _metric(
        "tokens_per_second_per_gpu",
        "tokens/s per GPU",
        "throughput of one GPU",
        "tokens_per_sec_per_gpu, tokens/sec/gpu, toks/s/gpu, throughput(tps), perf/throughput,"
        "throughput/device/tps, throughput/device/tokens_per_second, wps, tgs,"
        "throughput/device/tokens_per_sec, tokens/train_per_sec_per_gpu,"
        "perf/per_device_tokens_per_sec, interval_tokens_per_second_per_device",
    ),
    _metric(
        "tflops_per_gpu",
        "TFLOP/s per GPU",
        "model FLOP/s of one GPU",
        "tflops, throughput_per_gpu_(tflop/s/gpu), tflop/s/device, model_tflops_per_gpu,"
        "tflops_per_sec_per_gpu, perf/per_device_tflops_per_sec",
    ),
    _metric(
        "mfu",
        "fraction",
        "model FLOP/s utilisation",
        "mfu(%), mfu_percent, bf16_mfu, throughput/device/mfu, throughput/mfu, device/mfu,"
        "perf/mfu, perf/mfu/actor, mfu/actor",
    ),
    _metric(
        "val_loss",
        "nats/token",
        "loss on held-out data",
        "eval_loss, eval/loss, val/loss, valid_loss, validation_loss, validation/loss, valid/loss,"
        "loss/validation, loss/val, loss/eval, validation_metrics/loss, lm_loss_validation,"
        "test_loss, dev_loss, metrics/eval/languagecrossentropy, eval/ce_loss",
    ),
    _metric(
        "val_perplexity",
        "exp(nats/token)",
        "perplexity on held-out data",
        "eval_ppl, eval_perplexity, eval/perplexity, eval/ppl, val_ppl, val/ppl, val/perplexity,"
        "valid_ppl, validation_perplexity, validation/perplexity, lm_loss_validation_ppl,"
        "metrics/eval/languageperplexity, perplexity, ppl",
    ),
    _metric(
        "aux_loss",
        "as logged",
        "load-balancing loss of a mixture of experts",
        "load_balancing_loss, moe_aux_loss, seq_load_balancing_loss, global_load_balancing_loss,"
        "loss/train/lbl, learning/moe_lb_loss, moe_lb_loss, router_aux_loss, moe/aux_loss,"
        "balance_loss",
    ),
    _metric("z_loss", "as logged", "router or output z-loss", "train/z_loss, router_z_loss"),
    _metric(
        "expert_load_ratio",
        "max/mean",
        "load of the busiest expert over the mean load",
        "load_imbalance, max_over_mean_load, moe/load_imbalance, expert_load_max_over_mean",
    ),
    _metric(
        "entropy",
        "nats/token",
        "entropy of the policy",
        "actor/entropy, actor/entropy_loss, entropy/all/mean, policy/entropy_avg, policy_entropy,"
        "train/entropy, objective/entropy, train/entropy_loss, entropy_loss, ent_loss",
    ),
    _metric("token_entropy", "nats/token", "entropy of the model's predictions on supervised data"),
    _metric(
        "reward",
        "the task's own",
        "mean reward of the rollouts",
        "critic/rewards/mean, critic/score/mean, train/reward, reward/mean, rewards/mean,"
        "objective/rlhf_reward, objective/scores, mean_reward, reward_mean, rollout/ep_rew_mean,"
        "averagereturn",
    ),
    _metric("reward_std", "the task's own", "spread of the rewards", "train/reward_std"),
    _metric(
        "val_reward",
        "the task's own",
        "reward or score on held-out tasks",
        "eval_reward, eval/reward, val/reward, eval_score, val_score, eval/score, val/score",
    ),
    _metric(
        "kl",
        "nats",
        "divergence of the policy from its reference",
        "actor/kl_loss, objective/kl, critic/kl, train/kl, kl_loss, kl_ref, mean_kl",
    ),
    _metric(
        "clip_fraction",
        "fraction",
        "share of tokens whose policy ratio was clipped",
        "actor/pg_clipfrac, clip_ratio/region_mean, clip_ratio, policy/clipfrac_avg,"
        "ppo_clip_ratio, pg_clipfrac, clipfrac, clip_frac",
    ),
    _metric(
        "response_length",
        "tokens",
        "mean length of the responses",
        "response_length/mean, completions/mean_length, completion_length, gen_len",
    ),
    _metric(
        "response_clip_fraction",
        "fraction",
        "share of responses cut at the length limit",
        "response_length/clip_ratio, completions/clipped_ratio, truncated_ratio",
    ),
    _metric(
        "dead_group_fraction",
        "fraction",
        "share of prompt groups whose rewards are all equal",
        "frac_reward_zero_std",
    ),
    _metric(
        "batch_tokens",
        "tokens per step",
        "tokens of one optimizer step, where it varies",
        "tokens_per_step, batch_size_tokens, global_batch_tokens, wpb",
    ),
    _metric(
        "batch_sequences",
        "sequences per step",
        "sequences of one optimizer step",
        "global_batch_size, batch_size",
    ),
    _metric(
        "sequence_length",
        "tokens",
        "length of the training sequences, where it is changed as the run goes",
        "seq_len, seq_length, seqlen, context_length, max_seq_len, train_seq_len,curriculum_seqlen",
    ),
    _metric(
        "data_stage",
        "number of the stage",
        "stage of the training data, where they are mixed anew as the run goes",
        "stage, curriculum_stage, training_stage, data/stage",
    ),
    _metric("gpus", "GPUs", "GPUs in use at the row", "world_size, num_gpus, n_gpus, num_devices"),
)

METRICS: Mapping[str, Metric] = {m.name: m for m in _ALL}
"""Every canonical column by name, in the order reports show them."""
COMPUTED_FROM = {"val_perplexity": "val_loss", "tokens_per_second": "step_seconds"}
"""What a rule computes a metric from where it was not logged."""

RL_WORDS = (
    "reward",
    "kl",
    "clip_ratio",
    "completions",
    "critic",
    "advantage",
    "ppo",
    "grpo",
    "rollout",
)
"""First words of names that only reinforcement learning logs; they decide what ``loss`` means."""

PREFERENCE_WORDS = ("rewards/chosen", "rewards/rejected", "logps/chosen", "chosen_rewards")
"""Names that only preference tuning (DPO and kin) logs."""

_LEADING = ("metrics/train/", "loss_metrics/", "training/", "train/", "train_", "train.")


def normalise(name: str) -> str:
    """Return ``name`` in the one spelling that names are compared in.

    ``'LM-Loss ' -> 'lm_loss'``, ``'grad norm' -> 'grad_norm'``.
    """
    return re.sub(r"[\s\-]+", "_", unicodedata.normalize("NFC", name).strip().lower())


def is_rl(names: Iterable[str]) -> bool:
    """Say whether columns of these names come from reinforcement learning."""
    words = (n.removeprefix("train/").removeprefix("objective/") for n in map(normalise, names))
    return any(w.startswith(RL_WORDS) and not w.startswith("rewards/") for w in words)


CHOSEN_REWARDS = ("chosen_rewards", "rewards/chosen", "chosen_reward", "implicit_reward_chosen")
"""Last words of the column that holds the implicit reward of the preferred answers."""


def is_chosen_reward(name: str) -> bool:
    """Say whether a column is the implicit reward of the answers to be preferred, in training."""
    spelt = normalise(name)
    held_out = spelt.startswith(("eval", "val", "test"))
    return spelt.endswith(CHOSEN_REWARDS) and not held_out


def resolve(names: Iterable[str], chosen: Mapping[str, str] | None = None) -> dict[str, str]:
    """Map canonical columns to the log's own names.

    Args:
        names: The log's columns, in order.
        chosen: Canonical name -> own name, decided by the user or the reader; believed first.

    Returns:
        Canonical name -> own name. No own name serves twice.
    """
    own = list(dict.fromkeys(names))
    found = {c: o for c, o in (chosen or {}).items() if o in own}
    used = set(found.values())
    spelt: dict[str, str] = {}
    for name in own:
        spelt.setdefault(normalise(name), name)
    for name in own:
        key = normalise(name)
        for lead in _LEADING:
            if key.startswith(lead):
                spelt.setdefault(key.removeprefix(lead), name)
                break
    policy = is_rl(own) or any(normalise(n).endswith(PREFERENCE_WORDS) for n in own)
    for metric in METRICS.values():
        target: str = metric.name
        if target == "loss" and policy:
            target = "objective_loss"
        if target in found:
            continue
        for alias in metric.names:
            own_name = spelt.get(alias)
            if own_name is None or own_name in used:
                continue
            if target == "entropy" and not policy:
                target = "token_entropy"
            found[target] = own_name
            used.add(own_name)
            break
    return found
