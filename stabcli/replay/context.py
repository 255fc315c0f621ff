"""What is known of the run a batch comes from, and how to replay it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What is known of the run; None = unknown, and said so in the verdict."""

    logged_loss: float | None = None
    """Loss the log has for the flagged step."""
    logged_grad_norm: float | None = None
    """Gradient norm before clipping that the log has for the flagged step."""
    usual_loss: float | None = None
    """Median loss of the steps before the incident."""
    usual_grad_norm: float | None = None
    """Median gradient norm of the steps before the incident."""
    checkpoint_step: int | None = None
    """Step of the checkpoint the model was loaded from."""
    older_step: int | None = None
    """Step of the older checkpoint, where one is given."""
    mapping_correlation: float | None = None
    """Correlation of replayed and logged losses over neighbouring steps, where it was measured;
    None = nobody proved that these are the samples of that step."""
    tokenizer_size: int | None = None
    """IDs the tokenizer can produce: rows of the embedding beyond it are padding."""
    pad_id: int | None = None
    """ID used for padding, where there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to replay; the defaults are right for most."""

    micro_rows: int | None = None
    """Sequences a forward pass takes at once; None = all of them."""
    seed: int = 0
    """Of the placebo sets."""
