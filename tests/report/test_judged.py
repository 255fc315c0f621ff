"""What could not be judged is never called fine, in any format."""

import numpy as np
import pytest

from stabcli.diagnosis import diagnose
from stabcli.report import Outcome, Screen, reports
from tests.rules.runs import healthy, make_run


def outcome(run, **choice):
    """One run's diagnosis as a report gets it."""
    return Outcome(diagnoses=(diagnose(run, **choice),), exit_status=2)


@pytest.mark.parametrize("rows", [1, 2, 10])
def test_a_few_rows_are_too_few(rows):
    """Rows without NaN, but too few for any baseline, say nothing of a run's health."""
    d = diagnose(make_run(loss=[2.0] * rows, grad_norm=[0.5] * rows))
    assert d.cannot_judge is not None
    assert f"{rows} row" in d.cannot_judge


def test_what_was_found_or_asked_for_is_judged():
    """A NaN among few rows is a verdict; so is a rule chosen by name that finds nothing."""
    assert diagnose(make_run(loss=[2.0, float("nan")])).cannot_judge is None
    assert diagnose(make_run(loss=[2.0, 2.0]), only=("nonfinite",)).cannot_judge is None
    assert diagnose(make_run(**healthy(300))).cannot_judge is None


@pytest.mark.parametrize("name", [r.name for r in reports])
def test_no_format_calls_it_fine(name):
    """Whatever the format: the words for fine do not appear, or the reason does."""
    told = outcome(make_run(loss=np.full(3, 2.0)))
    text = reports[name].write(told, Screen(width=200, colour=False))
    if name in ("json", "jsonl"):
        assert '"cannot_judge": "too little to judge by' in text
    elif name == "verdict":
        assert "no verdict" in text
    else:
        assert "too little to judge by" in text or "CANNOT JUDGE" in text.upper()
        assert "nothing found" not in text
