"""Files of W&B that are damaged, cut short or made to mislead: what is lost is told of."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stabcli.wandbfile import read_wandb
from tests.test_wandbfile import read, read_bytes, table
from tests.wandb_writing import (
    START,
    field,
    framed,
    history,
    part,
    rows,
    varint,
    whole,
)


def test_every_flipped_bit_costs_one_record(tmp_path):
    """Whatever bit is flipped in a record, that record is lost, told of, and no other."""
    records = rows(60)
    data, spans = framed(records)
    clean = table(read_bytes(tmp_path, data))
    random.seed(1)
    for number in (0, 30, 59):
        begun, end = spans[number]
        places = [*range(begun, begun + 7), *random.sample(range(begun + 7, end), 10)]
        for place in places:
            for bit in range(8):
                hurt = bytearray(data)
                hurt[place] ^= 1 << bit
                file = read_bytes(tmp_path, hurt)
                assert table(file) == clean[:number] + clean[number + 1 :], (place, bit)
                told = [d.at for d in file.damaged] or [len(data) - file.torn]
                assert told == [begun]
                assert (file.numbers == np.delete(np.arange(1, 61), number)).all()


def test_a_hole_costs_what_lies_in_it(tmp_path):
    """Zeros, or noise, over several blocks: all before and behind is kept, one stretch is told."""
    records = rows(3000)
    data, spans = framed(records)
    for fill in (bytes(100_000), random.Random(0).randbytes(100_000)):
        hurt = data[:50_000] + fill + data[150_000:]
        file = read_bytes(tmp_path, hurt)
        sound = [n for n, (a, e) in enumerate(spans, 1) if e <= 50_000 or a >= 150_000]

        assert file.steps.tolist() == [n - 1 for n in sound]
        assert sum(d.stop - d.at for d in file.damaged) >= 100_000
        assert len(file.damaged) <= 2
        assert file.torn == 0


def test_a_damaged_part_costs_its_record_once(tmp_path):
    """Of a record over five blocks any part may be damaged: one record is lost, counted once."""
    wide = field(4, bytes(150_000))
    data, spans = framed([*rows(5), wide, *rows(5, first=5)])
    begun, end = spans[5]
    for place in range(begun + 20, end, 20_000):
        hurt = bytearray(data)
        hurt[place] ^= 1
        file = read_bytes(tmp_path, hurt)
        assert file.steps.tolist() == list(range(10))
        assert len(file.damaged) == 1, place
        assert file.records == 11


def test_truncated_at_any_byte(tmp_path):
    """What was whole is kept; a cut inside a record is told of."""
    records = [*rows(30), field(4, bytes(70_000)), *rows(30, first=30)]
    data, spans = framed(records)
    ends = {7, *(e for _, e in spans)}
    cuts = [
        *range(1, 400),
        *range(spans[29][0], spans[29][1]),
        *range(spans[30][0], len(data), 997),
    ]
    for cut in cuts:
        file = read_bytes(tmp_path, data[:cut])
        whole_rows = sum(e <= cut for n, (_, e) in enumerate(spans) if n != 30)
        assert file.height == whole_rows, cut
        told = file.torn > 0 or bool(file.damaged)
        assert told == (cut not in ends), cut


def test_a_lost_header_of_the_file_is_told_of(tmp_path):
    """The records behind it are read all the same."""
    data, _ = framed(rows(5))
    file = read_bytes(tmp_path, b"XX" + data[2:])

    assert file.height == 5
    assert [(d.record, d.at) for d in file.damaged] == [(0, 0)]


def test_foreign_records_are_told_of(tmp_path):
    """A sound checksum over what is no message: counted, located, passed by."""
    foreign = [b"\xff" * 40, field(2, b"\x0a\xff\x7f"), b"\x12", b"\x0b\x01", field(18, b"\x08")]
    for strange in foreign:
        records = [*rows(40), strange, *rows(40, first=40)]
        data, spans = framed(records, numbered=False)
        file = read_bytes(tmp_path, data)
        assert file.steps.tolist() == list(range(80)), strange
        assert [(d.record, d.at) for d in file.damaged] == [(41, spans[40][0])], strange


def test_absurd_lengths_allocate_nothing(tmp_path):
    """Fields that claim to be 2^63 bytes long, at every level."""
    absurd = varint(2**63 - 1)
    for strange in (
        b"\x12" + absurd,
        field(2, b"\x0a" + absurd),
        field(2, field(1, b"\x12" + absurd)),
        field(2, field(1, field(2, "a") + b"\x82\x01" + absurd)),
        field(17, b"\x0a" + absurd),
        b"\x12" + b"\xff" * 9 + b"\x01",
    ):
        for count in (1, 40):
            file = read(tmp_path, [*rows(1), *[strange] * count, *rows(1, first=1)])
            lost = [r for r in table(file) if "train/loss" not in r]
            assert 0 in file.steps
            assert 1 in file.steps
            assert len(file.damaged) + file.unreadable == count
            assert lost == [] or lost == [{}] * count


@pytest.mark.parametrize("tiny", [b"\x08\x01", b"\xaa\x06\x00"])
def test_records_of_a_hundred_thousand_fields_do_not_hang(tmp_path, tiny):
    """Many fields in one record, at the top and in history, take no longer than they must."""
    file = read(tmp_path, [tiny * 100_000, field(2, tiny * 100_000), *rows(1)])

    assert file.height == 2
    assert not file.damaged


def test_deep_nesting_is_no_value(tmp_path):
    """JSON nested a hundred thousand deep is given up, not followed."""
    deep = field(16, '{"a":' * 100_000 + "1" + "}" * 100_000)
    file = read(tmp_path, [history({"loss": 1, "deep": deep})])

    assert table(file) == [{"loss": 1}]
    assert file.unreadable == 1


def test_a_file_that_looks_like_headers_everywhere_does_not_hang(tmp_path):
    """Bytes that could be the header of a part at every place: the search for one is bounded."""
    noise = bytes([0, 0, 0, 0, 1, 1, 1]) * 300_000
    file = read_bytes(tmp_path, START + noise)

    assert file.height == 0
    assert sum(d.stop - d.at for d in file.damaged) + file.torn == len(noise)


SOUND, SPANS = framed(
    [*whole(40, values={"lr": 1e-3}), field(4, bytes(40_000)), *rows(40, first=40)]
)


@given(
    st.lists(st.tuples(st.integers(0, len(SOUND) - 1), st.integers(1, 255)), min_size=1, max_size=8)
)
def test_mutated_bytes_lose_only_what_they_hit(tmp_path_factory, changes):
    """Rows whose bytes were left alone are read as before; every other loss is told of."""
    hurt = bytearray(SOUND)
    for place, bits in changes:
        hurt[place] ^= bits
    hit = {p for p, _ in changes if hurt[p] != SOUND[p]}
    file = read_bytes(tmp_path_factory.mktemp("w"), hurt)
    clean = [n for n, (a, e) in enumerate(SPANS) if not any(a <= p < e for p in hit)]
    steps = [n - 1 if n < 42 else n - 3 for n in clean if 1 <= n <= 40 or n >= 43]

    assert file.steps.tolist() == steps
    assert bool(file.damaged or file.torn) == bool(hit)


@given(st.binary(max_size=200), st.integers(0, 40))
def test_sound_frames_around_noise(tmp_path_factory, noise, before):
    """Any bytes under a sound checksum are read or told of, and cost no other record."""
    folder = tmp_path_factory.mktemp("w")
    path = folder / "x.wandb"
    data = START + b"".join(part(1, r) for r in [*rows(before), noise, *rows(3, first=100)])
    path.write_bytes(data)
    file = read_wandb(path)
    steps = file.steps.tolist()

    assert steps[:before] == list(range(before))
    assert steps[-3:] == [100, 101, 102]
    assert len(steps) - before - 3 in (0, 1)
