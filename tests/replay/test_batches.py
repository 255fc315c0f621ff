"""Dumps of every format hold the same batch; what cannot be one is refused in a line."""

import json

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stabcli.errors import ReplayError
from stabcli.replay.batch import IGNORED
from stabcli.replay.load_batches import dumps_in, load_batches
from tests.replay.checkpoints import tokens

IDS = tokens(rows=3, length=8)
ROWS = IDS.tolist()


def write(path, value):
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def refusal(*paths, **how) -> str:
    with pytest.raises(ReplayError) as caught:
        load_batches(list(paths), **how)
    message = str(caught.value)
    assert "\n" not in message
    return message


def formats(folder):
    """One batch in every format that is read."""
    yield write(folder / "a.json", {"input_ids": ROWS, "step": 7})
    yield write(folder / "b.json", [{"input_ids": row, "step": 7} for row in ROWS])
    yield write(
        folder / "c.jsonl",
        "".join(json.dumps({"input_ids": row, "step": 7}) + "\n" for row in ROWS),
    )
    yield write(folder / "d.jsonl", json.dumps({"input_ids": ROWS, "step": 7}))
    torch.save({"input_ids": IDS, "step": 7}, folder / "e.pt")
    yield folder / "e.pt"
    torch.save([{"input_ids": row, "step": 7} for row in IDS], folder / "f.pt")
    yield folder / "f.pt"
    np.savez(folder / "g.npz", input_ids=IDS.numpy().astype(np.uint16), step=7)
    yield folder / "g.npz"
    table = pl.DataFrame({"input_ids": ROWS, "step": [7] * 3})
    table.write_parquet(folder / "h.parquet")
    yield folder / "h.parquet"
    table.write_ipc(folder / "i.arrow")
    yield folder / "i.arrow"
    table.write_ipc_stream(folder / "j.arrow")
    yield folder / "j.arrow"


def test_every_format_is_the_same_batch(tmp_path):
    """JSON in four shapes, torch, numpy, parquet, both kinds of arrow."""
    for path in formats(tmp_path):
        (found,) = load_batches([path])

        assert torch.equal(found.batch.tokens_BT, IDS), path
        assert found.batch.step == 7, path
        assert found.batch.labels_BT is None, path


def test_bare_lists_and_tensors(tmp_path):
    """Nothing but IDs is a batch too."""
    torch.save(IDS, tmp_path / "x.pt")
    for path in (write(tmp_path / "x.json", ROWS), tmp_path / "x.pt"):
        assert torch.equal(load_batches([path])[0].batch.tokens_BT, IDS)


def test_x_and_y_are_next_tokens(tmp_path):
    """nanoGPT's pair: y is the target of the same place."""
    x, y = IDS[:, :-1], IDS[:, 1:]
    torch.save((x, y), tmp_path / "pair.pt")
    torch.save({"x": x, "y": y}, tmp_path / "named.pt")
    for name in ("pair.pt", "named.pt"):
        (found,) = load_batches([tmp_path / name])
        assert torch.equal(found.batch.labels_BT, y)
        assert found.notes == ()


def test_own_labels_are_shifted_and_said(tmp_path):
    """Hugging Face's labels equal the tokens: taken so, with a note; --labels overrules."""
    path = write(tmp_path / "x.json", {"input_ids": ROWS, "labels": ROWS})
    (found,) = load_batches([path])
    assert torch.equal(found.batch.labels_BT[:, :-1], IDS[:, 1:])
    assert (found.batch.labels_BT[:, -1] == IGNORED).all()
    assert "Hugging Face" in found.notes[0]

    (as_they_are,) = load_batches([path], labels="next")
    assert torch.equal(as_they_are.batch.labels_BT, IDS)
    assert as_they_are.notes == ()


def test_one_faulty_batch_does_not_turn_the_convention(tmp_path):
    """How labels lie is settled over all batches: the one with labels not shifted stays a fault."""
    lines = [
        {"step": s, "input_ids": [r[:-1] for r in ROWS], "labels": [r[1:] for r in ROWS]}
        for s in range(4)
    ]
    lines[2]["labels"] = lines[2]["input_ids"]
    found = load_batches(
        [write(tmp_path / "x.jsonl", "".join(json.dumps(line) + "\n" for line in lines))]
    )

    assert torch.equal(found[2].batch.labels_BT, IDS[:, :-1])
    assert torch.equal(found[1].batch.labels_BT, IDS[:, 1:])


