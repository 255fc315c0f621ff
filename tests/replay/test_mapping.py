"""Steps become samples by the stated order, and only losses that agree prove it."""

import math
import struct

import numpy as np
import pytest
import torch

from stabcli.errors import ReplayError
from stabcli.replay.data import open_data, parse_spec
from stabcli.replay.mapping import Agreement, agreement, check, order_of

LENGTH, BATCH = 8, 4


def stream(path, count: int = 4001, dtype=np.uint16) -> np.ndarray:
    ids = np.arange(count).astype(dtype)
    ids.tofile(path)
    return ids


def opened(text: str):
    spec = parse_spec(text)
    data = open_data(spec)
    return data, order_of(spec, data)


def refusal(text: str, step: int = 1) -> str:
    def all_of_it():
        data, order = opened(text)
        data.batch(order(step), step)

    with pytest.raises(ReplayError) as caught:
        all_of_it()
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_nanogpt_stream_in_order(tmp_path):
    """Sample i is the i-th stretch; the target of its last token is the token after it."""
    ids = stream(tmp_path / "train.bin")
    data, order = opened(f"{tmp_path}/train.bin,length={LENGTH},batch={BATCH}")
    batch = data.batch(order(3), 3)

    assert data.samples == 500
    assert batch.tokens_BT.flatten().tolist() == ids[64:96].tolist()
    assert batch.labels_BT[-1, -1] == 96
    assert batch.sample_ids == ("8", "9", "10", "11")
    assert batch.step == 3


def test_first_step_may_be_zero(tmp_path):
    """Trainers that count from 0 say so."""
    stream(tmp_path / "train.bin")
    spec = f"{tmp_path}/train.bin,length={LENGTH},batch={BATCH}"

    assert opened(spec)[1](1) == opened(spec + ",first=0")[1](0) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("name", "drawn"),
    [
        ("numpy", lambda seed, n: np.random.RandomState(seed).permutation(n)),
        ("pcg64", lambda seed, n: np.random.default_rng(seed).permutation(n)),
        (
            "torch",
            lambda seed, n: torch.randperm(
                n, generator=torch.Generator().manual_seed(seed)
            ).numpy(),
        ),
    ],
)
def test_shuffled_orders(tmp_path, name, drawn):
    """Each epoch is drawn anew with the next seed; its incomplete batch is dropped."""
    stream(tmp_path / "train.bin", 8 * 10 + 1)
    _, order = opened(f"{tmp_path}/train.bin,length={LENGTH},batch={BATCH},order={name},seed=5")
    first, second = drawn(5, 10), drawn(6, 10)

    assert order(1) == first[:4].tolist()
    assert order(2) == first[4:8].tolist()
    assert order(3) == second[:4].tolist()
    assert order(1) == first[:4].tolist()


def test_olmo_instances_by_their_indices(tmp_path):
    """Raw files cut one by one, remainders dropped; global indices in the order of training."""
    stream(tmp_path / "a.npy", 35, np.uint32)
    stream(tmp_path / "b.npy", 20, np.uint32)
    np.array([5, 0, 3, 4, 1, 2], np.uint32).tofile(tmp_path / "indices.npy")
    data, order = opened(
        f"{tmp_path}/a.npy+{tmp_path}/b.npy,length=8,batch=2,dtype=uint32,indices={tmp_path}/indices.npy"
    )
    batch = data.batch(order(1), 1)

    assert data.samples == 6
    assert batch.labels_BT is None
    assert batch.tokens_BT[0].tolist() == list(range(8, 16))
    assert batch.tokens_BT[1].tolist() == list(range(8))
    assert order(2) == [3, 4]
    with pytest.raises(ReplayError, match="step 4 is not in it"):
        order(4)


