"""What is usual, which stretches are not, and where they end."""

import math

import pytest
import torch

from stabcli.errors import ReplayError
from stabcli.replay.controls import (
    FALSE_ALARM,
    Band,
    calibrate,
    id_scores,
    prediction_limit,
    tail_limit,
    windowed,
)
from stabcli.replay.probes import Grid, Probe
from stabcli.replay.repair import Repairs, carried, clean_rows, repaired
from stabcli.replay.screening import Screened, acquit, segments_of, sharpen
from tests.replay.small import world


def test_a_band_holds_its_controls_and_says_nothing_of_one():
    """The limit lies above every control, wider for fewer, infinite for one."""
    few, many = Band.of([2.0, 2.1, 2.2]), Band.of([2.0, 2.1, 2.2] * 4)

    assert 2.2 < many.high < many.limit < few.limit
    assert many.middle == pytest.approx(2.1)
    assert Band.of([2.0]).limit > 1e300
    assert math.isnan(Band.of([2.0, math.nan]).limit)


def test_equal_controls_do_not_make_a_band_of_no_width():
    """Two batches that agree by luck leave room for a third."""
    assert Band.of([2.0, 2.0]).limit > 2.1


def test_the_prediction_limit_is_crossed_as_often_as_it_says():
    """Of new draws from the same normal distribution, one in a thousand."""
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(4000, 9, generator=generator)
    crossed = [float(row[8]) > prediction_limit(row[:8].tolist(), 0.0) for row in draws]

    assert sum(crossed) <= 12  # 4 expected


def test_the_tail_limit_is_crossed_as_often_as_it_says():
    """The largest of a batch from an exponential distribution exceeds it about once in a thousand."""
    generator = torch.Generator().manual_seed(1)
    seen = torch.empty(128).exponential_(generator=generator)
    limit = tail_limit(seen, 0.5, 16, doubt=1.0)
    chance = 1 - (1 - math.exp(-limit)) ** 16

    assert chance < 3 * FALSE_ALARM
    assert limit > float(seen.max())


@pytest.mark.parametrize("values", [[], [1.0, 2.0], [math.nan] * 9])
def test_too_few_values_limit_nothing(values):
    """No limit can be told: nothing is accused."""
    assert tail_limit(torch.tensor(values), 0.5, 16) == math.inf


def test_constant_values_are_their_own_limit():
    """Nothing above the quantile: only more than has been seen is too much."""
    assert tail_limit(torch.full((20,), 3.0), 0.5, 16) == 3.0


def test_windows_keep_the_height_of_noise_and_raise_what_lasts():
    """A stretch of ones counts as the root of its length; shorter sequences than the window work."""
    ones = torch.ones(1, 40)

    assert windowed(ones, 16)[0, 20] == pytest.approx(4.0)
    assert windowed(ones, 1) is ones
    assert windowed(torch.ones(1, 8), 64).max() == pytest.approx(1.0)


def test_flagged_tokens_near_one_another_are_one_stretch():
    """Gaps of up to three are bridged, within a row."""
    flagged = torch.zeros(2, 20, dtype=torch.bool)
    flagged[0, [2, 3, 7, 12]] = True
    flagged[1, 0] = True

    assert segments_of(flagged) == [(0, 2, 7), (0, 12, 12), (1, 0, 0)]
    assert segments_of(torch.zeros(2, 20, dtype=torch.bool)) == []


