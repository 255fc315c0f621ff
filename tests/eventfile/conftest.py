import pytest

from stabcli.eventfile import read_events
from tests.event_writing import assert_equal


@pytest.fixture
def read(tmp_path):
    """Read bytes both ways, and see to it that both give the same."""
    path = tmp_path / "events.out.tfevents.1700000000.host.1.0"

    def both(content):
        path.write_bytes(content)
        fast = read_events(path)
        slow = read_events(path, periodic=False)
        assert_equal(fast, slow)
        return fast

    return both
