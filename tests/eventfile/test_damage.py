import struct

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stabcli.eventfile import checksum, read_events, starts_like_events
from tests.event_writing import (
    TAGS,
    assert_equal,
    cycles,
    points,
    record,
    scalar,
    version,
)


def test_one_flipped_bit_costs_one_record(read):
    """Wherever it falls, no value is changed, at most one is lost, and it is said where."""
    whole = version() + cycles(4, tags=TAGS[:2])
    clean = points(read(whole))
    total = sum(map(len, clean.values()))
    for at in range(len(whole)):
        broken = bytearray(whole)
        broken[at] ^= 1 << at % 8
        found = read(bytes(broken))
        kept = points(found)

        assert len(found.damaged) == 1 or found.torn, at
        assert sum(map(len, kept.values())) >= total - 1, at
        assert all(set(series) <= set(clean[tag]) for tag, series in kept.items()), at


@pytest.mark.parametrize("rows", [[7], [7, 8], [7, 9, 40, 42], [3, 100, 250, 299]])
@pytest.mark.parametrize("back", [5, 9, 30])
def test_flips_that_cancel_are_found_in_what_repeats(read, rows, back):
    """The same bit flipped in several rows is found in each, value, time or tag."""
    whole = bytearray(version() + cycles(300))
    size = len(cycles(200)) - len(cycles(199))
    late = len(version()) + len(cycles(129))
    for row in rows:
        end = len(version()) + len(cycles(row + 1)) if row < 129 else late + (row - 128) * size
        whole[end - back] ^= 16  # 5: the value, 9: the tag, 30: the length
    found = read(bytes(whole))

    assert [d.record for d in found.damaged] == [4 + 3 * row for row in rows]
    assert found.points == 900 - len(rows)


def test_truncation_at_every_byte_keeps_what_came_before(read):
    """A crash while writing costs the last record; the rest and the loss of it are told."""
    parts = [version(), *[scalar("loss", n, n) for n in range(5)]]
    whole = b"".join(parts)
    ends = np.cumsum([len(p) for p in parts]).tolist()
    for length in range(len(whole) + 1):
        found = read(whole[:length])
        complete = sum(end <= length for end in ends)

        assert found.points == max(0, complete - 1)
        assert found.torn == length - ([0, *ends][complete])
        assert found.damaged == ()


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 2**40, 2**32])
@pytest.mark.parametrize("signed", [True, False])
def test_an_absurd_length_allocates_nothing(read, length, signed):
    """Signed by its checksum, it is a torn record; else it is passed over."""
    size = struct.pack("<Q", length)
    check = struct.pack(
        "<I", int(checksum.mask(checksum.of_rows(np.frombuffer(size, np.uint8)[None]))[0])
    )
    header = size + (check if signed else b"\1\2\3\4")
    found = read(version() + header + bytes(8) + scalar("loss", 1, 2.0))

    assert found.points == (0 if signed else 1)
    assert bool(found.torn) == signed
    assert len(found.damaged) == (0 if signed else 1)


def test_a_hole_of_zeros_is_passed_over(read):
    """Blocks that a crashed file system left empty cost what stood there."""
    found = read(version() + cycles(20) + bytes(5000) + cycles(30))

    assert found.points == 150
    assert len(found.damaged) == 1
    assert "5,000 bytes lost" in found.damaged[0].why


def test_a_tail_of_zeros_is_told(read):
    """Zeros up to the end of the file are damage, not silence."""
    found = read(version() + cycles(2) + bytes(100_000))

    assert found.points == 6
    assert len(found.damaged) == 1


def test_bytes_that_are_no_event_are_told(read):
    """A checksum that fits does not make an event."""
    found = read(version() + record(b"\x0f\xff\xff") + record(b"\x2a\x7f") + scalar("loss", 1, 2.0))

    assert found.points == 1
    assert [d.record for d in found.damaged] == [2, 3]
    assert all("no event" in d.why for d in found.damaged)


BASE = version() + cycles(80) + scalar("eval", 80, 1.0) + cycles(20)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_mutated_files_never_crash_and_never_lie(tmp_path_factory, data):
    """Bytes changed, cut out or put in: both ways agree and no value is made up."""
    mutated = bytearray(BASE)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(mutated) - 1))
        kind = data.draw(st.sampled_from(["flip", "cut", "insert", "copy"]))
        if kind == "flip":
            mutated[at] ^= data.draw(st.integers(1, 255))
        elif kind == "cut":
            del mutated[at : at + data.draw(st.integers(1, 300))]
        elif kind == "insert":
            mutated[at:at] = data.draw(st.binary(min_size=1, max_size=40))
        else:
            mutated[at:at] = mutated[at : at + data.draw(st.integers(1, 300))]
    path = tmp_path_factory.mktemp("log") / "events"
    path.write_bytes(mutated)

    fast, slow = read_events(path), read_events(path, periodic=False)

    assert_equal(fast, slow)
    known = {tag: {(n, 1.7e9 + n, n + k / 8) for n in range(80)} for k, tag in enumerate(TAGS)}
    known["eval"] = {(80, 1.7e9 + 80, 1.0)}
    assert all(set(series) <= known[tag] for tag, series in points(fast).items())


@given(st.lists(st.one_of(st.binary(max_size=60), st.just(b"\x2a\x02\x0a\x00")), max_size=8))
@example([b"\x10" + b"\xff" * 9 + b"\x01"])
@settings(max_examples=200, deadline=None)
def test_any_bytes_in_sound_records_never_crash(tmp_path_factory, payloads):
    """Whatever stands in a record, it is a scalar, something else, or told as no event."""
    path = tmp_path_factory.mktemp("log") / "events"
    path.write_bytes(b"".join(map(record, payloads)))

    found = read_events(path)

    assert found.records == len(payloads)
    assert_equal(found, read_events(path, periodic=False))


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"", False),
        (b"{}", False),
        (b"step,loss\n1,2\n3,4\n", False),
        (scalar("loss", 1, 2.0), False),
        (version()[:20], False),
        (version(), True),
        (version() + b"rest", True),
    ],
)
def test_event_files_are_told_by_their_first_record(head, expected):
    """A length with its checksum and the version string; nothing else passes."""
    assert starts_like_events(head) is expected
