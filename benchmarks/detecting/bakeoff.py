"""A bake-off: runs of 4,000 steps with one plain fault each, or none, and what must be said of each.

The kinds are those that tools of this sort are usually shown: clean ones, one of them with heavy
tails and one with easier data half-way; a spike of one row, one that heals, a small one, ten of
them; a step up, a slow climb, a divergence; NaN, and NaN that the trainer hid; a run of large
gradients; slower steps; a restart; collapsed routing and entropy.
"""

import numpy as np

from detecting.clean import assembled

ROWS = 4000


def plain(r):
    """Columns of a clean pretraining run: a power law, a lognormal norm, a cosine, even steps."""
    s = np.arange(1, ROWS + 1)
    warm = np.minimum(s / 200, 1)
    done = np.clip((s - 200) / (ROWS - 200), 0, 1)
    return {
        "step": s,
        "loss": r.uniform(1.7, 2.1) + 8.5 * (s + 20.0) ** -0.42 + r.normal(0, 0.035, ROWS),
        "grad_norm": 0.35 * r.lognormal(0, 0.18, ROWS) * (1 + 4 * np.exp(-s / 80)),
        "learning_rate": 3e-4 * warm * (0.55 + 0.45 * np.cos(np.pi * done)),
        "step_time": 1.2 + np.abs(r.normal(0, 0.015, ROWS)),
    }


def heavy(c, r, at):
    c["loss"] += 0.03 * r.standard_t(4, ROWS)


def easier(c, r, at):
    c["loss"][at:] -= 0.25


def step_up(c, r, at):
    c["loss"][at:] += 0.30


def one_row(c, r, at):
    c["loss"][at] += 1.5
    c["grad_norm"][at] *= 12


def heals(c, r, at):
    far = np.arange(200)
    c["loss"][at : at + 200] += 1.8 * np.exp(-far / 40)
    c["grad_norm"][at - 10 : at] *= np.linspace(1, 9, 10)
    c["grad_norm"][at : at + 40] *= np.linspace(9, 1, 40)


def small(c, r, at):
    c["loss"][at : at + 60] += 0.3 * np.exp(-np.arange(60) / 20)


def ten(c, r, at):
    for i in range(700, 3700, 300):
        c["loss"][i : i + 60] += 1.2 * np.exp(-np.arange(60) / 15)
        c["grad_norm"][i : i + 10] *= 8


def diverges(c, r, at):
    left = np.arange(ROWS - at)
    c["loss"][at:] += np.minimum(5, 0.02 * left)
    c["grad_norm"][at - 40 :] *= np.minimum(30, np.exp(np.arange(ROWS - at + 40) / 100))


def climbs(c, r, at):
    c["loss"][at:] += 0.0003 * np.arange(ROWS - at)


def nan(c, r, at):
    c["loss"][at:] = c["grad_norm"][at:] = np.nan


def hidden(c, r, at):
    c["loss"][at:] = 0.0
    c["grad_norm"][at:] = np.nan


def gradients(c, r, at):
    c["grad_norm"][at : at + 80] *= 15


def slower(c, r, at):
    c["step_time"][at : at + 600] *= 1.43


def slower_for_good(c, r, at):
    c["step_time"][at:] *= 1.15


def resumes(c, r, at):
    back = np.r_[0:at, at - 500 : ROWS]
    for k in c:
        c[k] = c[k][back]


def routing(c, r, at):
    aux = 1.02 + 0.02 * r.normal(size=ROWS)
    aux[at:] = np.minimum(8, 1.02 + 0.01 * np.arange(ROWS - at))
    c["load_balancing_loss"] = aux


def entropy(c, r, at):
    c["entropy"] = 0.8 * np.exp(-c["step"] / 300) + 0.002
    c["reward"] = 1 - np.exp(-c["step"] / 500)


CASES = (
    *((f"clean {i}", lambda c, r, at: None, (), None) for i in range(1, 6)),
    ("clean, heavy tails", heavy, (), None),
    ("clean, easier data", easier, (), None),
    ("step up", step_up, ("loss-shift", "loss-spike", "loss-divergence"), 40),
    ("one row", one_row, ("loss-spike",), 1),
    ("spike that heals", heals, ("loss-spike",), 15),
    ("small spike", small, ("loss-spike", "loss-shift"), 15),
    ("ten spikes", ten, ("loss-spike",), None),
    ("divergence", diverges, ("loss-divergence", "loss-spike"), 60),
    ("slow climb", climbs, ("loss-divergence",), 400),
    ("NaN", nan, ("nonfinite",), 1),
    ("hidden NaN", hidden, ("hidden-nonfinite",), 1),
    ("run of gradients", gradients, ("grad-norm-spike", "grad-norm-run"), 2),
    ("slower for 600 rows", slower, ("throughput-drop",), 20),
    ("slower for good", slower_for_good, ("throughput-drop",), 20),
    ("restart", resumes, ("discarded-steps",), None),
    ("routing collapse", routing, ("moe-aux-loss",), 120),
    ("entropy collapse", entropy, ("entropy-collapse",), None),
)
"""Name, fault, the rules one of which must tell of it, and how many rows off the onset may be."""


def wrong(detector, seed):
    """Return the cases of one seed that a detector gets wrong, and how.

    Right is: nothing of warning or worse in a clean run, and in a bad one that one of the case's
    rules tells of it where it begins, and no rule of another family tells of anything elsewhere.
    """
    out = []
    for k, (name, fault, told, near) in enumerate(CASES):
        r = np.random.default_rng([seed, k])
        columns, at = plain(r), int(r.integers(2400, 3100))
        fault(columns, r, at)
        run = assembled(name, columns)
        hits = detector.look(run) if name != "restart" else detector.look(run, least="notice")
        said = [h for h in hits if h.what.split()[0] in told]
        if not told and hits:
            out.append(f"{name}: {hits[0].what} at {hits[0].first}")
        elif told and not said:
            out.append(f"{name}: nothing of {' or '.join(told)}")
        elif near is not None:
            nearest = min(abs(h.first - (at + 1)) for h in said)
            if nearest > near:
                out.append(f"{name}: {nearest:.0f} rows off")
            early = [h for h in hits if h.first < at - 50 - near]
            if early:
                out.append(f"{name}: besides, {early[0].what} at {early[0].first}")
        elif name == "ten spikes" and len({h.first // 300 for h in said}) < 10:
            out.append(f"{name}: {len(said)} of 10")
    return out