def test_masks_ids_and_figures(tmp_path):
    """All that a dump may say is kept."""
    line = {"input_ids": ROWS, "attention_mask": [[1] * 7 + [0]] * 3, "loss_mask": [[1, 0] * 4] * 3,
            "sample_ids": ["a", 5, "c"], "loss": "NaN", "grad_norm": 3, "flagged": True,
            "sequences_in_step": 12}  # fmt: skip
    (found,) = load_batches([write(tmp_path / "x.json", line)])

    assert found.batch.attention_mask_BT[:, -1].sum() == 0
    assert found.batch.loss_mask_BT.sum() == 12
    assert found.batch.sample_ids == ("a", "5", "c")
    assert np.isnan(found.loss)
    assert found.grad_norm == 3.0
    assert found.flagged
    assert "only a part" in found.notes[0]


def test_ranks_of_a_step_are_one_batch(tmp_path):
    """Files of several processes join by their step, in the order given; steps stay apart."""
    paths = [
        write(tmp_path / f"r{r}.json", {"input_ids": [ROWS[r]], "step": 7, "loss": float(r)})
        for r in (0, 1)
    ]
    paths.append(write(tmp_path / "other.json", {"input_ids": [ROWS[2]], "step": 3}))
    other, joined = load_batches(paths)

    assert (other.batch.step, joined.batch.step) == (3, 7)
    assert torch.equal(joined.batch.tokens_BT, IDS[:2])
    assert joined.loss == 0.5


def test_ragged_over_lines_and_files(tmp_path):
    """Sequences of other lengths in a step need padding."""
    lines = write(tmp_path / "x.jsonl", '{"input_ids": [1, 2, 3]}\n{"input_ids": [1, 2]}\n')
    assert "x.jsonl:2: ragged: sequences of 2 tokens" in refusal(lines)
    one, two = (write(tmp_path / f"{n}.json", {"input_ids": [[1] * n], "step": 1}) for n in (3, 4))
    assert "ragged" in refusal(one, two)


def test_labels_of_some_only(tmp_path):
    """Half the ranks with labels cannot be one batch."""
    path = write(
        tmp_path / "x.jsonl", '{"input_ids": [1, 2], "labels": [2, 3]}\n{"input_ids": [1, 2]}\n'
    )

    assert "x.jsonl:2: no labels" in refusal(path)


def test_files_that_are_not_dumps(tmp_path):
    """Another ending, a folder, nothing there, nothing in it."""
    (tmp_path / "x.csv").write_text("1,2")
    (tmp_path / "empty.json").write_text("")
    pl.DataFrame({"text": ["a"]}).write_parquet(tmp_path / "x.parquet")

    assert "known by its ending" in refusal(tmp_path / "x.csv")
    assert "is a folder" in refusal(tmp_path)
    assert "no such file" in refusal(tmp_path / "gone.json")
    assert "empty" in refusal(tmp_path / "empty.json")
    assert "no column input_ids: it has text" in refusal(tmp_path / "x.parquet")
    assert "no sequences" in refusal()


def test_dumps_of_a_folder(tmp_path):
    """Files that may be dumps, in order; a folder with none says so."""
    (tmp_path / "notes.md").write_text("x")
    with pytest.raises(ReplayError, match="no recorded batches"):
        dumps_in(tmp_path)
    with pytest.raises(ReplayError, match="no such folder"):
        dumps_in(tmp_path / "gone")
    write(tmp_path / "b.json", ROWS)
    write(tmp_path / "a.jsonl", json.dumps(ROWS))

    assert [p.name for p in dumps_in(tmp_path)] == ["a.jsonl", "b.json"]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["input_ids", "labels", "step", "x", "loss"]), inner, max_size=3
            )
        ),
        max_leaves=8,
    )
)
@settings(max_examples=150, deadline=None)
def test_any_json_is_a_batch_or_a_line(tmp_path_factory, value):
    """Whatever JSON holds, it is read or refused; nothing else is raised."""
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps(value))
    try:
        (found,) = load_batches([path])
    except ReplayError as error:
        said = str(error)
    else:
        said = ""
        assert found.batch.sequences >= 1
    assert "\n" not in said
