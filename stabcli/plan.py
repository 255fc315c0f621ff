"""Plan: where to roll back to, what to skip, and what else to change.

A plan is advice from what the log shows. It never names a checkpoint that nobody knows of
without saying so, and never goes back to a step after a non-finite row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stabcli.cost import CostReport
from stabcli.damage import GRAVE
from stabcli.evidence import constant_reward
from stabcli.incidents import ONE_PROCESS, STAYS, Incident
from stabcli.ledger import ledger
from stabcli.recipes import recipe
from stabcli.rollback import Rollback, went_bad
from stabcli.rules import RESCALED, STATISTIC
from stabcli.run import Run
from stabcli.units import Step
from stabcli.ways import Plan, count_alike, go_on, one_process, wait_and_see, watch

NEAR = 100
"""Steps to go back before an onset, and to skip around it.

Source: PaLM went back about 100 steps and skipped 200-500 batches; GLM-130B skipped 200.
"""
SKIP = 400
"""Most steps to skip after an onset."""
FAR = (1000, 3000)
"""Steps to go back by the field's rule of thumb."""


def plans(
    run: Run, incidents: Sequence[Incident], cost: CostReport
) -> tuple[tuple[Plan, ...], ...]:
    """Return for each incident the ways to recover, the recommended one first; none below error.

    But for a loss that is only counted otherwise, which rolling back would not mend.
    """
    del cost
    if not any(_grave(i) for i in incidents):
        return tuple(() for _ in incidents)
    view = Rollback(run, incidents, ledger(run))
    return tuple(_plans(view, i) if _grave(i) else () for i in incidents)


def _grave(incident: Incident) -> bool:
    counts = incident.severity in GRAVE or _recounted(incident)
    return counts and STATISTIC not in incident.tags


def _recounted(incident: Incident) -> bool:
    """Say whether an incident is a loss that is only counted otherwise."""
    return incident.severity == "warning" and RESCALED in incident.worst.tags


def _plans(view: Rollback, incident: Incident) -> tuple[Plan, ...]:
    """Choose the plans by what the incident is about and how it ended."""
    if _recounted(incident):
        return (count_alike(incident),)
    if not incident.unstable:
        return _mend(view, incident)
    if incident.family != "numerics":
        return _other(view, incident)
    if incident.ending == "rolled-back":
        return _already(view, incident)
    nonfinite = went_bad(incident)
    far, near = _rule_of_thumb(view, incident), _skip_batches(view, incident)
    again = "recurs-at-same-step" in incident.tags
    if ONE_PROCESS in incident.tags:
        return one_process(view.run, incident), near
    if incident.recovered is not None:
        wait = wait_and_see(incident)
        return (near, wait) if again else (wait, near)
    if f"{STAYS}grad_norm" in incident.tags and not went_bad(incident):
        return watch(incident), near
    long = incident.first - view.first >= LONG_RUN
    if long and (nonfinite or incident.ending == "diverged" or again):
        return far, near
    return near, far


LONG_RUN = 10 * FAR[0]
"""Steps before an incident from which going back the 1,000 of the rule of thumb is a small part."""


def _margin(view: Rollback, incident: Incident) -> int:
    """Return how far before an onset the weights may already have been going wrong."""
    ahead = 2 * (incident.worst.first - incident.lead.first)
    gradual = 20 * view.interval if "gradual-onset" in incident.tags else 0
    return max(NEAR, ahead, gradual)


def _rule_of_thumb(view: Rollback, incident: Incident) -> Plan:
    latest = incident.first - FAR[0]
    found = view.checkpoint(latest, incident)
    if found is None:
        latest = incident.first - _margin(view, incident)
        found = view.checkpoint(latest, incident)
    why = "the field's rule of thumb: 1,000 to 3,000 steps back, learning rate down 10-50 %"
    return _back(view, incident, "rule-of-thumb", latest, found, lr=(0.5, 0.9), why=why)


def _skip_batches(view: Rollback, incident: Incident) -> Plan:
    latest = incident.first - _margin(view, incident)
    found = view.checkpoint(latest, incident)
    why = (
        "PaLM went back about 100 steps and skipped 200-500 batches, GLM-130B skipped 200;"
        " neither changed the learning rate"
    )
    return _back(view, incident, "skip-batches", latest, found, lr=None, why=why)


