"""Settings of rules: what no rule can mean is refused in one line, whatever the rule."""

from typing import Any

import numpy as np
import pytest

from stabcli.errors import SettingError
from stabcli.rules import Rule, checked_settings, rules, run_rules
from tests.rules.cases import CASES

NUMBERS = [
    pytest.param(rule, name, id=f"{rule.name}.{name}")
    for rule in rules
    for name, default in rule.settings.items()
    if not isinstance(default, (bool, str))
]


@pytest.mark.parametrize(("rule", "name"), NUMBERS)
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999", "many", ""])
def test_what_is_no_number_is_refused(rule: Rule, name: str, value: str):
    """Every comparison with NaN is false: a rule with such a limit would be silent for ever."""
    with pytest.raises(SettingError, match=rf"--set {rule.name}\.{name}: takes a .*, not "):
        checked_settings(rule, {name: value}, where="--set ")


@pytest.mark.parametrize(("rule", "name"), NUMBERS)
def test_below_zero_is_refused_where_it_means_nothing(rule: Rule, name: str):
    """Counts, multiples and shares are 0 or more; a limit that is 0 itself may be below."""
    default = rule.settings[name]
    if default > 0:
        with pytest.raises(SettingError, match=r"takes a .* (of 0 or more|from 0 to 1), not -1"):
            checked_settings(rule, {name: -1})
    else:
        assert checked_settings(rule, {name: -1}) == {name: -1}


def test_a_share_is_no_more_than_all():
    """Five times all rows can never be reached: the rule would be silent."""
    (rule,) = [r for r in rules if r.name == "grad-norm-high"]

    with pytest.raises(SettingError, match=r"grad-norm-high.share: takes a number from 0 to 1"):
        checked_settings(rule, {"share": "5"})
    assert checked_settings(rule, {"share": "0.5"}) == {"share": 0.5}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("rule", "name"), NUMBERS)
@pytest.mark.parametrize("value", [0, 1, 2])
def test_what_a_rule_cannot_work_with_is_refused_and_no_crash(rule: Rule, name: str, value: Any):
    """A window of no rows, a ratio of 0: it looks all the same, or one line says that it cannot."""
    said = rule.name
    try:
        with np.errstate(all="ignore"):  # as ``diagnose`` has it
            run_rules(CASES[rule.name].spoilt(), [rule], {rule.name: {name: value}})
    except SettingError as error:
        said = str(error)
    assert rule.name in said
    assert "\n" not in said


def breaks(*_: object, limit: float = 1.0) -> object:
    raise ZeroDivisionError


def test_a_bug_stays_a_bug():
    """With its own settings a rule that breaks is not the user's fault; with others it may be."""
    broken = Rule(breaks, (), ("default",), "0.1.0")

    with pytest.raises(ZeroDivisionError):
        run_rules(CASES["loss-spike"].spoilt(), [broken], {})
    with pytest.raises(SettingError, match=r"cannot look with limit=2\.0"):
        run_rules(CASES["loss-spike"].spoilt(), [broken], {broken.name: {"limit": 2}})
