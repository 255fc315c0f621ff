"""The cascade: from a flagged batch and a checkpoint to a verdict, cheapest question first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from stabcli.replay.batch import Batch
from stabcli.replay.verdict import Verdict


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

    device: str = "cpu"
    """Where the model stands: it is not moved, batches are sent there."""
    micro_rows: int | None = None
    """Sequences a forward pass takes at once; None = all of them."""
    window_lengths: tuple[int, ...] = (1, 4, 16, 64)
    """Lengths of the stretches that are compared with the controls, tokens."""
    max_tests: int = 24
    """Repairs tried before the search is called inconclusive."""
    seed: int = 0
    """Of the placebo sets."""


def replay(
    model: nn.Module,
    batch: Batch,
    references: Sequence[Batch],
    *,
    context: Context = Context(),
    settings: Settings = Settings(),
    older: nn.Module | None = None,
) -> Verdict:
    """Run the batch on the model again and say what was wrong with it.

    Args:
        model: Maps tokens to logits of every position: a Hugging Face causal LM, or a module that
            returns logits (or a tuple that begins with them). It is left as it was, bit for bit,
            without gradients.
        batch: The flagged batch.
        references: At least two clean batches of the same size, best from neighbouring steps.
        context: What the log and the checkpoint say.
        settings: How to replay.
        older: The same model from an earlier checkpoint: tells a bad batch from a bad meeting of
            batch and state.

    Returns:
        The verdict, whatever it is.

    Raises:
        ReplayError: The model or the batch cannot be used at all.
    """
    raise NotImplementedError