def _back(
    view: Rollback,
    incident: Incident,
    name: str,
    latest: Step,
    found: tuple[Step, bool] | None,
    *,
    lr: tuple[float, float] | None,
    why: str,
) -> Plan:
    """Make a plan that rolls back."""
    near = min(NEAR, max(view.interval, incident.first // 10))  # early on there are few batches
    skip_last = min(max(incident.worst.peak, incident.first) + near, incident.first + SKIP)
    if found is None:
        step, known = (0 if view.begins_at_once else view.first), False
        start = "Start again from the beginning"
        if not view.begins_at_once:
            start = f"Go back to a checkpoint from before this log begins (step {view.first:,})"
    else:
        step, known = found
        start = f"Roll back to the checkpoint at step {step:,}"
        if not known:
            start = f"Roll back to the newest checkpoint at or before step {step:,}"
    skip_first = min(max(incident.first - near, step + 1), skip_last)
    parts = [start, f"skip the batches of steps {skip_first:,} to {skip_last:,}"]
    if lr is not None:
        parts.append(f"multiply the learning rate by {lr[0]:g} to {lr[1]:g}")
    text = f"{', '.join(parts[:-1])} and {parts[-1]}."
    if went_bad(incident) and incident.recovered is None:
        bad = min(f.first for f in incident.findings if not np.isfinite(f.value))
        text += (
            f" Every checkpoint saved from step {bad:,} on is void;"
            " replay the batch to see what did it."
        )
    text = _with_reason(text, view, latest, found, incident)
    if found is not None and not known and view.saved is None:
        why += "; no checkpoint is known: add --fact checkpoint_every=N"
    return Plan(
        name=name,
        roll_back_to=step,
        known_checkpoint=known,
        skip_first=skip_first,
        skip_last=skip_last,
        lr_factor=lr,
        text=text,
        why=why,
        redo=view.redo(step, incident),
        recipe=recipe(view.run, resume=step, skip=(skip_first, skip_last), lr=lr),
    )


def _with_reason(
    text: str, view: Rollback, latest: Step, found: tuple[Step, bool] | None, incident: Incident
) -> str:
    """Add why a plan goes back further than its own incident asks for."""
    passed = view.passed_over(latest, found, incident)
    return text if passed is None else f"{text} {passed}"


def _already(view: Rollback, incident: Incident) -> tuple[Plan, ...]:
    """Make the plans for an incident that the trainer itself went back from."""
    later = [a for a in view.run.attempts if a.attempt > incident.attempt]
    back = next((a for a in later if a.first_step <= incident.last), None)
    near = _skip_batches(view, incident)
    if back is None or "recurs-at-same-step" in incident.tags:
        return (near, _rule_of_thumb(view, incident))
    text = (
        f"Nothing more to do: attempt {back.attempt} went back to step {back.first_step:,} and did"
        " not meet it again. That alone does not prove that the data did it."
    )
    return (go_on("rolled-back", text, f"attempt {back.attempt} overwrote these steps"), near)


def _mend(view: Rollback, incident: Incident) -> tuple[Plan, ...]:
    """Make the plan for what no batch did, so that skipping batches would change nothing."""
    first, rule = f"step {incident.first:,}", incident.rule
    if rule == "frozen-values" and any(f.rule == "grad-norm-vanishing" for f in incident.telling):
        rule = "grad-norm-vanishing"  # which says why nothing moves
    if rule == "loss-broken":
        text = (
            "Start again once a single batch can be overfitted: look at the initialisation, at the"
            " checkpoint that was loaded and its format, at the labels and the tokenizer."
        )
        why = "the loss was never at a healthy level: there is no step to go back to"
        return (go_on("mend-the-set-up", text, why),)
    if rule == "frozen-values":
        over = f"from after {first}"
        if incident.recovered is not None:
            over = f"from steps {incident.first:,} to {incident.last:,}"
        text = (
            "Look whether anything trains there before you change it: compare two checkpoints"
            f" {over}. If their weights are the same, no update reaches them: look at the"
            " learning rate, at which parameters the optimizer holds, and at whether each batch is"
            " the same. If they differ, the logging repeats an old value: look at that, and at"
            " whether the job is alive."
        )
        why = "a number that repeats to the last digit is no instability: no batch to skip did it"
        return (go_on("find-what-stands-still", text, why),)
    found = view.checkpoint(incident.first - 1, incident)
    at = "from the beginning" if found is None else f"from the checkpoint at step {found[0]:,}"
    if found is not None and not found[1]:
        at = f"from the newest checkpoint at or before step {found[0]:,}"
    if rule == "grad-norm-vanishing":
        name = "mend-the-gradient"
        text = (
            f"Look at the labels of the batches from {first} on (is any left to predict?), at which"
            f" parameters require a gradient, and at the loss scale; then start again {at}."
        )
        why = "without a gradient no step trains anything, whatever its batch"
    else:
        name = "find-the-loss"
        text = (
            f"Find out what the loss is since {first}: whether it is still computed, and whether"
            f" the logging of it failed. If it is NaN, start again {at}; if not, only log it again."
        )
        why = "a loss that is not logged may be NaN, which trainers hide, or be well"
    text = _with_reason(text, view, incident.first - 1, found, incident)
    plan = go_on(name, text, why)
    if found is None:
        return (plan,)
    step, known = found
    redo = view.redo(step, incident)
    return (replace(plan, roll_back_to=step, known_checkpoint=known, redo=redo),)


def _drain(view: Rollback, incident: Incident) -> Plan:
    """Make the plan for a device, a link or a network that failed, and hurt no figure."""
    node = "the device or node that the line names out of service"
    later = [a for a in view.run.attempts if a.attempt > incident.attempt]
    past = next((a for a in later if a.last_step > incident.last), None)
    again = [
        i
        for i in view.incidents
        if i.attempt > incident.attempt and i.family == "hardware" and i.severity != "notice"
    ]
    if past is not None and again:
        text = f"Take {node}: such a fault came again at step {again[0].first:,} after a restart."
        return go_on("drain-the-node", text, "a restart alone did not mend it")
    if past is not None:
        text = (
            f"Nothing more to do for the run: attempt {past.attempt} began at step"
            f" {past.first_step:,}, went on to step {past.last_step:,} and did not meet it again."
            f" If it is not done yet, take {node} before the next run."
        )
        return go_on("restarted", text, f"attempt {past.attempt} went past step {incident.last:,}")
    text = (
        f"Take {node}, then go on from the newest checkpoint at or before step"
        f" {incident.first:,} with the same data."
    )
    return go_on("drain-the-node", text, "the log tells of hardware, no figure went wrong")


def _other(view: Rollback, incident: Incident) -> tuple[Plan, ...]:
    """Make the plan for an incident that is not about losses and gradients."""
    family = incident.family
    if family == "speed":
        text = (
            "Roll nothing back: the weights are fine. Look at checkpoint writing, evaluation, data"
            f" loading and the network around step {incident.first:,}, and for a slow node."
        )
        return (go_on("find-the-bottleneck", text, "only speed changed, not the loss"),)
    if family == "schedule":
        text = (
            f"Compare the learning rate at step {incident.first:,} with the schedule you meant; if"
            " the run was resumed there, load the scheduler's state too and start again from that"
            " checkpoint."
        )
        return (go_on("mend-the-schedule", text, "the learning rate left its own curve"),)
    if family == "hardware":
        return (_drain(view, incident),)
    if family == "process":
        text = (
            "Mend what the line names, then go on from the newest checkpoint at or before step"
            f" {incident.last:,} with the same data."
        )
        return (go_on("mend-and-go-on", text, "the process ended, no figure went wrong"),)
    if family == "restarts":
        text = "Nothing to roll back: save checkpoints more often if restarts like this come again."
        return (go_on("checkpoint-more-often", text, "steps were trained twice"),)
    found = view.checkpoint(incident.first - 1, incident)
    best = None if found is None else found[0]
    at = (
        f"the checkpoint at or before step {incident.first:,}"
        if best is None
        else (
            f"the checkpoint at step {best:,}"
            if found and found[1]
            else f"the newest checkpoint at or before step {best:,}"
        )
    )
    name, text, why = {
        "validation": (
            "stop-early",
            f"Stop, take {at}, and look for contamination in the shards read since.",
            "validation got worse while training went on",
        ),
        "routing": (
            "rebalance",
            f"Go back to {at} and raise the load-balancing loss, or add a router z-loss.",
            "the router no longer spreads its tokens",
        ),
        "policy": (
            "stop-early",
            f"Stop, read some answers, go back to {at} and raise the KL or entropy coefficient.",
            "the policy left the range that its reward can judge",
        ),
    }[family]
    same = constant_reward(view.run, incident) if family == "policy" else None
    if same is not None:
        name, why = "mend-the-reward", "rewards that are all alike teach nothing"
        text = (
            f"Stop, and run the reward function or verifier by hand on answers of steps"
            f" {same.first:,} to {same.last:,}: it gave {same.told} alike. If it is broken, mend it"
            f" and go on from {at} with the coefficients as they are."
        )
    text = _with_reason(text, view, incident.first - 1, found, incident)
    plan = go_on(name, text, why)
    if best is None:
        return (plan,)
    return (
        replace(
            plan,
            roll_back_to=best,
            known_checkpoint=bool(found and found[1]),
            redo=view.redo(best, incident),
        ),
    )