def megatron(folder, documents: list[list[int]], length: int):
    """An indexed data set and its indices, as Megatron-LM lays them out."""
    flat = np.array([i for d in documents for i in d], np.uint16)
    flat.tofile(folder / "x.bin")
    sizes = [len(d) for d in documents]
    offsets = np.cumsum([0, *sizes[:-1]]) * 2
    with (folder / "x.idx").open("wb") as out:
        out.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, len(sizes), len(sizes) + 1))
        out.write(np.array(sizes, np.int32).tobytes() + np.array(offsets, np.int64).tobytes())
        out.write(np.arange(len(sizes) + 1, dtype=np.int64).tobytes())
    order = np.array([2, 0, 1], np.int32)
    joined = np.concatenate([documents[i] for i in order])
    edges, place, offset = [(0, 0)], 0, 0
    for _ in range((len(joined) - 1) // length):
        left = length
        while left:
            room = sizes[order[place]] - offset
            if room > left:
                offset, left = offset + left, 0
            else:
                place, offset, left = place + 1, 0, left - room
        edges.append((place, offset))
    shuffle = np.array([1, 0, 2][: len(edges) - 1], np.int32)
    for name, value in (
        ("document", order),
        ("sample", np.array(edges, np.int32)),
        ("shuffle", shuffle),
    ):
        np.save(folder / f"h-GPTDataset-train-{name}_index.npy", value)
    return joined, shuffle


def test_megatron(tmp_path):
    """Samples run over documents in their shuffled order, then are shuffled themselves."""
    documents = [list(range(100, 107)), list(range(200, 213)), list(range(300, 305))]
    joined, shuffle = megatron(tmp_path, documents, 6)
    for name in ("x", "x.bin", "x.idx"):
        data, order = opened(
            f"{tmp_path}/{name},length=6,batch=1,indices={tmp_path}/h-GPTDataset-train"
        )
        for step in (1, 2, 3):
            batch = data.batch(order(step), step)
            start = int(shuffle[step - 1]) * 6

            assert batch.tokens_BT[0].tolist() == joined[start : start + 6].tolist()
            assert batch.labels_BT[0].tolist() == joined[start + 1 : start + 7].tolist()


def test_megatron_that_is_damaged(tmp_path):
    """A foreign index, one cut short, other indices, no indices."""
    megatron(tmp_path, [list(range(7)), list(range(13)), list(range(5))], 6)
    spec = f"{tmp_path}/x,length=6,batch=1"
    assert "indices=" in refusal(spec)
    assert "check length=" in refusal(
        f"{tmp_path}/x,length=5,batch=1,indices={tmp_path}/h-GPTDataset-train"
    )
    full = f"{spec},indices={tmp_path}/h-GPTDataset-train"
    index = (tmp_path / "x.idx").read_bytes()
    for damaged, said in ((index[:40], "half written"), (b"x" * 60, "MMIDIDX"), (b"", "MMIDIDX")):
        (tmp_path / "x.idx").write_bytes(damaged)
        assert said in refusal(full)
    (tmp_path / "x.idx").write_bytes(index)
    np.save(tmp_path / "h-GPTDataset-train-document_index.npy", np.array([90, 91, 92], np.int32))
    assert "names document" in refusal(full)
    (tmp_path / "x.bin").write_bytes(b"\x00" * 8)
    assert "shorter" in refusal(full)


def blend(tmp_path, weights: list[float], count: int):
    """Two data sets, and the indices that Megatron keeps of their blend: as many of each as its
    weight wants at every point."""
    for name, start in (("a", 100), ("b", 5000)):
        (tmp_path / name).mkdir(exist_ok=True)
        megatron(
            tmp_path / name, [list(range(start + 30 * i, start + 30 * i + 30)) for i in range(3)], 6
        )
    which, own, taken = [], [], [0, 0]
    for n in range(count):
        behind = [w * max(n, 1) - t for w, t in zip(weights, taken, strict=True)]
        part = behind.index(max(behind))
        which.append(part)
        own.append(taken[part])
        taken[part] += 1
    np.save(tmp_path / "h-BlendedDataset-train-dataset_index.npy", np.array(which, np.int16))
    np.save(tmp_path / "h-BlendedDataset-train-dataset_sample_index.npy", np.array(own, np.int64))
    indices = "+".join(f"{tmp_path}/{n}/h-GPTDataset-train" for n in ("a", "b"))
    return f"{tmp_path}/a/x+{tmp_path}/b/x,length=6,batch=1,indices={indices}", which, own


def test_megatron_blend(tmp_path):
    """Samples of several data sets in turns, by the cached indices or worked out from the weights."""
    spec, which, own = blend(tmp_path, [0.25, 0.75], 4)
    alone = [
        opened(f"{tmp_path}/{n}/x,length=6,batch=1,indices={tmp_path}/{n}/h-GPTDataset-train")[0]
        for n in ("a", "b")
    ]
    assert which == [1, 0, 1, 1]
    for how in (f"blend={tmp_path}/h-BlendedDataset-train", "weights=1+3"):
        data, order = opened(f"{spec},{how}")
        for step in (1, 2, 3, 4):
            want = alone[which[step - 1]].batch([own[step - 1]], step)
            got = data.batch(order(step), step)

            assert got.tokens_BT.tolist() == want.tokens_BT.tolist()
            assert got.labels_BT.tolist() == want.labels_BT.tolist()


def test_a_wrong_blend_is_refused_by_the_losses(tmp_path):
    """Other weights give other batches, whose losses are not those of the log."""
    spec, *_ = blend(tmp_path, [0.5, 0.5], 6)
    rng = np.random.default_rng(3)
    long = [rng.integers(0, 60_000, 400).tolist() for _ in range(3)]
    for name in ("a", "b"):
        megatron(tmp_path / name, [[i + 1 for i in d] if name == "b" else d for d in long], 6)
        np.save(
            tmp_path / name / "h-GPTDataset-train-shuffle_index.npy",
            np.random.default_rng(ord(name)).permutation(60),
        )

    def replayed(weights: str) -> list[float]:
        data, order = opened(f"{spec},weights={weights}")
        return [float(data.batch(order(s), s).tokens_BT.double().mean()) for s in range(1, 25)]

    logged = [0.9 * v + 1 for v in replayed("2+1")]
    assert agreement(replayed("2+1"), logged).proven
    for wrong in ("1+2", "1+1", "5+1"):
        with pytest.raises(ReplayError, match=r"not the samples of those steps|off by"):
            check(agreement(replayed(wrong), logged), "x")


def test_megatron_blend_that_does_not_fit(tmp_path):
    """No way of blending, indices or weights for another number of data sets, foreign indices."""
    spec, *_ = blend(tmp_path, [0.5, 0.5], 6)
    cached = f"{spec},blend={tmp_path}/h-BlendedDataset-train"

    assert "how were the 2 data sets blended" in refusal(spec)
    for weights in ("1", "1+2+3", "1+x", "1+-1", "nan+1"):
        assert "how were the 2" in refusal(f"{spec},weights={weights}")
    assert "2 data sets are blended and 1 have indices" in refusal(
        f"{tmp_path}/a/x+{tmp_path}/b/x,length=6,batch=1,weights=1+1,"
        f"indices={tmp_path}/a/h-GPTDataset-train"
    )
    assert "no such file" in refusal(spec.replace("/b/x", "/c/x") + ",weights=1+1")
    assert "the blend wants its sample 3" in refusal(f"{spec},weights=1+1", step=8)
    np.save(tmp_path / "h-BlendedDataset-train-dataset_index.npy", np.array([7] * 6, np.int16))
    assert "names data set 7" in refusal(cached)
    np.save(tmp_path / "h-BlendedDataset-train-dataset_index.npy", np.array([0], np.int16))
    assert "not the indices of a blend" in refusal(cached)
    assert "too far to work out" in refusal(f"{spec},weights=1+1", step=5_000_000)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no file named"),
        ("x.bin", "no such file"),
        ("x.bin,length", "not one of"),
        ("x.bin,colour=3", "not one of"),
    ],
)
def test_spec_that_is_none(text, said):
    """What --data takes is said."""
    assert said in refusal(text)


