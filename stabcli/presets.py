"""Presets: sets of rules by name, those of this project and those that others published."""

from __future__ import annotations

from collections.abc import Mapping

PRESETS: Mapping[str, str] = {
    "default": "the robust rules of this project",
    "seed": "the field's rules of thumb, to the letter",
    "adagc": "AdaGC: clip where a gradient norm is above 1.05 times its moving average",
    "arc": "arc-training: ten times the mean of the last five losses",
    "axlearn-drop": "axlearn: updates dropped at 20 times the moving average of the gradient norm",
    "axolotl-watchdog": "axolotl: loss above a threshold, three times in a row",
    "goodput": "ml-goodput-measurement: steps beyond median and three deviations",
    "levanter-clipupdate": "levanter: updates clipped at mean and three deviations",
    "levanter-skip": "levanter: steps skipped at mean and six deviations",
    "lightning-earlystop": "Lightning: validation loss that no longer falls, or is not finite",
    "lightning-spike": "Lightning: three times the mean of the last ten losses",
    "llmfoundry-killlossspike": "llm-foundry: twice the mean of the window, five times in a row",
    "megatron-rerun": "Megatron-LM: not finite, or ten times the highest of the first hundred",
    "metaseq-ewm": "metaseq: a ratio to the exponentially weighted mean that the user chooses",
    "nvrx-straggler": "NVIDIA resiliency extension: below three quarters of the best speed",
    "olmo-skipstep": "OLMo-core: steps skipped at mean and six deviations",
    "olmo-stability": "OLMo-core: spikes counted at mean and six deviations",
    "olmo2-paper": "OLMo 2: spikes counted at mean and seven deviations of a thousand",
    "qk-clip": "Megatron-LM: attention logits above 100",
    "smdebug": "SageMaker Debugger: losses, overfitting, overtraining, stalls, slow steps",
    "soup": "Soup: loss above 3, five times in a row",
    "trainscope-cusum": "trainscope: cumulative sum over median and deviation of the last 200",
    "trainscope-z": "trainscope: 3.5 deviations of all values so far",
    "trl-skywork": "TRL, after Skywork-OR1: entropy below 0.2",
    "verl-rolloutcorr": "verl: limits of the correction between rollout and training",
    "wandb-watcher": "a hand-written watcher of W&B runs: 8 deviations, two at 6, clipping, speed",
    "zclip": "ZClip: clip where a gradient norm is 2.5 deviations above its moving average",
}
"""Every preset and what it is, in one line."""
