"""The console report: true, on one screen, and deaf to what logs try to say to a terminal."""

import dataclasses

import numpy as np
import pytest

from stabcli.cost import Cost, CostReport
from stabcli.report import Screen
from stabcli.report.console import console
from stabcli.rules import Skipped
from stabcli.run import BadLines, Fact
from tests.report.diagnoses import PLAN, at, diagnosis, finding, incident, outcome
from tests.rules.runs import make_run


def told(*diagnoses, **screen) -> str:
    """What the console report says."""
    return console(outcome(*diagnoses), Screen(**screen))


def test_healthy_run_is_quiet():
    """A healthy run is told in a few lines: what was read, what was checked, and done."""
    text = told(diagnosis())

    assert "fine  run: nothing found by 2 rules" in text
    assert "checked     loss-spike, nonfinite" in text
    assert "┌" not in text
    assert len(text.splitlines()) <= 7


def test_notices_are_one_line():
    """Notices do not make a run unhealthy, and share a line."""
    text = told(diagnosis(*[at(s, "notice") for s in range(100, 400, 10)]))

    assert "fine  run: nothing above notice (30 notices) found by 2 rules" in text
    assert "notices     30 × loss-spike (steps 100, 110, 120, … 390" in text
    assert "the largest" in text


def test_blind_run_is_not_fine():
    """A run that no rule could look at is never called fine."""
    text = told(
        diagnosis(checked=(), skipped=[Skipped(rule="loss-spike", why="the log has no loss")])
    )

    assert "CANNOT JUDGE  run: no rule could look" in text
    assert "fine" not in text
    assert "unchecked   no loss (loss-spike)" in text


def test_what_was_not_checked_is_said_beside_the_verdict():
    """A clean verdict says how many rules could not look, and below which and why."""
    why = "the log has no val_loss"
    text = told(diagnosis(skipped=[Skipped(rule=r, why=why) for r in ("overfitting", "rise")]))

    assert "nothing found by 2 rules, 2 could not look" in text
    assert "unchecked   no val_loss (overfitting, rise)" in text


def test_incident_is_told_in_one_paragraph():
    """Where, what, against what, what moved first, how it ended, what it cost, what else."""
    loss = finding(severity="critical")
    norm = finding("grad-norm-spike", metric="grad_norm", first=298, peak=301, value=30.0)
    run = make_run(loss=np.full(500, 2.0), grad_norm=np.full(500, 0.5))
    cost = CostReport(incidents=(Cost(steps=12, tokens=4.8e7, gpu_hours=808.3, usd=1616.0),))
    text = told(diagnosis(incident(norm, loss), run=run, cost=cost), width=400)

    assert (
        "critical    steps 298..302  loss-spike: loss 9.1 (line 302), expected 2; grad_norm moved first, at"
        " step 298; recovered by step 310; cost 12 steps, 48M tokens, 808 GPU-hours, $1,616;"
        " also grad-norm-spike (step 298)\n"
    ) in text
    assert "\ngrad_norm" in text


def test_worst_comes_first():
    """Incidents stand by gravity, then by step."""
    text = told(diagnosis(at(100, "warning", "a"), at(200, "error", "b"), at(300, "critical", "c")))
    order = [line.split()[0] for line in text.splitlines() if "step " in line and ": loss" in line]

    assert order == ["critical", "error", "warning"]
    verdict = "CRITICAL  run: c at step 300, recovered by step 310;"
    assert f"{verdict} 1 critical, 1 error, 1 warning in all" in text.replace("\n", " ")


def test_many_incidents_stay_on_a_screen():
    """A hundred incidents of one rule are a few lines, and none is left uncounted."""
    text = told(diagnosis(*[at(s, "warning") for s in range(1, 400, 4)]))

    assert len(text.splitlines()) <= 40
    assert "97 more × loss-spike, steps" in text
    assert "100 warnings in all" in text


def test_plan_and_cost_are_told_with_their_grounds():
    """The plan, why, the alternative, what is wasted, the facts and assumptions."""
    run = make_run(
        loss=np.full(500, 2.0),
        facts={"gpus": Fact(value=512, source="--gpus"), "tokens_per_step": 4_000_000},
    )
    cost = CostReport(
        incidents=(Cost(steps=12),),
        total=Cost(steps=12, tokens=4.8e7),
        goodput=0.976,
        assumptions=("GPU-hours unknown: add --gpus 512",),
    )
    text = told(diagnosis(at(300), run=run, cost=cost, plans=[(PLAN, PLAN)]), width=200)

    assert "to do       Roll back to the checkpoint at step 200 and skip" in text
    assert "To train again: 100 steps, 400M tokens." in text
    assert "why         PaLM skipped 200-500 batches" in text
    assert "\nor          Roll back" in text
    assert "wasted      12 steps, 48M tokens; 97.6 % of the run was productive" in text
    assert "facts       gpus 512 (--gpus); tokens_per_step 4M (test)" in text
    assert "given that  GPU-hours unknown: add --gpus 512" in text


