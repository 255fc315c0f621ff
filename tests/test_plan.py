"""Where to go back to, what to skip, and what no plan may ever say."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stabcli.causes import causes
from stabcli.cost import price
from stabcli.plan import plans
from stabcli.rules import Finding
from tests.ledgers import incident, make_run, steady


def plans_of(run, *found):
    return plans(run, found, price(run, found))


def test_nothing_to_do_for_a_healthy_run():
    """No incident, no plan."""
    assert plans_of(make_run(steady(1, 100))) == ()


@pytest.mark.parametrize("severity", ["notice", "warning"])
def test_no_plan_below_error(severity):
    """A warning is worth a look, not a rollback."""
    found = incident(50, 60, severity=severity)

    assert plans_of(make_run(steady(1, 100)), found) == ((),)


def test_no_plan_for_a_statistic():
    """What describes the whole run has no onset to go back from."""
    assert plans_of(make_run(steady(1, 100)), incident(1, 100, tags=("statistic",))) == ((),)


def test_spike_that_never_healed():
    """Back to the newest stable checkpoint 100 steps before the onset; skip what is around it."""
    run = make_run(steady(1, 5000), facts={"checkpoint_every": 500})
    first, second = plans_of(run, incident(4020, 4030))[0]

    assert (first.name, first.roll_back_to, first.known_checkpoint) == ("skip-batches", 3500, True)
    assert (first.skip_first, first.skip_last) == (3920, 4120)
    assert first.lr_factor is None
    assert first.redo.steps == 1500
    assert (second.name, second.roll_back_to) == ("rule-of-thumb", 3000)
    assert second.lr_factor == (0.5, 0.9)
    assert "3,500" in first.text


def test_listed_checkpoints_win_over_an_interval():
    """Only steps that were really saved are named as checkpoints."""
    run = make_run(steady(1, 5000), facts={"checkpoint_every": 500, "checkpoints": (777, 2345)})

    assert plans_of(run, incident(4020, 4030))[0][0].roll_back_to == 2345


def test_no_known_checkpoint_is_said():
    """Without a checkpoint the plan says where one is needed, and which flag tells more."""
    plan = plans_of(make_run(steady(1, 5000)), incident(4020, 4030))[0][0]

    assert not plan.known_checkpoint
    assert plan.roll_back_to == 3920
    assert "at or before step 3,920" in plan.text
    assert "--fact checkpoint_every=N" in plan.why


def test_lead_of_the_gradient_norm_moves_the_checkpoint_back():
    """Twice the lead: what the gradient norm saw first may have been wrong before."""
    run = make_run(steady(1, 5000), facts={"checkpoint_every": 50})
    led = incident(4000, 4010)
    early = Finding(metric="grad_norm", severity="warning", attempt=0, first=3900, last=3990,
                    peak=3950, value=9.0, expected=1.0, score=2.0, rule="grad-norm-spike")  # fmt: skip
    led = replace(led, findings=(early, *led.findings))

    assert plans_of(run, led)[0][0].roll_back_to == 3700


def test_checkpoint_beside_an_earlier_warning_is_not_stable():
    """200 steps without a warning before it make a checkpoint trustworthy."""
    run = make_run(steady(1, 5000), facts={"checkpoint_every": 500})
    earlier = incident(3450, 3460, severity="warning", ending="fast-recovery", recovered=3470)

    plan = plans_of(run, earlier, incident(4020, 4030))[1][0]

    assert plan.roll_back_to == 3000
    assert "Step 3,500 is passed over for loss-spike at step 3,450: 200 quiet steps" in plan.text


def spikes(ending):
    """Twenty spikes, 60 steps apart, each over the step after it or never."""
    fast = ending == "fast-recovery"
    return [
        incident(s, s, ending=ending, recovered=s + 1 if fast else None)
        for s in range(300, 1500, 60)
    ]


@pytest.mark.parametrize("facts", [{}, {"checkpoint_every": 20}])
def test_spikes_that_healed_one_after_the_other_are_not_all_gone_back_past(facts):
    """What recovered by itself asks for no roll back: a later plan does not undo it as well."""
    found = spikes("fast-recovery")
    run = make_run(steady(1, 2000), facts=facts)
    for one, (wait, back) in zip(found, plans_of(run, *found), strict=True):
        assert wait.name == "wait"
        assert one.first - 120 <= back.roll_back_to <= one.first - 100 or one.first < 500
        # at step 340 it would be one of few: those are gone back past, and that is said
        assert ("passed over" in back.text) == (back.roll_back_to < one.first - 120)


def test_spikes_that_never_healed_are_gone_back_past_and_that_is_said():
    """Weights after what never recovered are in doubt, however many such incidents there are."""
    found = spikes("new-basin")
    plan = plans_of(make_run(steady(1, 2000), facts={"checkpoint_every": 20}), *found)[-1][0]

    assert plan.roll_back_to < found[0].first
    assert "Step 1,340 is passed over for loss-spike at step 1,320, which never" in plan.text


def test_plan_that_takes_the_newest_checkpoint_passes_over_nothing():
    """Where nothing is in doubt there is nothing to explain."""
    run = make_run(steady(1, 5000), facts={"checkpoint_every": 500})

    assert all("passed over" not in p.text for p in plans_of(run, incident(4020, 4030))[0])


def test_never_back_to_a_step_after_a_nan():
    """Everything after a NaN that did not heal is void, for later incidents as well."""
    run = make_run(steady(1, 5000), facts={"checkpoint_every": 500})
    nan = incident(2100, 5000, value=float("nan"), severity="critical", ending="diverged",
                   rule="nonfinite")  # fmt: skip
    found = plans_of(run, nan, incident(4020, 4030))

    assert found[0][0].name == "skip-batches"  # 1,000 steps would be half of what there is
    assert "void" in found[0][0].text
    assert all(p.roll_back_to <= 2000 for ways in found for p in ways)


def test_onset_near_the_beginning_starts_again():
    """Where no step before the onset is far enough away, start from the beginning."""
    plan = plans_of(make_run(steady(1, 500)), incident(40, 50))[0][0]

    assert plan.roll_back_to == 0
    assert "from the beginning" in plan.text


def test_early_incident_skips_few_batches():
    """At step 46 of a short run not all of its batches are to be skipped."""
    plan = plans_of(make_run(steady(1, 99)), incident(46, 48))[0][0]

    assert (plan.skip_first, plan.skip_last) == (42, 50)


def test_log_that_begins_late_needs_an_earlier_checkpoint():
    """A log of steps 9,000 on with an onset at 9,050 cannot know a checkpoint."""
    plan = plans_of(make_run(steady(9000, 9500)), incident(9050, 9060))[0][0]

    assert not plan.known_checkpoint
    assert "before this log begins" in plan.text
    assert plan.roll_back_to == 9000


def test_healed_spike_is_waited_out():
    """After a recovery going on comes first, skipping second."""
    healed = incident(4000, 4010, ending="fast-recovery", recovered=4030)
    first, second = plans_of(make_run(steady(1, 5000)), healed)[0]

    assert (first.name, first.roll_back_to, first.redo.steps) == ("wait", None, 0)
    assert second.name == "skip-batches"


def test_spike_that_comes_again_at_the_same_step_is_skipped():
    """What recurs is not waited out."""
    again = incident(4000, 4010, ending="fast-recovery", recovered=4030,
                     tags=("recurs-at-same-step",))  # fmt: skip

    assert plans_of(make_run(steady(1, 5000)), again)[0][0].name == "skip-batches"


@pytest.mark.parametrize(
    ("metric", "word"),
    [
        ("tokens_per_second", "Roll nothing back"),
        ("mfu", "Roll nothing back"),
        ("val_loss", "contamination"),
        ("aux_loss", "load-balancing"),
        ("entropy", "KL"),
        ("learning_rate", "schedule"),
        ("step", "restarts"),
    ],
)
def test_each_family_gets_its_own_advice(metric, word):
    """A throughput drop is no reason to roll back; a collapse is no reason to skip batches."""
    plan = plans_of(make_run(steady(1, 5000)), incident(4000, 4010, metric=metric))[0][0]

    assert word in plan.text
    assert plan.skip_first is None
    if word == "Roll nothing back":
        assert plan.roll_back_to is None


@pytest.mark.parametrize(
    ("rule", "metric", "value", "tags", "words"),
    [
        ("frozen-values", "loss", 2.0, (), ("compare two checkpoints", "logging")),
        ("grad-norm-vanishing", "grad_norm", 0.0, (), ("require a gradient", "start again from")),
        ("loss-broken", "loss", 22.0, (), ("initialisation", "labels")),
        ("hidden-nonfinite", "loss", float("nan"), ("no-loss",), ("still computed", "logging")),
    ],
)
def test_what_no_batch_did_is_mended_otherwise(rule, metric, value, tags, words):
    """No batches to skip, no learning rate to lower, no checkpoint that is called void."""
    run = make_run(steady(1, 5000), facts={"checkpoint_every": 500})
    found = incident(4020, 5000, rule=rule, metric=metric, value=value)
    found = replace(found, findings=tuple(replace(f, tags=tags) for f in found.findings))
    ways = plans_of(run, found)[0]

    assert len(ways) == 1
    assert (ways[0].skip_first, ways[0].lr_factor, ways[0].recipe) == (None, None, ())
    assert all(word in ways[0].text for word in words)
    assert "void" not in ways[0].text
    assert causes(run, [found]) == ((),)


def test_what_the_trainer_went_back_from():
    """A rolled-back incident names the attempt that went back, and claims no cause."""
    step = [*range(1, 1001), *range(801, 1501)]
    run = make_run({"step": step, "loss": np.full(len(step), 2.0)})
    plan = plans_of(run, incident(900, 1000, ending="rolled-back"))[0][0]

    assert plan.roll_back_to is None
    assert "attempt 1 went back to step 801" in plan.text
    assert "does not prove" in plan.text


@pytest.mark.parametrize(
    ("reader", "line"),
    [
        ("megatron", "--load CHECKPOINTS --iterations-to-skip $(seq 3920 4120)"),
        ("olmo-core", "steps_to_skip: [StepSkipRange(start=3920, stop=4121)]"),
        ("lightning", "seq 3920 4120 | jq -s . > skip_batches.json"),
        ("hf-trainer", "--resume_from_checkpoint OUTPUT_DIR/checkpoint-3500"),
    ],
)
def test_recipe_of_the_framework(reader, line):
    """The exact flags, in the framework's own words and ways of counting."""
    run = make_run(steady(1, 5000), facts={"checkpoint_every": 500}, reader=reader)

    assert line in plans_of(run, incident(4020, 4030))[0][0].recipe