def test_spec_that_does_not_fit_the_file(tmp_path):
    """Missing or wrong values, files too short, orders that cannot be known."""
    stream(tmp_path / "t.bin")
    (tmp_path / "odd.bin").write_bytes(b"abc")
    (tmp_path / "none.bin").write_bytes(b"")
    base = f"{tmp_path}/t.bin"

    assert "length is needed" in refusal(f"{base},batch=4")
    assert "batch is needed" in refusal(f"{base},length=8")
    assert "not a whole number" in refusal(f"{base},length=x,batch=4")
    assert "too small" in refusal(f"{base},length=0,batch=4")
    assert "dtype=" in refusal(f"{base},length=8,batch=4,dtype=float32")
    assert "order=" in refusal(f"{base},length=8,batch=4,order=nanogpt")
    assert "seed is needed" in refusal(f"{base},length=8,batch=4,order=numpy")
    assert "shorter than one sample" in refusal(f"{base},length=80000,batch=4")
    assert "less than one batch" in refusal(f"{base},length=8,batch=4000,order=numpy,seed=1")
    assert "no whole number" in refusal(f"{tmp_path}/odd.bin,length=1,batch=1")
    assert "empty" in refusal(f"{tmp_path}/none.bin,length=1,batch=1")
    assert "before the first" in refusal(f"{base},length=8,batch=4", step=0)
    assert "cannot be imported" in refusal(f"{base},length=8,batch=4,rows=no_such:thing")


