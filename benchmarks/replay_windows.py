"""Which step of a window did the damage: windows with a planted fault, at two places of a run."""

from collections import defaultdict

from stabcli.replay.controls import calibrate
from stabcli.replay.probes import Probe
from stabcli.replay.window import damages, judged
from tests.replay import faults, models

from replay_cases import FIRST_SEED, OLDER, STEPS, line, mean, model_of


def windows(cache, plant, arch, steps, repeats):
    """Windows of 8 batches with a fault in one: (told, where it is, whether it alone stands out)."""
    makers = {
        "repeated-ngrams": plant.ngrams, "one-id": lambda s: plant.one_id(s, 6), "random-ids": lambda s: plant.random_ids(s, 16, 0.9),
        "labels-shifted": lambda s: plant.labels_shifted(s, 16), "padding": plant.padding_trained, "none": plant.untouched,
    }  # fmt: skip
    model, state = model_of(cache, plant.text, arch, seed=1, steps=steps)
    probe, optimizer = Probe(model), models.adamw(model)
    optimizer.load_state_dict(state)
    calibration = calibrate(probe, plant.references(), plant.rows)
    found = defaultdict(list)
    for repeat in range(repeats):
        seed = FIRST_SEED + 100 * repeat
        # each step is taken from the same state, so one run of the clean ones does for all windows
        batches = [plant.untouched(seed + 7 * i).batch for i in range(8)]
        batches += [make(seed + 3).batch for make in makers.values()]
        got = damages(probe, batches, plant.references(2), optimizer, clip=1.0)
        for i, name in enumerate(makers):
            where = (seed // 100 + len(name)) % 8
            window = judged([*got[:where], got[8 + i], *got[where + 1 : 8]], calibration)
            found[name].append((window.guilty, where, window.odd == (where,)))
    return found


def guilty_steps(cache, text, repeats):
    """The step of a window that did the damage: in the middle of a run, and at the end of its cosine."""
    for place, steps in (("mid-run", OLDER), ("at the end", STEPS)):
        found = defaultdict(list)
        for arch in ("llama", "gpt2"):
            for name, rows in windows(cache, faults.Planter(text), arch, steps, repeats).items():
                found[name] += rows
        show_windows(place, found)


def show_windows(place, found):
    none = found.pop("none")
    every = [each for rows in found.values() for each in rows]
    told = [guilty == where for guilty, where, _ in every if guilty is not None]
    right = mean([guilty == where for guilty, where, _ in every])
    line(
        f"the step of a window that did the damage, {place} ({len(every)} windows)",
        "95 %",
        f"{right:.1%}",
        right >= 0.95,
    )
    print(
        f"{'':4}told in {len(told)}, right in {sum(told)} of them; the faulty batch alone stands out in"
        f" {mean([odd for *_, odd in every]):.0%}; told in {sum(g is not None for g, *_ in none)}"
        f" of {len(none)} windows without a fault"
    )
    for name, rows in found.items():
        print(f"{'':8}{name:20} told and right {sum(g == w for g, w, _ in rows)} of {len(rows)}")
