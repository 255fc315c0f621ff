"""Recorder: keeps the last batches of a training loop and writes them down when the loss spikes.

Nothing heavy is imported here, and nothing waits for a GPU: values on one are copied without
blocking and judged once they have arrived. A recorder never ends a training run: a folder that
cannot be written to is a warning. What is written are token IDs, never text; a tokenizer turns
them back into text, so treat them as the data they come from.

    record = Recorder("flagged")
    for step, batch in enumerate(loader, start=1):
        ...
        record(step, batch["input_ids"], labels=batch["labels"], loss=loss, grad_norm=norm)
    record.flush()

With transformers: ``Trainer(..., callbacks=[callback("flagged")])``. The files are read by
``stabcli replay-batch CHECKPOINT --batch FILE``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stabcli.record._dump import Labels
from stabcli.record._recorder import Recorder

__all__ = ["Labels", "Recorder", "callback"]


def callback(folder: str | Path, **settings: Any) -> Any:
    """Return a callback for transformers' ``Trainer`` that records what the model is fed.

    Batches and losses are caught at the model's forward pass, in training only, every step.
    Gradient norms come from the trainer's log: with ``logging_steps=1`` every step's is judged.

    Args:
        folder: Where to write.
        **settings: What ``Recorder`` takes.
    """
    from transformers import TrainerCallback

    recorder = Recorder(folder, **{"labels": "own", **settings})

    class RecorderCallback(TrainerCallback):
        """Feeds a ``Recorder``."""

        def __init__(self) -> None:
            self.recorder = recorder
            self._losses: list[Any] = []
            self._summed = False
            self._hook: Any = None
            self._ended: int | None = None
            self._grad_norm: Any = None

        def _seen(self, module: Any, arguments: tuple[Any, ...], named: Any, out: Any) -> None:
            if not module.training:
                return
            ids = named.get("input_ids", arguments[0] if arguments else None)
            if ids is None:
                return
            names = ("labels", "attention_mask", "position_ids")
            recorder.batch(ids, **{name: named.get(name) for name in names})
            loss = out.get("loss") if isinstance(out, dict) else getattr(out, "loss", None)
            if loss is not None:
                self._losses.append(loss.detach())
            self._summed = named.get("num_items_in_batch") is not None

        def _finish(self) -> None:
            """Close the step that has ended, once the trainer may have logged it."""
            if self._ended is None:
                return
            losses, self._losses = self._losses, []
            loss = None
            if losses:  # parts of one mean where the trainer says of how many targets
                loss = sum(losses[1:], losses[0]) / (1 if self._summed else len(losses))
            recorder.step(self._ended, loss=loss, grad_norm=self._grad_norm)
            self._ended = self._grad_norm = None

        def on_train_begin(self, *_: Any, **named: Any) -> None:
            self._hook = named["model"].register_forward_hook(self._seen, with_kwargs=True)

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self._finish()

        def on_step_end(self, *seen: Any, **_: Any) -> None:
            self._ended = seen[1].global_step

        def on_log(self, *seen: Any, **named: Any) -> None:
            if self._ended == seen[1].global_step:
                self._grad_norm = (named.get("logs") or {}).get("grad_norm", self._grad_norm)

        def on_train_end(self, *_: Any, **__: Any) -> None:
            self._finish()
            recorder.flush()
            if self._hook is not None:
                self._hook.remove()

    return RecorderCallback()
