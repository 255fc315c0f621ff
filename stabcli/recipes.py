"""Recipes: the flags or lines of configuration that go back and skip batches, by framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from stabcli.run import Run
from stabcli.units import Step

Recipe = Callable[[Step, int, int], tuple[str, ...]]
"""Makes the lines from the step to resume from and the first and last step to skip."""


def _megatron(resume: Step, first: Step, last: Step) -> tuple[str, ...]:
    return (
        f"echo {resume} > CHECKPOINTS/latest_checkpointed_iteration.txt",
        f"--load CHECKPOINTS --iterations-to-skip $(seq {first} {last})",
    )


def _megatron_deepspeed(resume: Step, first: Step, last: Step) -> tuple[str, ...]:
    return (
        f"echo {resume} > CHECKPOINTS/latest_checkpointed_iteration.txt",
        f"--load CHECKPOINTS --skip-train-iteration-range {first}-{last}",
    )


def _olmo_core(resume: Step, first: Step, last: Step) -> tuple[str, ...]:
    return (
        f"load_path: CHECKPOINTS/step{resume}",
        f"steps_to_skip: [StepSkipRange(start={first}, stop={last + 1})]",
    )


def _lightning(resume: Step, first: Step, last: Step) -> tuple[str, ...]:
    return (
        f'trainer.fit(model, ckpt_path="CHECKPOINTS/step={resume}.ckpt")',
        f"seq {first} {last} | jq -s . > skip_batches.json",
    )


def _hf_trainer(resume: Step, first: Step, last: Step) -> tuple[str, ...]:
    return (
        f"--resume_from_checkpoint OUTPUT_DIR/checkpoint-{resume}",
        f"# no flag skips batches: leave those of steps {first} to {last} out of the dataset",
        "# or meet other data: --ignore_data_skip and another --data_seed",
    )


def _torchtitan(resume: Step, first: Step, last: Step) -> tuple[str, ...]:
    return (
        f"--checkpoint.load_step {resume}",
        f"# torchtitan skips no batches by itself: leave steps {first} to {last} out of the loader",
    )


_RECIPES: Final[dict[str, Recipe]] = {
    "megatron": _megatron,
    "megatron-deepspeed": _megatron_deepspeed,
    "olmo-core": _olmo_core,
    "lightning": _lightning,
    "hf-trainer": _hf_trainer,
    "torchtitan": _torchtitan,
}
"""By name of the reader.

Sources: Megatron-LM training/arguments.py (--iterations-to-skip, counted from 1), GLM-130B
(--skip-train-iteration-range), OLMo-core train/config.py (StepSkipRange, stop exclusive),
Lightning fabric/utilities/spike.py (skip_batches.json), transformers TrainingArguments.
"""


def recipe(
    run: Run, *, resume: Step, skip: tuple[Step, Step], lr: tuple[float, float] | None
) -> tuple[str, ...]:
    """Return what to type; empty where the log does not tell the framework.

    Args:
        run: The run; its reader is the framework.
        resume: Step of the checkpoint to go back to.
        skip: First and last step whose batches to leave out.
        lr: Range to multiply the learning rate by, if it should change.
    """
    known = _RECIPES.get(run.reader)
    if known is None:
        return ()
    lines = known(resume, *skip)
    peak = run.fact("peak_lr")
    if lr is not None and peak:
        lines += (f"# learning rate: {peak * lr[0]:.3g} to {peak * lr[1]:.3g} instead of {peak:g}",)
    return lines
