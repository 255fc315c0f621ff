"""Ways: one way to recover from an incident, and those that roll nothing back."""

from __future__ import annotations

from dataclasses import dataclass

from stabcli.cost import Cost
from stabcli.evidence import lone_process
from stabcli.incidents import Incident
from stabcli.run import Run
from stabcli.units import Step, steps

PATIENCE = 200
"""Steps to wait for a spike to heal before skipping its batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One way to recover from an incident."""

    name: str
    """``rule-of-thumb``, ``skip-batches``, ``wait``, …"""
    roll_back_to: Step | None
    """Step of the checkpoint to go back to; None where nothing is rolled back."""
    known_checkpoint: bool
    """Whether a checkpoint is known to exist there, or the step is only where one is needed."""
    skip_first: Step | None
    """First step whose batches to skip."""
    skip_last: Step | None
    """Last step whose batches to skip."""
    lr_factor: tuple[float, float] | None
    """Range to multiply the learning rate by, e.g. (0.5, 0.9)."""
    text: str
    """The plan as one sentence."""
    why: str
    """What it rests on: the source of the figures, the evidence in the run."""
    redo: Cost
    """What has to be trained again."""
    recipe: tuple[str, ...] = ()
    """Flags or lines of configuration that do it in the framework the log came from."""


def go_on(name: str, text: str, why: str) -> Plan:
    """Make a plan that rolls nothing back."""
    return Plan(
        name=name,
        roll_back_to=None,
        known_checkpoint=False,
        skip_first=None,
        skip_last=None,
        lr_factor=None,
        text=text,
        why=why,
        redo=Cost(),
    )


def wait_and_see(incident: Incident) -> Plan:
    """Make the plan to go on, for an incident that healed."""
    text = (
        f"Go on: the loss was back at step {incident.recovered:,}. Keep the checkpoints before and"
        f" after, and skip the batches if it has not healed within {PATIENCE} steps next time."
    )
    return go_on("wait", text, f"recovered {steps(_after(incident))} after the onset")


def _after(incident: Incident) -> int:
    return (incident.recovered or incident.last) - incident.first


def watch(incident: Incident) -> Plan:
    """Make the plan for a gradient norm that stays high while the loss is at its level."""
    text = (
        f"Roll nothing back before you know what changed at step {incident.first:,}: the loss is at"
        " its level, the gradient norm is not. Look at the data, the clip, the loss scale, and at"
        " what the norm is summed over; roll back as soon as the loss follows."
    )
    return go_on("watch", text, "the gradient norm has not come back, the loss has not suffered")


def one_process(run: Run, incident: Incident) -> Plan:
    """Make the plan for a value that was not finite in one process while the others went on."""
    one = lone_process(run, incident)
    process = f"process {one.process}" if one is not None else "that process"
    at = f"step {incident.first:,}"
    text = (
        f"Look at the device of {process} and at its batches from {at} on. That the weights were"
        f" hurt is not proven: load a checkpoint saved after {at} and look whether all of it is"
        " finite and its loss is as before; go on from it if so."
    )
    return go_on("look-at-the-process", text, "the losses of the other processes stayed finite")


def count_alike(incident: Incident) -> Plan:
    """Make the plan for a loss that is a multiple of what it was, and otherwise the same."""
    at = f"step {incident.first:,}"
    text = (
        f"Look first at what changed in the logging or the configuration at {at}: accumulation"
        " steps, number of processes, sum or mean. If the loss is only counted otherwise there is"
        " nothing to roll back. If nothing changed, take it for a divergence and roll back to"
        f" before {at}."
    )
    why = "a run that diverges does not keep its noise, its slope and its gradient norm"
    return go_on("find-what-is-counted", text, why)