@pytest.mark.parametrize("first", [3, 20])
@pytest.mark.parametrize("guess", [(0, 0), (6, -6), (-3, 4)])
def test_ends_of_a_stretch_with_its_own_ids_are_exact(first, guess):
    """Whatever part of it was flagged, and whatever the strengths are."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(10, 60, (1, 80), generator=generator)
    tokens[0, first : first + 30] = torch.tensor([3, 4, 5]).repeat(10)
    counts = torch.zeros(100, dtype=torch.long)
    counts[10:60] = 100
    segment = (0, max(0, first + guess[0]), first + 29 + guess[1])
    found = Screened(torch.zeros(1, 80), torch.zeros(1, 80), segments=[segment])
    grid = Grid(tokens_BS=tokens, targets_BS=tokens)
    sharpen(type("C", (), {"counts_V": counts})(), found, grid)

    assert found.segments == [(0, first, first + 29)]


def test_ends_of_a_raised_stretch_are_its_change_points():
    """Where no ID is its own, the raised part is cut out of a flag that is too wide or too narrow."""
    tokens = torch.arange(80)[None] % 37
    counts = torch.full((100,), 50)
    strength = torch.zeros(1, 80)
    strength[0, 20:45] = 1.0
    grid = Grid(tokens_BS=tokens, targets_BS=tokens)
    for segment in ((0, 14, 50), (0, 26, 40)):
        found = Screened(strength, strength, segments=[segment])
        sharpen(type("C", (), {"counts_V": counts})(), found, grid)

        assert found.segments == [(0, 20, 44)]


def test_ids_are_scored_by_their_places_and_by_what_follows():
    """The ID before the raised tokens by what follows it, the raised ID by itself."""
    tokens = torch.randint(10, 60, (4, 60), generator=torch.Generator().manual_seed(0))
    surprise = torch.zeros(4, 60)
    for row in range(4):
        tokens[row, 20], tokens[row, 40] = 5, 6
        surprise[row, 21:29] = 2.0
        surprise[row, 40] = 8.0
    grid = Grid(tokens_BS=tokens, targets_BS=tokens)
    scores = id_scores(grid, surprise, torch.ones(4, 60, dtype=torch.bool))

    assert max(scores, key=lambda e: e.after).token_id == 5
    assert max(scores, key=lambda e: e.own).token_id == 6


def test_a_repair_drops_tokens_and_the_target_at_the_seam():
    """What is left moves together; both rows keep their length; columns can be told."""
    x = torch.arange(1, 13).view(2, 6)
    y = x.clone()
    y[:, 0] = -100
    grid = Grid(tokens_BS=x, targets_BS=y)
    fixed, back = repaired(grid, frozenset({(1, 2), (1, 3)}), [1], "cut")
    untrained, _ = repaired(grid, frozenset({(1, 2)}), [1], "untrain")
    gone, _ = repaired(grid, frozenset((0, c) for c in range(6)), [0], "cut")

    assert fixed.tokens_BS.tolist() == [[7, 8, 11, 12, 12, 12]]
    assert fixed.targets_BS.tolist() == [[-100, 8, -100, 12, -100, -100]]
    assert back.tolist() == [[0, 1, 4, 5, -1, -1]]
    assert untrained.tokens_BS.tolist() == [x[1].tolist()]
    assert untrained.targets_BS.tolist() == [[-100, 8, -100, 10, 11, 12]]
    assert not gone.live_BS.any()


@pytest.mark.parametrize("arch", ["llama", "gpt2"])
def test_a_repair_is_the_batch_run_again(arch):
    """Loss and gradient norm from the touched rows alone are those of the whole repaired batch."""
    w = world(arch)
    grid = Grid.of(w.plant.one_id(3).batch)
    probe = Probe(w.model)
    repairs = Repairs(probe, grid, probe.measure(grid, backward=True))
    for places in (
        frozenset((1, c) for c in range(5, 20)),
        frozenset((r, 9) for r in (0, 1, 4)),
        frozenset((2, c) for c in range(grid.tokens_BS.shape[1])),
    ):
        got = repairs.effect(places)
        fixed, _ = repaired(grid, places, list(range(8)), "cut")
        alive = [i for i in range(8) if fixed.live_BS[i].any()]
        again = Probe(w.model).measure(fixed.rows(alive), backward=True)

        assert got.loss == pytest.approx(again.loss, rel=1e-5)
        assert got.grad_norm == pytest.approx(again.grad_norm, rel=1e-3)
        assert got.targets == fixed.count
    assert repairs.drift < 1e-4
    spent = probe.forward_tokens
    repairs.effect(places)
    assert probe.forward_tokens == spent
    w.model.zero_grad(set_to_none=True)


def test_tokens_are_carried_into_clean_rows_at_their_columns():
    """Clean rows that are too few, or of another length, carry nothing."""
    w = world("llama")
    case = w.plant.one_id(4)
    grid = Grid.of(case.batch)
    rows = sorted({r for r, _ in case.places})
    hosts = clean_rows(w.calibration.grids, len(rows), grid)
    guests = carried(grid, frozenset(case.places), rows, hosts)
    changed = (guests.tokens_BS != hosts.tokens_BS).sum()

    assert all(guests.tokens_BS[rows.index(r), c] == case.tokens[r, c] for r, c in case.places)
    assert 0 < int(changed) <= len(case.places)
    assert clean_rows(w.calibration.grids, 1000, grid) is None
    assert clean_rows(w.calibration.grids, 1, Grid.of(case.batch.rows([0]))) is not None
    narrow = Grid(tokens_BS=grid.tokens_BS[:, :9], targets_BS=grid.targets_BS[:, :9])
    assert clean_rows(w.calibration.grids, 1, narrow) is None


def test_victims_are_let_go():
    """A stretch that is only hard because of junk before it is no fault of its own."""
    w = world("llama")
    tokens = w.plant.clean(9)
    junk = torch.randint(2, 500, (20,), generator=torch.Generator().manual_seed(1))
    tokens[2, 10:30] = junk
    batch = w.plant._case("junk", tokens, ()).batch
    grid, probe = Grid.of(batch), Probe(w.model)
    m = probe.measure(grid)
    scores = torch.zeros(grid.tokens_BS.shape)
    scores[2, 10:30], scores[2, 36:44] = 2.0, 1.5
    found = Screened(scores, scores, segments=[(2, 10, 29), (2, 36, 43)])
    acquit(w.calibration, found, Repairs(probe, grid, m))

    assert found.segments == [(2, 10, 29)]
    assert found.victims == [(2, 36, 43)]


def test_one_control_is_too_few():
    """The message says how many there have to be."""
    w = world("llama")
    with pytest.raises(ReplayError, match="1 given: at least 2 clean batches"):
        calibrate(Probe(w.model), w.references[:1], 8)
