"""What a batch and the weights tell without a pass."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stabcli.replay.batch import IGNORED, Batch, shift_labels
from stabcli.replay.static import inspect, repeated, runs
from stabcli.replay.weights import weigh
from tests.replay.models import untrained

IDS = 90


def tokens(rows=4, length=40, seed=0):
    return torch.randint(2, IDS, (rows, length), generator=torch.Generator().manual_seed(seed))


def settled(batch, pad_id=None, tokenizer=None):
    """The kinds that are settled, and the first oddity."""
    found = inspect(batch, IDS, pad_id=pad_id, tokenizer=tokenizer)
    return [oddity.kind for oddity in found if oddity.kind], (found or [None])[0]


def labelled(x, targets=None):
    return Batch(tokens_BT=x, labels_BT=shift_labels(x) if targets is None else targets)


@pytest.mark.parametrize(
    "batch",
    [
        labelled(tokens()),
        labelled(tokens(1, 2)),
        Batch(tokens_BT=tokens()),
        Batch(tokens_BT=tokens(), loss_mask_BT=torch.arange(40).expand(4, 40) > 20),
        labelled(tokens(), shift_labels(tokens()).where(torch.arange(40) > 36, IGNORED)),
    ],
    ids=["labelled", "two tokens", "no labels", "prompts masked", "few targets"],
)
def test_sound_batches_have_no_oddity(batch):
    """Masked prompts and few targets are usual."""
    assert inspect(batch, IDS, pad_id=0, tokenizer=IDS) == []


@pytest.mark.parametrize("bad", [-1, IDS, 2**40])
def test_impossible_ids_are_named_with_their_places(bad):
    """Each place of an ID outside the table."""
    x = tokens()
    x[1, 5] = x[3, 0] = bad
    kinds, oddity = settled(Batch(tokens_BT=x))

    assert kinds == ["invalid-input"]
    assert [(c.token_id, c.positions) for c in oddity.culprits] == [(bad, ((1, 5), (3, 0)))]


def test_impossible_targets_are_named():
    """A target outside the output is as bad as a token."""
    targets = shift_labels(tokens())
    targets[2, 7] = IDS
    kinds, oddity = settled(labelled(tokens(), targets))

    assert kinds == ["invalid-input"]
    assert oddity.culprits[0].positions == ((2, 7),)


def test_rows_beyond_the_tokenizer_are_a_lead():
    """They can be trained, so they settle nothing."""
    x = tokens()
    x[x >= 80] = 5
    x[0, 3] = 85
    kinds, oddity = settled(Batch(tokens_BT=x), tokenizer=80)

    assert kinds == []
    assert oddity.culprits[0].token_id == 85


@pytest.mark.parametrize(
    ("move", "said"),
    [
        (lambda t, x: torch.roll(t, -1), "predict 2 tokens ahead"),
        (lambda t, x: x, "labels were not shifted"),
        (lambda t, x: torch.roll(x, 1), "predict -1 tokens ahead"),
        (
            lambda t, x: t[torch.randperm(len(t), generator=torch.Generator().manual_seed(0))],
            "no offset",
        ),
    ],
)
def test_targets_that_do_not_fit_are_named(move, said):
    """Shifted once too often, not at all, backwards, shuffled: the rows it befell, not the others."""
    x = tokens()
    targets = shift_labels(x)
    targets[2] = move(targets[2], x[2])
    kinds, oddity = settled(labelled(x, targets))
    rows = {row for c in oddity.culprits for row, _ in c.positions}

    assert kinds == ["label-fault"]
    assert said in oddity.text
    assert rows == {2}
    assert len([p for c in oddity.culprits for p in c.positions]) >= 34


def test_nothing_trained_on_is_a_label_fault():
    """The mean of no losses."""
    kinds, oddity = settled(labelled(tokens(), torch.full((4, 40), IGNORED)))

    assert kinds == ["label-fault"]
    assert "0 / 0" in oddity.text


def test_padding_in_the_loss_is_found_by_id_and_by_mask():
    """By the ID where it is known, by the attention mask else; a few ends of text are no padding."""
    x = tokens()
    x[1, 10:] = 0
    mask = torch.ones_like(x)
    mask[1, 10:] = 0
    by_id, oddity = settled(labelled(x), pad_id=0)
    by_mask, _ = settled(Batch(tokens_BT=x, labels_BT=shift_labels(x), attention_mask_BT=mask))
    y = tokens()
    y[0, 5] = y[0, 6] = 0

    assert by_id == by_mask == ["label-fault"]
    assert oddity.culprits[0].token_id == 0
    assert len(oddity.culprits[0].positions) == 30
    assert settled(labelled(y), pad_id=0)[0] == []
    assert settled(Batch(tokens_BT=x, attention_mask_BT=mask), pad_id=0)[0] == []


def test_copies_and_untrained_rows_are_leads():
    """They are listed and settle nothing."""
    x = tokens()
    x[3] = x[0]
    targets = shift_labels(x)
    targets[1] = IGNORED
    found = inspect(labelled(x, targets), IDS, pad_id=None, tokenizer=None)

    assert [oddity.kind for oddity in found] == [None, None]
    assert "sequences 1 have no target" in found[0].text
    assert "sequences 0, 3 are copies" in found[1].text


@settings(max_examples=60, deadline=None)
@given(
    period=st.integers(1, 13), before=st.integers(0, 20), times=st.integers(8, 12),
    after=st.integers(0, 20), seed=st.integers(0, 1000),
)  # fmt: skip
def test_repetitions_are_found_to_the_token(period, before, times, after, seed):
    """Any planted n-gram is found with its period, at its place, once."""
    rng = np.random.default_rng(seed)
    gram = rng.permutation(period) + 1000
    long = max(times * period, 24)
    whole = np.concatenate(
        [rng.permutation(100)[:before], np.resize(gram, long), 200 + rng.permutation(100)[:after]]
    )

    assert repeated(whole) == [(before, before + long - 1, period, long // period)]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.booleans(), max_size=40), st.integers(0, 4))
def test_runs_cover_what_is_true(flags, gap):
    """Runs begin and end with a True, hold them all, and lie more than the gap apart."""
    found = runs(np.array(flags, dtype=bool), gap)
    inside = {i for first, last in found for i in range(first, last + 1)}

    assert {i for i, flag in enumerate(flags) if flag} <= inside
    assert all(flags[first] and flags[last] for first, last in found)
    assert all(b[0] - a[1] - 1 > gap for a, b in itertools.pairwise(found))


def test_text_without_repetition_has_none():
    """Nor has a constant that is too short, or a single token."""
    assert repeated(np.arange(100)) == []
    assert repeated(np.zeros(23, int)) == []
    assert repeated(np.zeros(1, int)) == []


def test_sound_weights_have_nothing_to_say():
    """Freshly made models of both kinds."""
    for arch in ("llama", "gpt2"):
        report = weigh(untrained(arch, IDS, width=32, layers=2), list(range(1, IDS)))

        assert report.nonfinite == report.absurd == ()
        assert report.odd_rows == {}


def test_bad_weights_are_named():
    """NaN and infinities by parameter and row, a flipped bit by parameter, rows by ID."""
    model = untrained("llama", IDS, width=32, layers=2)
    table = model.get_input_embeddings().weight.data
    table[7, 3] = torch.nan
    table[8] = 0
    table[9] *= 300
    model.model.norm.weight.data[0] = torch.inf
    model.model.layers[0].mlp.up_proj.weight.data[1, 1] = 1e30
    moments = torch.ones(IDS, 32)
    moments[11] = 0
    report = weigh(model, [7, 8, 9, 10, 11], moments)

    assert report.nonfinite == ("model.embed_tokens.weight", "model.norm.weight")
    assert report.nonfinite_rows == (7,)
    assert report.absurd == ("model.layers.0.mlp.up_proj.weight",)
    assert list(report.odd_rows) == [7, 8, 9, 11]
    assert "zero row" in report.odd_rows[8]
    assert "never trained" in report.odd_rows[11]