def own_rows(step: int) -> list[int]:
    return [step, step + 10_000]


def test_own_order(tmp_path):
    """The user's own function gives sample numbers; one that does not exist is said."""
    stream(tmp_path / "t.bin")
    data, order = opened(
        f"{tmp_path}/t.bin,length=8,batch=2,rows=tests.replay.test_mapping:own_rows"
    )

    assert order(5) == [5, 10_005]
    with pytest.raises(ReplayError, match="wants sample 10,005"):
        data.batch(order(5), 5)


def losses(count: int, seed: int = 0) -> np.ndarray:
    """Losses of batches: a slow fall, and each batch's own difficulty."""
    rng = np.random.default_rng(seed)
    return 3.0 - 0.002 * np.arange(count) + 0.2 * rng.standard_normal(count)


def test_right_mapping_is_proven():
    """The same batches on another checkpoint: another level, a little noise."""
    logged = losses(24)
    replayed = 0.9 * logged + 0.5 + 0.02 * np.random.default_rng(1).standard_normal(24)
    found = agreement(replayed, logged)

    assert found.proven
    assert check(found, "x") > 0.98


def test_wrong_seed_is_refused():
    """Other batches of the same data, over 200 draws: never proven."""
    for seed in range(200):
        found = agreement(losses(24, 2 * seed), losses(24, 2 * seed + 1))
        assert not found.proven
    with pytest.raises(ReplayError, match="wrong seed or order"):
        check(found, "x")


@pytest.mark.parametrize("shift", [-2, -1, 1, 2])
def test_off_by_one_is_refused_and_named(shift):
    """The right batches at the wrong steps."""
    whole = losses(40)
    replayed = whole[8 + shift : 32 + shift]
    found = agreement(replayed, whole[8:32])

    assert not found.proven
    assert found.shift == shift
    with pytest.raises(ReplayError, match=f"off by {abs(shift)}"):
        check(found, "x")


def test_a_common_fall_proves_nothing():
    """Losses that fall alike, with batches of their own, do not correlate once the line is out."""
    fall = np.linspace(5, 3, 24)
    rng = np.random.default_rng(0)
    found = agreement(fall + 0.05 * rng.standard_normal(24), fall + 0.05 * rng.standard_normal(24))

    assert not found.proven


def test_too_few_steps_and_degenerate_series():
    """Nothing, seven steps, constants, NaN: never proven, never a crash."""
    assert not agreement([], []).proven
    assert not agreement(losses(7), losses(7)).proven
    assert not agreement([3.0] * 24, [3.0] * 24).proven
    assert not agreement([math.nan] * 24, losses(24)).proven
    mixed = losses(24).copy()
    mixed[3] = math.nan
    assert agreement(mixed, losses(24)).proven
    with pytest.raises(ReplayError, match="8 are needed"):
        check(Agreement(correlation=1.0, steps=7), "x")
