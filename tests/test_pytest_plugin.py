"""The fixture for other projects' tests: passes with the log, fails with a log that does not."""

from importlib.metadata import entry_points

import pytest

from tests.conftest import SAMPLES

pytest_plugins = ["pytester"]

CLEAN = SAMPLES / "jsonl" / "clean.jsonl"
SPIKE = SAMPLES / "jsonl" / "bad_batch.jsonl"


def test_fixture(pytester: pytest.Pytester):
    """A clean log passes; a spike, and a run that cannot be judged, fail with the verdict."""
    pytester.makepyfile(
        f"""
        def test_clean(stabcli_check):
            stabcli_check({str(CLEAN)!r}, "--require", "loss")

        def test_spike(stabcli_check):
            stabcli_check({str(SPIKE)!r})

        def test_blind(stabcli_check):
            stabcli_check({str(CLEAN)!r}, "--require", "mfu")
        """
    )
    registered = {entry.value for entry in entry_points(group="pytest11")}
    flags = [] if "stabcli.pytest_plugin" in registered else ["-p", "stabcli.pytest_plugin"]
    result = pytester.runpytest_subprocess(*flags)

    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(
        ["*stabcli check ended with 1*", "FAIL  *", "*stabcli check ended with 2*", "*no mfu*"]
    )
