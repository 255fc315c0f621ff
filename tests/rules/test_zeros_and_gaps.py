"""Rule ``hidden-nonfinite``: zeros that are a loss's own, and losses logged every k-th row."""

import numpy as np
import pytest

from tests.rules.runs import findings, healthy, make_run

N = 3000


def margin(seed: int, level: float, spread: float) -> np.ndarray:
    """The mean of max(0, margin) of small batches: it falls, and is exactly 0 ever more often."""
    random = np.random.default_rng(seed)
    falling = level + (0.8 - level) * np.exp(-np.arange(N) / 500)
    return np.maximum(0.0, random.normal(falling, spread, N))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("level", "spread"), [(0.02, 0.1), (0.05, 0.1), (0.1, 0.2)])
def test_zeros_of_a_loss_with_a_margin_hide_nothing(seed, level, spread):
    """Some come three in a row by chance, and one by one all the same."""
    loss = margin(seed, level, spread)
    zero = loss == 0
    assert (zero[2:] & zero[1:-1] & zero[:-2]).any()
    assert findings(make_run(loss=loss), "hidden-nonfinite") == []


@pytest.mark.parametrize("rows", [3, 10, 500])
@pytest.mark.parametrize("single", [0, 5])
def test_zeros_among_losses_far_from_0_are_hidden_nan(rows, single):
    """No loss jumps from 3 to exactly 0 and back, be it now and then or for good."""
    loss = healthy(N, noise=0.3)["loss"] + 1
    loss[2500 : 2500 + rows] = 0.0
    loss[[200, 700, 1100, 1700, 2100][:single]] = 0.0
    found = findings(make_run(loss=loss), "hidden-nonfinite")
    assert [(f.severity, f.first, f.last) for f in found] == [("error", 2501, 2500 + rows)]


def test_zeros_for_good_after_none_at_all_are_hidden_nan_near_0_too():
    """A loss with a margin has single zeros first."""
    loss = np.random.default_rng(0).lognormal(-3, 1, N)
    loss[2500:] = 0.0
    found = findings(make_run(loss=loss), "hidden-nonfinite")
    assert [(f.severity, f.first) for f in found] == [("error", 2501)]


def sparse(keep) -> dict:
    """A healthy run whose loss is logged only in the rows that ``keep`` says."""
    columns = healthy(N)
    return columns | {
        "loss": [float(x) if keep(i) else None for i, x in enumerate(columns["loss"])]
    }


@pytest.mark.parametrize("every", [2, 5, 10, 50])
def test_a_loss_logged_every_kth_row_that_stops_for_good_is_told(every):
    run = make_run(**sparse(lambda i: i % every == 0 and i < 2000))
    (found,) = findings(run, "hidden-nonfinite")
    assert (found.severity, found.last) == ("error", N)
    assert found.first == 2000 - every + 2


@pytest.mark.parametrize(("every", "back"), [(2, 2100), (10, 2100), (10, 2300), (50, 2300)])
def test_a_loss_logged_every_kth_row_that_is_missing_in_between_is_a_notice(every, back):
    run = make_run(**sparse(lambda i: i % every == 0 and not 1500 <= i < back))
    (found,) = findings(run, "hidden-nonfinite")
    assert (found.severity, found.first, found.last) == ("notice", 1502 - every, back)


@pytest.mark.parametrize(
    "keep",
    [
        lambda i: i % 10 == 0,
        lambda i: i % 10 == 0 and i < N - 75,
        lambda i: i % 10 == 0 and not 1500 <= i < 1565,
        lambda i: i % (10 if i < 1500 else 200) == 0,
        lambda i: i % (7 if i < 2500 else 50) == 0,
        lambda i: i < 2500 or (i % 40 == 0 and i < N - 20),
        lambda i: i < 100 or i % 50 == 0,
        lambda i: (i * i) % 37 == 1,
    ],
    ids=[
        "every 10",
        "too late to tell",
        "some skipped",
        "more rarely later",
        "more rarely at the end",
        "dense, then rarely",
        "dense at first",
        "irregular",
    ],
)
def test_a_loss_that_keeps_its_rhythm_or_takes_another_is_not_missing(keep):
    assert findings(make_run(**sparse(keep)), "hidden-nonfinite") == []


def test_evaluations_at_the_end_miss_no_loss():
    """Rows that hold nothing but an evaluation are not those in which a loss is due."""
    columns = sparse(lambda i: i % 10 == 0)
    step = np.arange(1, N + 201)
    tail = [None] * 200
    longer = {k: [*np.asarray(v, object).tolist(), *tail] for k, v in columns.items()}
    longer |= {"step": step, "val_loss": [None] * N + [2.0] * 200}
    assert findings(make_run(**longer), "hidden-nonfinite") == []
