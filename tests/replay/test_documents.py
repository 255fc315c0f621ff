"""Sequences of several documents that do not see one another, as packed training feeds them."""

import json

import pytest
import torch

from stabcli.errors import ReplayError
from stabcli.record import Recorder
from stabcli.replay.batch import Batch, positions_by
from stabcli.replay.choosing import Request, choose
from stabcli.replay.load_batches import load_batches
from stabcli.replay.probes import Grid, Probe
from stabcli.replay.repair import repaired
from tests.replay.sharded_worker import IDS, model_of
from tests.replay.test_probes import Plain

END = 1
SEQUENCE = [5, 6, 7, END, 8, 9, END, 10, 11, 12]
PARTED = [0, 1, 2, 3, 0, 1, 2, 0, 1, 2]


def packed():
    tokens = torch.tensor([SEQUENCE, SEQUENCE[::-1]])
    return Batch(tokens_BT=tokens, positions_BT=positions_by(tokens, END))


def test_positions_begin_anew_after_each_end():
    """The ID that ends a document belongs to it."""
    assert packed().positions_BT.tolist() == [PARTED, [0, 1, 2, 3, 0, 1, 2, 0, 1, 2]]
    assert positions_by(torch.tensor([[1, 1, 2]]), END).tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("arch", ["llama", "gpt2"])
def test_documents_do_not_see_one_another(arch):
    """Each gives the losses it gives alone, and its shares add up."""
    probe = Probe(model_of(arch))
    m = probe.measure(Grid.of(packed()), backward=True, shares=True)
    for first, last in ((0, 4), (4, 7), (7, 10)):
        alone = Batch(tokens_BT=torch.tensor([SEQUENCE[first:last]]))
        losses = probe.measure(Grid.of(alone)).loss_BS[0, 1 : last - first]

        assert torch.allclose(m.loss_BS[0, first + 1 : last], losses, atol=1e-5)
    together = probe.measure(Grid.of(Batch(tokens_BT=packed().tokens_BT)))
    assert not torch.allclose(m.loss_BS[0, 5:7], together.loss_BS[0, 5:7], atol=1e-3)
    assert m.coverage == pytest.approx(1.0, abs=1e-4)


def test_a_cut_closes_up_within_its_document():
    """What stays keeps its document, and counts without a gap; a document may go as a whole."""
    grid = Grid.of(packed())
    some, _ = repaired(grid, frozenset({(0, 1), (0, 5)}), [0], "cut")
    whole, _ = repaired(grid, frozenset({(0, 4), (0, 5), (0, 6)}), [0], "cut")

    assert some.tokens_BS[0, :8].tolist() == [5, 7, END, 8, END, 10, 11, 12]
    assert some.positions_BS[0, :8].tolist() == [0, 1, 2, 0, 1, 0, 1, 2]
    assert whole.tokens_BS[0, :7].tolist() == [5, 6, 7, END, 10, 11, 12]
    assert whole.positions_BS[0, :7].tolist() == [0, 1, 2, 3, 0, 1, 2]


def test_recorded_positions_are_replayed(tmp_path):
    """A dump keeps them, with the attention mask that was given beside them."""
    record = Recorder(tmp_path)
    mask = [[1] * len(SEQUENCE)]
    record(1, [SEQUENCE], loss=float("nan"), position_ids=[PARTED], attention_mask=mask)
    (dump,) = tmp_path.iterdir()
    (recorded,) = load_batches([dump])

    assert recorded.batch.positions_BT.tolist() == [PARTED]
    assert recorded.batch.attention_mask_BT.all()


def dumped(path, tokens, **more):
    lines = [
        {"step": i, "input_ids": tokens.tolist(), "flagged": i == 3, "loss": 3.0, **more}
        for i in range(4)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_the_end_of_a_document_can_be_stated(tmp_path):
    """For dumps and data without positions; an ID that is nowhere is a mistake."""
    tokens = packed().tokens_BT
    path = dumped(tmp_path / "b.jsonl", tokens)
    request = {"checkpoint": tmp_path, "batch": (path,)}
    chosen = choose(Request(**request, documents=END))

    for recorded in (*chosen.flagged, *chosen.controls):
        assert recorded.batch.positions_BT[0].tolist() == PARTED
    with pytest.raises(ReplayError, match="--documents 96: no batch holds this ID"):
        choose(Request(**request, documents=IDS - 1))
    own = dumped(tmp_path / "own.jsonl", tokens, position_ids=[list(range(10))] * 2)
    chosen = choose(Request(checkpoint=tmp_path, batch=(own,), documents=END))
    assert chosen.flagged[0].batch.positions_BT[0].tolist() == list(range(10))


def test_a_model_that_cannot_part_documents_is_refused():
    """Rather than run as if it could."""
    with pytest.raises(ReplayError, match="forward takes no position_ids"):
        Probe(Plain()).measure(Grid.of(packed()))
