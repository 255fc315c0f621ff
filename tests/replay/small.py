"""One small trained model a kind, made once a test run, with its planter and its calibration."""

import functools
from dataclasses import dataclass

import torch

from stabcli.replay.batch import Batch
from stabcli.replay.cascade import Context, replay
from stabcli.replay.controls import Calibration, calibrate
from stabcli.replay.probes import Probe, examined
from stabcli.replay.verdict import Verdict
from tests.replay import faults, models

ROWS, LENGTH, STEPS = 8, 64, 200


@dataclass(frozen=True, eq=False)
class World:
    """A model and what is clean to it."""

    model: torch.nn.Module
    plant: faults.Planter
    references: list[Batch]
    calibration: Calibration
    optimizer: torch.optim.Optimizer
    log: list[tuple[float, float]]
    older: dict[str, torch.Tensor]
    """Weights at half of the training."""

    def replay(self, case: faults.Case, model: torch.nn.Module | None = None, **known) -> Verdict:
        context = known.pop("context", Context(pad_id=models.PAD))
        if model is None:
            known.setdefault("calibration", self.calibration)
        subject = self.model if model is None else model
        return replay(subject, case.batch, self.references, context=context, **known)

    def copy(self, weights: dict[str, torch.Tensor] | None = None) -> torch.nn.Module:
        """Another model with these weights, or the same."""
        arch = "llama" if "Llama" in type(self.model).__name__ else "gpt2"
        twin = models.untrained(arch, self.plant.text.rows, width=64, layers=2)
        twin.load_state_dict(weights or self.model.state_dict())
        return twin.eval()


@functools.cache
def world(arch: str) -> World:
    """Train the model of this kind, about four seconds of one core."""
    torch.set_num_threads(1)
    text = models.text(600, 250)
    model = models.untrained(arch, text.rows, width=64, layers=2)
    half = {}

    def keep(step: int, optimizer: torch.optim.Optimizer) -> None:
        if step == STEPS // 2:
            half.update({k: v.clone() for k, v in model.state_dict().items()})

    optimizer, log = models.train(
        model, text.train, steps=STEPS, peak=5e-3, batch=ROWS, length=LENGTH, warm=20, after=keep
    )
    plant = faults.Planter(text, ROWS, LENGTH)
    references = plant.references()
    with examined(model):
        calibration = calibrate(Probe(model), references, ROWS)
    return World(model, plant, references, calibration, optimizer, log, half)
