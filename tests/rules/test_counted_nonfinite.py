"""Steps that a trainer counts as not finite while the loss it prints is the mean of the others."""

import numpy as np
import pytest

from tests.rules.runs import findings, healthy, make_run


@pytest.mark.parametrize(("skipped", "severity"), [(0, "error"), (2, "warning")])
@pytest.mark.parametrize("name", ["number of nan iterations", "nan_iterations"])
def test_counted_steps_that_are_not_finite_are_told(name, skipped, severity):
    """They were trained on where they were not skipped."""
    counts, skips = np.zeros(300), np.zeros(300)
    counts[200:205], skips[200:205] = 2, skipped
    columns = {**healthy(300), name: counts, "skipped_iterations": skips}

    (found,) = findings(make_run(**columns), "hidden-nonfinite")

    assert (found.severity, found.first, found.last, found.value) == (severity, 201, 205, 2.0)


def test_steps_that_are_only_skipped_are_not():
    """A scale of the loss that is still looked for overflows gradients, not losses."""
    skips = np.zeros(300)
    skips[:12] = 1
    columns = {**healthy(300), "nan_iterations": np.zeros(300), "skipped_iterations": skips}

    assert findings(make_run(**columns), "hidden-nonfinite") == []


def test_a_loss_that_is_nan_itself_is_told_once():
    """What the loss shows needs no count."""
    columns = {**healthy(300), "nan_iterations": np.zeros(300)}
    columns["loss"][200:205], columns["nan_iterations"][200:205] = np.nan, 1

    assert findings(make_run(**columns), "hidden-nonfinite") == []
