import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stabcli.eventfile import checksum


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"123456789", 0xE3069283),
    ],
)
def test_checksums_are_those_of_the_standard(data, expected):
    """The values of RFC 3720, appendix B.4, come out."""
    assert checksum.of_rows(np.frombuffer(data, np.uint8)[None])[0] == expected


@given(st.integers(1, 3000), st.integers(1, 3), st.integers(0, 2**32 - 1))
@settings(max_examples=50, deadline=None)
def test_long_and_short_ways_to_a_checksum_agree(length, count, seed):
    """A record cut into pieces has the checksum of one looked at byte by byte."""
    rows = np.random.default_rng(seed).integers(0, 256, (count, length), np.uint8)

    one_by_one = checksum._registers(rows, np.uint32(0xFFFFFFFF)) ^ np.uint32(0xFFFFFFFF)

    np.testing.assert_array_equal(checksum.of_rows(rows), one_by_one)


@given(st.integers(1, 60), st.integers(1, 10), st.integers(0, 60), st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None)
def test_changed_bytes_change_a_checksum_by_what_they_add(before, width, after, seed):
    """A checksum XOR what the changed bytes add is the checksum of the changed record."""
    random = np.random.default_rng(seed)
    rows = np.tile(random.integers(0, 256, before + width + after, np.uint8), (5, 1))
    changed = rows.copy()
    changed[:, before : before + width] = random.integers(0, 256, (5, width), np.uint8)

    added = checksum.of_changes((rows ^ changed)[:, before:], width, after)

    np.testing.assert_array_equal(checksum.of_rows(rows) ^ added, checksum.of_rows(changed))


def test_unmasking_undoes_masking():
    """A stored checksum gives back the one it was made of."""
    values = np.array([0, 1, 0xFFFFFFFF, 0xA282EAD8, 0x12345678], np.uint32)

    np.testing.assert_array_equal(checksum.unmask(checksum.mask(values)), values)
