"""Data: what the default rules say of masked data, and of losses that move alone."""

import numpy as np
import pytest

from tests.rules.runs import findings, healthy, make_run, skipped
from tests.rules.test_default_validation import sparse

INSTANCES = "train/masked instances (%)"


def share(n=1000, seed=0, usual=0.0, noise=0.0):
    """Columns of a healthy run and the share of its data that is masked."""
    random = np.random.default_rng(seed)
    x = np.where(random.random(n) < 0.1, 1 / 512, 0.0) + usual + random.normal(0, noise, n)
    return healthy(n, seed), np.clip(x, 0, 1)


def masked(columns, x, name=INSTANCES):
    return make_run(**columns, **{name: x})


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("usual", "noise"), [(0.0, 0.0), (0.6, 0.05), (0.3, 0.1)])
def test_a_share_that_only_shakes_is_silent(seed, usual, noise):
    """Nearly nothing, or the prompts of a fine-tune, which differ from batch to batch."""
    assert findings(masked(*share(1000, seed, usual, noise)), "masked-data") == []


@pytest.mark.parametrize("seed", range(3))
def test_a_shard_of_one_pattern_is_found(seed):
    """A third of the batch for forty steps."""
    columns, x = share(seed=seed)
    x[500:540] = 0.33
    (found,) = findings(masked(columns, x), "masked-data")
    assert (found.severity, found.first, found.last) == ("warning", 501, 540)
    assert found.expected < 0.01 < 0.3 < found.value


@pytest.mark.parametrize("seed", range(4))
def test_a_lasting_jump_within_the_noise_of_single_rows_is_found(seed):
    """Prompts of a fine-tune, whose share differs from batch to batch, and then longer ones."""
    columns, x = share(1000, seed, 0.5, 0.05)
    x[500:540] += 0.3
    found = findings(masked(columns, x), "masked-data")
    assert [f.severity for f in found if f.first <= 540] == ["warning"]
    assert abs(found[0].first - 501) <= 3
    assert abs(found[0].last - 540) <= 10


@pytest.mark.parametrize(("value", "severity"), [(0.3, "notice"), (0.8, "warning")])
def test_one_batch_is_a_notice_unless_most_of_it_is_masked(value, severity):
    columns, x = share()
    x[500] = value
    assert [f.severity for f in findings(masked(columns, x), "masked-data")] == [severity]


@pytest.mark.parametrize(
    ("name", "scale", "looks"),
    [
        ("train/masked labels (%)", 1, True),
        ("mask_ratio", 1, True),
        ("masked tokens pct", 100, True),
        ("masked_tokens", 4096, False),
        ("masked lm loss", 1, False),
    ],
)
def test_shares_and_percents_are_looked_at_and_counts_are_not(name, scale, looks):
    """OLMo-core writes a percent sign and means a share."""
    columns, x = share()
    x[500:540] = 0.33
    run = masked(columns, x * scale, name)
    if looks:
        assert findings(run, "masked-data")[0].value == pytest.approx(0.33 * scale)
    else:
        assert "no share of masked" in skipped(run, "masked-data")


def test_another_batch_size_begins_anew():
    """A new stage of the data is a plan."""
    columns, x = share()
    x[500:] += 0.4
    sizes = np.where(np.arange(1000) < 500, 256.0, 512.0)
    assert findings(masked({**columns, "global_batch_size": sizes}, x), "masked-data") == []
    assert findings(masked(columns, x), "masked-data")


def evaluated(seed=0, n=2000, every=50, noise=0.004):
    columns = healthy(n, seed)
    at = np.arange(every, n + 1, every)
    random = np.random.default_rng(seed + 1)
    return columns, 1.95 + 8.5 * (at + 20.0) ** -0.42 + random.normal(0, noise, len(at)), every


def unmoved(columns, evals, every):
    run = make_run(**columns, val_loss=sparse(evals, every, len(columns["step"])))
    return findings(run, "validation-unmoved")


@pytest.mark.parametrize("seed", range(8))
def test_healthy_runs_move_together(seed):
    assert unmoved(*evaluated(seed)) == []


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("factor", [0.85, 1.1])
def test_training_that_moves_alone_is_a_notice(seed, factor):
    """Up or down by a tenth, with evaluations that went on as before."""
    columns, evals, every = evaluated(seed)
    columns["loss"][1130:] *= factor
    (found,) = unmoved(columns, evals, every)
    assert found.severity == "notice"
    assert found.last > 1900
    assert abs(found.first - 1131) <= 8
    assert (found.value > found.expected) == (factor > 1)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("factor", [0.85, 1.1])
def test_a_shift_that_validation_shares_is_of_the_model(seed, factor):
    columns, evals, every = evaluated(seed)
    columns["loss"][1130:] *= factor
    evals[1130 // every :] *= factor
    assert unmoved(columns, evals, every) == []


def test_a_fall_where_an_epoch_ends_is_expected():
    """Data seen before, by the log's own count of epochs or at half of the run."""
    columns, evals, every = evaluated()
    columns["loss"][1000:] *= 0.85
    assert unmoved(columns, evals, every) == []
    moved, evals, every = evaluated()
    moved["loss"][1130:] *= 0.85
    assert unmoved({**moved, "epoch": np.arange(2000) / 1130}, evals, every) == []


def test_evaluations_that_shake_or_are_few_tell_nothing():
    columns, evals, every = evaluated(noise=0.15)
    run = make_run(**columns, val_loss=sparse(evals, every, 2000))
    assert "steady" in skipped(run, "validation-unmoved")
    run = make_run(**columns, val_loss=sparse(evals[:3], every, 2000))
    assert "fewer than 4" in skipped(run, "validation-unmoved")
    assert "val_loss" in skipped(make_run(**columns), "validation-unmoved")