def test_recipe_with_the_new_learning_rate():
    """Where the peak is known the new one is given as a number."""
    run = make_run(steady(1, 5000), facts={"peak_lr": 3e-4}, reader="megatron")
    thumb = plans_of(run, incident(4020, 4030))[0][1]

    assert "0.00015 to 0.00027" in thumb.recipe[-1]


def test_unknown_framework_has_no_recipe():
    """A JSONL file does not tell who wrote it."""
    assert plans_of(make_run(steady(1, 5000)), incident(4020, 4030))[0][0].recipe == ()


@given(
    first=st.integers(1, 10_000),
    rows=st.integers(1, 60),
    every=st.integers(1, 100),
    at=st.integers(0, 59),
    saves=st.none() | st.integers(1, 3000),
    ending=st.sampled_from(["diverged", "new-basin", "unresolved", "slow-recovery", "rolled-back"]),
    value=st.sampled_from([9.0, float("nan")]),
)
@settings(max_examples=150, deadline=None)
def test_plans_name_only_steps_that_can_be(first, rows, every, at, saves, ending, value):
    """Wherever it strikes: back to before the onset, never a checkpoint that was not saved."""
    step = first + np.arange(rows) * every
    facts = {} if saves is None else {"checkpoint_every": saves}
    run = make_run({"step": step, "loss": np.full(rows, 2.0)}, facts=facts)
    onset = int(step[min(at, rows - 1)])
    recovered = int(step[-1]) if ending == "slow-recovery" else None
    found = incident(onset, onset, value=value, ending=ending, recovered=recovered)

    for plan in plans_of(run, found)[0]:
        if plan.roll_back_to is None:
            continue
        assert 0 <= plan.roll_back_to <= max(onset, first)
        assert plan.roll_back_to < onset or plan.roll_back_to == first
        assert plan.skip_first <= plan.skip_last
        assert plan.redo.steps >= 0
        if plan.known_checkpoint:
            assert plan.roll_back_to % saves == 0
            assert plan.roll_back_to <= onset - 100