def test_what_sampling_hides_is_said():
    """A log with one row in ten steps says what falls between the rows, and one with all does not."""
    loss = 2.0 + np.random.default_rng(0).normal(0, 0.01, 500)
    sparse = told(diagnosis(run=make_run(loss=loss, step=10 * np.arange(500))))
    dense = told(diagnosis(run=make_run(loss=loss)))

    assert "unseen      logged every 10 steps:" in sparse
    assert "one row in 10" in sparse
    assert "logged every" not in dense


def test_first_rows_are_not_called_clean():
    """What the first rows could have hidden is said, and that a log of a few rows hides it all."""
    short = told(diagnosis(run=make_run(loss=[2.0, 2.0, 2.0])))

    assert "unseen      steps 1..16: leaps of the loss below 2 x what is around them" in told(
        diagnosis(run=make_run(loss=np.full(500, 2.0)))
    )
    assert "unseen      steps 1..3: any leap of the loss to a finite value, for want of" in short


HOSTILE = "\x1b[31mred\x1b]0;title\x07[bold]not bold[/bold]\r\nforged\u202e:fire:"


def test_logs_cannot_speak_to_the_terminal():
    """Escape sequences, markup, line breaks and direction marks of a log are shown, not obeyed."""
    run = make_run(loss=np.full(500, 2.0))
    run = dataclasses.replace(
        run,
        name=HOSTILE,
        source=HOSTILE,
        notes=(HOSTILE,),
        columns={"loss": HOSTILE},
        bad=BadLines(count=1, first=((3, HOSTILE),)),
        facts={"gpu": Fact(value=HOSTILE, source=HOSTILE)},
    )
    skipped = [Skipped(rule="x", why=HOSTILE)]
    for colour in (False, True):
        text = told(diagnosis(at(300), run=run, skipped=skipped), width=1000, colour=colour)

        assert "\x1b[31mred" not in text
        assert not {"\x07", "\r", "\u202e"} & set(text)
        assert "[bold]not bold[/bold]" in text
        assert ":fire:" in text
        assert not any(line.startswith("forged") for line in text.splitlines())


def test_plain_without_colour_and_coloured_with():
    """Escape sequences are ours alone, and only where colours are wanted."""
    assert "\x1b" not in told(diagnosis(at(300)))
    assert "\x1b[" in told(diagnosis(at(300)), colour=True)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_width_is_kept(width: int):
    """No line is wider than the screen, nor ends in blanks."""
    text = told(diagnosis(at(300), plans=[(PLAN,)]), width=width)

    assert max(map(len, text.splitlines())) <= width
    assert not any(line != line.rstrip() for line in text.splitlines())


def test_ascii_only():
    """A terminal without UTF-8 gets ASCII."""
    many = [at(s, "warning") for s in range(1, 400, 4)]
    run = make_run(loss=np.append(np.full(499, 2.0), np.nan), step=10 * np.arange(500))

    assert told(diagnosis(*many, run=run), ascii_only=True).isascii()


def test_several_runs_are_counted():
    """Several runs are summed up; many healthy ones get a line each."""
    bad, good = diagnosis(at(300, "critical")), diagnosis()
    blind = diagnosis(checked=())
    text = told(bad, good, good, good, blind)

    assert text.splitlines()[-1] == "5 runs: 1 critical, 3 fine, 1 could not be judged"
    assert text.count("fine  run: nothing found by 2 rules\n") == 3


def test_no_run_at_all_is_no_report():
    """Without a run there is nothing to say."""
    assert told().strip() == ""


def test_pictures_are_for_few_runs():
    """A fleet of bad runs gets no pictures: the screen belongs to the verdicts."""
    bad = diagnosis(at(300))

    assert told(bad, bad).count("┌") == 2
    assert "┌" not in told(*[bad] * 4)


def test_second_incident_gets_its_best_plan_alone():
    """All ways out of the worst incident, the best one out of the next, none of the third."""
    text = told(diagnosis(at(100), at(200), at(300), plans=[(PLAN, PLAN)] * 3), width=200)
    labels = [line.split("  ")[0] for line in text.splitlines() if "Roll back" in line]

    assert labels == ["to do", "or", "then"]
