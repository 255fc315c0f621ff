"""Learning rate, restarts and loss scale: what the default rules say of them."""

import numpy as np
import pytest

from stabcli.rules import run_rules, select
from tests.rules.runs import findings, grave, healthy, make_run, skipped

RULES = ("lr-jump", "discarded-steps", "resume-bump", "repeated-data", "loss-scale-collapse")


def restarted(seed=0, stop=1500, back=1000, end=2000, noise=0.035):
    """Columns of a healthy run that went back at ``stop`` to ``back``, with fresh noise after."""
    first, second = healthy(2000, seed, noise), healthy(2000, seed + 500, noise)
    return {k: np.concatenate([first[k][:stop], second[k][back:end]]) for k in first}


# --- quiet ------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.0, 0.035, 0.2])
@pytest.mark.parametrize("seed", range(8))
def test_healthy_runs_are_silent(seed, noise):
    """A clean run has no finding, a clean restart only the notice of its discarded steps."""
    clean, _ = run_rules(make_run(**healthy(2000, seed, noise)), select((), RULES))
    again, _ = run_rules(make_run(**restarted(seed, noise=noise)), select((), RULES))

    assert clean == []
    assert [(f.rule, f.severity) for f in again] == [("discarded-steps", "notice")]


@pytest.mark.parametrize(
    "rates",
    [
        [3e-4] * 200,
        np.linspace(0, 3e-4, 200),
        np.concatenate([np.zeros(20), np.linspace(0, 3e-4, 60), np.linspace(3e-4, 3e-5, 120)]),
        3e-4 * 0.5 ** (np.arange(200) // 50),
        np.concatenate([np.linspace(3e-6, 3e-4, 100), 3e-4 * np.linspace(1, 0, 100)]),
    ],
    ids=["constant", "ramp", "skipped-then-warm-up", "staircase", "triangle"],
)
def test_usual_schedules_are_silent(rates):
    """Schedules that only warm up and decay have no leap."""
    assert findings(make_run(learning_rate=rates), "lr-jump") == []


@pytest.mark.parametrize(("cycles", "least"), [(2, 0.0), (3, 0.0), (3, 0.1), (5, 0.1)])
def test_cosine_restarts_are_notices(cycles, least):
    """A schedule that restarts from nothing or at a fixed distance is planned."""
    length = 1000
    phase = np.arange(cycles * length) % length / length
    rates = 3e-4 * (least + (1 - least) * 0.5 * (1 + np.cos(np.pi * phase)))

    found = findings(make_run(learning_rate=rates), "lr-jump")

    assert [f.severity for f in found] == ["notice"] * (cycles - 1)


def test_adapted_rate_is_one_statistic():
    """A rate that goes up and down all the time is adapted as the run goes."""
    random = np.random.default_rng(0)
    rates = 1e-3 * 1.6 ** random.integers(0, 5, 500)

    found = findings(make_run(learning_rate=rates), "lr-jump")

    assert [(f.severity, f.tags) for f in found] == [("notice", ("statistic",))]


@pytest.mark.parametrize("seed", range(5))
def test_divergence_before_a_rollback_is_no_repeated_data(seed):
    """A run taken back because its loss had gone bad is better the second time, and bumps nothing."""
    columns = restarted(seed)
    columns["loss"][1100:1500] += 0.5

    run = make_run(**columns)

    assert findings(run, "repeated-data") == []
    assert findings(run, "resume-bump") == []


@pytest.mark.parametrize("first", [0, 1])
def test_several_runs_in_one_file_are_not_compared(first):
    """Runs that start at their first step again, or one after it, are no restarts."""
    one, two = healthy(500, 1), {k: v[first:] for k, v in healthy(500, 2).items()}
    two["loss"] = two["loss"] - 0.5
    two["learning_rate"] = two["learning_rate"] * 3
    run = make_run(**{k: np.concatenate([one[k], two[k]]) for k in one})

    assert grave(run, "lr-jump") == []
    assert findings(run, "discarded-steps")[0].tags == (("started-over",) if not first else ())
    assert skipped(run, "resume-bump") is not None
    if first:
        return
    assert skipped(run, "repeated-data") is not None
    assert skipped(run, "resume-bump") is not None


@pytest.mark.parametrize("scale", [2.0**16, 2.0**32])
def test_probing_for_a_loss_scale_is_silent(scale):
    """A scale that is halved every step at the start, skipping each of them, finds its place."""
    scales = np.maximum(scale * 0.5 ** np.arange(500.0), 2.0**13)
    skips = (np.diff(scales, prepend=2 * scale) < 0).astype(float)
    skips[: int(np.log2(scale)) - 13] = 1.0

    run = make_run(loss_scale=scales, skipped_steps=skips)

    assert findings(run, "loss-scale-collapse") == []


def test_scale_that_breathes_is_silent():
    """Halved once in a while and doubled a thousand clean steps later is how it should be."""
    scales = 2.0 ** (15 + (np.arange(6000) // 500) % 2)

    assert findings(make_run(loss_scale=scales), "loss-scale-collapse") == []


@pytest.mark.parametrize("scale", [1.0, 12.0, 65536.0])
def test_constant_scale_is_silent(scale):
    """bf16 logs 1 throughout, DeepSpeed may log the exponent: neither is a collapse."""
    assert findings(make_run(loss_scale=np.full(200, scale)), "loss-scale-collapse") == []


@pytest.mark.parametrize("rule", ["lr-jump", "resume-bump", "repeated-data", "loss-scale-collapse"])
def test_cannot_look(rule):
    """One row, or nothing to compare with: said, not passed over."""
    assert skipped(make_run(loss=[2.0]), rule) is not None
    assert (
        skipped(make_run(loss=np.full(100, np.nan), learning_rate=[None] * 100), rule) is not None
    )


# --- loud -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_leap_of_the_rate_is_an_error(seed):
    """A rate that doubles from one row to the next outside warm-up is an error there."""
    columns = healthy(2000, seed)
    columns["learning_rate"][1200:] *= 2

    found = findings(make_run(**columns), "lr-jump")

    assert [(f.severity, f.first, f.last) for f in found] == [("error", 1201, 1201)]
    assert found[0].value == pytest.approx(2 * found[0].expected, rel=0.01)


def test_leap_with_the_batch_is_a_notice():
    """A rate raised along with the batch size is planned."""
    columns = healthy(2000)
    columns["learning_rate"][1200:] *= 2
    batch = np.where(np.arange(2000) < 1200, 512.0, 1024.0)

    found = findings(make_run(**columns, batch_sequences=batch), "lr-jump")

    assert [(f.severity, f.tags) for f in found] == [("notice", ("planned",))]


def test_schedule_reset_after_resume_is_an_error():
    """A scheduler that was not restored warms up again in the resumed attempt: an error there."""
    columns = restarted()
    columns["learning_rate"][1500:] = healthy(2000)["learning_rate"][:1000]

    found = grave(make_run(**columns), "lr-jump")

    assert [(f.severity, f.attempt, f.first) for f in found] == [("error", 1, 1001)]


def test_schedule_reset_without_a_trace_of_a_restart_is_an_error():
    """Where the steps go on, the rate that falls and warms up again tells of the restart."""
    columns = healthy(2000)
    columns["learning_rate"][1000:] = healthy(2000)["learning_rate"][:1000]

    found = grave(make_run(**columns), "lr-jump")

    assert [(f.severity, f.first, f.tags) for f in found] == [("error", 1001, ("warms-up-again",))]


def test_rate_at_its_peak_after_resume_is_an_error():
    """A resumed attempt at the peak rate, where the schedule had decayed, is an error."""
    columns = restarted()
    columns["learning_rate"][1500:] = 3e-4

    found = grave(make_run(**columns), "lr-jump")

    assert [(f.severity, f.attempt, f.first) for f in found] == [("error", 1, 1001)]


def test_rate_lowered_after_a_rollback_is_a_notice():
    """Half the rate all along is what one does after a divergence."""
    columns = restarted()
    columns["learning_rate"][1500:] *= 0.5

    found = findings(make_run(**columns), "lr-jump")

    assert [(f.severity, f.tags) for f in found] == [("notice", ("resume", "lowered"))]


@pytest.mark.parametrize("every", [1, 10])
def test_discarded_steps_are_counted(every):
    """Back from 1,500 to after 1,000: 500 steps were thrown away, at any logging interval."""
    columns = {k: np.concatenate([v[:1500][every - 1 :: every], v[1500:][every - 1 :: every]])
               for k, v in restarted().items()}  # fmt: skip

    found = findings(make_run(**columns), "discarded-steps")

    assert [(f.severity, f.metric, f.attempt, f.first, f.last, f.value) for f in found] == [
        ("notice", "step", 0, 1000 + every, 1500, 500.0)
    ]


def test_two_restarts_are_two_findings():
    """Each attempt that lost steps has its own finding."""
    one = healthy(900)
    columns = {k: np.concatenate([v[:600], v[400:800], v[700:]]) for k, v in one.items()}

    found = findings(make_run(**columns), "discarded-steps")

    assert [(f.attempt, f.first, f.last, f.value) for f in found] == [
        (0, 401, 600, 200.0),
        (1, 701, 800, 100.0),
    ]


@pytest.mark.parametrize("seed", range(5))
def test_bump_after_resume(seed):
    """5 % above the level before is a warning where it decays, an error where it stays."""
    decays, stays = restarted(seed), restarted(seed)
    after = np.arange(1000)
    decays["loss"][1500:] *= 1 + 0.06 * np.exp(-after / 60)
    stays["loss"][1500:] *= 1.05

    warned = findings(make_run(**decays), "resume-bump")
    failed = findings(make_run(**stays), "resume-bump")

    assert [(f.severity, f.attempt, f.first) for f in warned] == [("warning", 1, 1001)]
    assert [(f.severity, f.attempt, f.first) for f in failed] == [("error", 1, 1001)]


@pytest.mark.parametrize("seed", range(5))
def test_repeated_data(seed):
    """3 % below the first time on the steps that were redone is a warning."""
    columns = restarted(seed)
    columns["loss"][1500:2000] *= 0.97

    found = findings(make_run(**columns), "repeated-data")

    assert [(f.severity, f.attempt, f.first, f.last) for f in found] == [("warning", 1, 1001, 1500)]


def test_lower_rate_explains_a_lower_loss():
    """Attempts of other learning rates are not compared."""
    columns = restarted()
    columns["loss"][1500:2000] *= 0.97
    columns["learning_rate"][1500:] *= 0.5

    assert findings(make_run(**columns), "repeated-data") == []


def test_scale_at_its_minimum_is_an_error():
    """A scale that halves down to 1 is an error from where it gets there."""
    scales = np.maximum(2.0**15 * 0.5 ** np.clip((np.arange(600) - 300) // 10, 0, 40), 1.0)

    found = grave(make_run(loss_scale=scales), "loss-scale-collapse")

    assert found[0].severity == "error"
    assert found[0].first == 451
    assert found[0].value == 1.0


def test_scale_that_shrinks_is_a_warning():
    """From 2^15 to 2^10 for good, as in tr8 before its loss moved, is a warning."""
    scales = 2.0 ** (15 - np.clip((np.arange(3000) - 1000) // 200, 0, 5))

    assert [f.severity for f in grave(make_run(loss_scale=scales), "loss-scale-collapse")] == [
        "warning"
    ]


def test_three_halvings_are_a_notice():
    """Three halvings within 100 steps are worth a notice."""
    scales = np.full(1000, 2.0**18)
    scales[500:] = 2.0**15

    found = findings(make_run(loss_scale=scales), "loss-scale-collapse")

    assert {f.severity for f in found} == {"notice"}


def test_many_skipped_steps_are_a_warning():
    """One step in ten skipped, past the start, is a warning; one in a hundred is not."""
    few, many = np.zeros(2000), np.zeros(2000)
    few[50::100] = 1.0
    many[500:1500:10] = 1.0

    assert findings(make_run(skipped_steps=few), "loss-scale-collapse") == []
    assert [f.severity for f in findings(make_run(skipped_steps=many), "loss-scale-collapse")] == [
        "warning"
    ]


def ends_at(*ends, back=501, facts=None):
    """A run whose attempts end at these steps; each but the first begins at ``back``."""
    steps = np.concatenate([np.arange(1 if i == 0 else back, e + 1) for i, e in enumerate(ends)])
    columns = healthy(len(steps))
    columns["step"] = steps
    return make_run(**columns, facts=facts or {})


@pytest.mark.parametrize(
    ("ends", "facts", "warned"),
    [
        ((600, 600, 600, 600, 600, 1500), {}, [4]),
        ((600, 600, 600), {}, [1]),
        ((600, 600, 600), {"total_steps": 1500}, [1]),
        ((600, 600, 1500), {}, []),
        ((600, 640, 610, 1500), {}, []),
        ((600, 600, 600), {"total_steps": 600}, []),
        ((600, 600, 600, 900, 900, 900), {}, [2, 4]),
    ],
)
def test_attempts_that_end_at_the_same_step_are_a_loop(ends, facts, warned):
    """What stops a run at one step stops it again; twice may be chance, the last step is none."""
    found = findings(ends_at(*ends, facts=facts), "discarded-steps")
    assert len(found) == len(ends) - 1
    assert [f.attempt for f in found if f.severity == "warning"] == warned
    assert [f.attempt for f in found if "ends-at-same-step" in f.tags] == warned
    assert {f.severity for f in found} <= {"notice", "warning"}


def test_runs_one_after_the_other_in_one_file_are_no_loop_unless_more_was_planned():
    """Three runs of 600 steps, or three attempts that never came to a checkpoint."""
    for facts, severities in (
        ({}, ["notice", "notice"]),
        ({"total_steps": 600}, ["notice", "notice"]),
        ({"total_steps": 1500}, ["notice", "warning"]),
    ):
        found = findings(ends_at(600, 600, 600, back=1, facts=facts), "discarded-steps")
        assert [f.severity for f in found] == severities
