"""Archives that trackers leave: read as far as they can be, and never beyond a bound."""

import pytest

from stabcli.errors import LogError
from stabcli.sources import open_source
from stabcli.trackers import zips
from stabcli.trackers.values import Faults
from tests.tracker_writing import zipped


def unpacked(path, member="a"):
    faults = Faults()
    return list(zips.lines(open_source(path), member, faults)), faults


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    """Zeros pack a thousand times: no log does."""
    monkeypatch.setattr(zips, "FREE", 1 << 16)
    bomb = zipped(tmp_path / "bomb.zip", {"a": "0" * 50 + "\n" * (1 << 21)})
    with pytest.raises(LogError, match=r"a unpacks to more than 200 times the archive"):
        unpacked(bomb)
    monkeypatch.setattr(zips, "LONGEST_LINE", 1 << 12)
    bomb = zipped(tmp_path / "line.zip", {"a": "0" * (1 << 24)})
    with pytest.raises(LogError, match=r"a unpacks to more than 200 times the archive"):
        unpacked(bomb)


def test_a_line_without_end_costs_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(zips, "LONGEST_LINE", 100)
    path = zipped(tmp_path / "a.zip", {"a": "one\n" + "x" * 350 + "\ntwo\n"})
    found, faults = unpacked(path)

    assert found == [(1, b"one\n"), (3, b"two\n")]
    assert faults.first == [(2, "a: a line of more than 100 bytes")]


def test_damage_in_an_archive_keeps_what_came_before(tmp_path):
    text = "".join(f"{i} {hash(str(i))}\n" for i in range(20000))
    path = zipped(tmp_path / "a.zip", {"a": text})
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)
    found, faults = unpacked(path)

    assert len(found) > 0
    assert faults.count == 1
    assert "a: cannot be unpacked further" in faults.first[0][1]


def test_archives_that_cannot_be_opened_say_so(tmp_path):
    whole_file = zipped(tmp_path / "a.zip", {"a": "1\n"}).read_bytes()
    torn = tmp_path / "torn.zip"
    torn.write_bytes(whole_file[:40])
    with pytest.raises(LogError, match=r"torn.zip: a broken archive"):
        unpacked(torn)
    with pytest.raises(LogError, match=r"a.zip: no b in it"):
        unpacked(tmp_path / "a.zip", "b")
    locked = bytearray(whole_file)
    locked[6] |= 1  # says that it is encrypted
    locked[locked.rindex(b"PK\x01\x02") + 8] |= 1
    torn.write_bytes(locked)
    with pytest.raises(LogError, match=r"torn.zip: a broken archive: .*encrypted"):
        unpacked(torn)


def test_a_small_file_of_an_archive_or_nothing(tmp_path):
    path = zipped(tmp_path / "a.zip", {"a": "x" * 100})

    assert zips.content(open_source(path), "a") == b"x" * 100
    assert zips.content(open_source(path), "a", most=10) == b""
    assert zips.content(open_source(path), "b") == b""
