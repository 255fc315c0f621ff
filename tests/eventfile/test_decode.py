import math
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stabcli.eventfile import read_events
from tests.conftest import SAMPLES
from tests.event_writing import (
    TAGS,
    Event,
    SessionLog,
    Tensor,
    Value,
    assert_equal,
    cycles,
    event,
    log_of,
    points,
    record,
    scalar,
    start,
    version,
)


def test_an_empty_file_holds_nothing(read):
    """No byte, no record, no complaint."""
    found = read(b"")

    assert (found.records, found.points, found.damaged, found.torn) == (0, 0, (), 0)


def test_a_file_of_a_header_holds_nothing(read):
    """A run that died before its first scalar is no damage."""
    found = read(version())

    assert (found.records, found.points, found.damaged, found.torn) == (1, 0, (), 0)


@pytest.mark.parametrize("style", ["simple", "tensor"])
def test_what_repeats_is_read_exactly(read, style):
    """Steps across the growth of their varint (127 to 128) come out with every value."""
    found = read(version() + cycles(400, style))

    assert points(found) == {
        tag: [(n, 1.7e9 + n, n + k / 8) for n in range(400)] for k, tag in enumerate(TAGS)
    }
    assert found.scalars["lr"].records[:3].tolist() == [4, 7, 10]
    assert found.damaged == ()


def test_non_finite_values_are_kept(read):
    """NaN and both infinities are values that the trainer had."""
    values = [math.nan, math.inf, -math.inf, 0.0]
    found = read(b"".join(scalar("loss", n, v) for n, v in enumerate(values)))

    np.testing.assert_array_equal(found.scalars["loss"].values, np.float32(values))


FLOATS = st.floats(width=32)
STEPS = st.one_of(st.integers(0, 300), st.sampled_from([-1, 2**31, 2**62, -(2**63)]))


@st.composite
def logs(draw):
    """Scalars of a log: a cycle of tags over and over, with other things in between."""
    names = draw(
        st.lists(st.sampled_from(["a", "bb", "ccc", "dd/dd", "loss"]), min_size=1, max_size=4)
    )
    style = draw(st.sampled_from(["simple", "tensor"]))
    rows = []
    step = draw(st.sampled_from([0, 100, 120, 16370]))
    for _ in range(draw(st.integers(1, 4))):
        for _ in range(draw(st.integers(1, 60))):
            rows += [(name, step, draw(FLOATS), style) for name in names]
            step += 1
        for _ in range(draw(st.integers(0, 3))):
            odd = draw(st.sampled_from(["eval/loss", "loss", "é", "a"]))
            rows.append((odd, draw(STEPS), draw(FLOATS), draw(st.sampled_from(["simple", style]))))
    return rows


@given(logs())
@settings(max_examples=60, deadline=None)
def test_every_scalar_comes_out_both_ways(tmp_path_factory, rows):
    """read(write(x)) = x, whether or not the log repeats."""
    path = tmp_path_factory.mktemp("log") / "events"
    path.write_bytes(version() + b"".join(scalar(t, s, v, style=k) for t, s, v, k in rows))
    expected = {}
    for tag, step, value, _ in rows:
        expected.setdefault(tag, []).append((step, 1.7e9 + step, value))

    fast, slow = read_events(path), read_events(path, periodic=False)

    assert_equal(fast, slow)
    assert list(fast.scalars) == list(expected)
    for tag, wanted in expected.items():
        np.testing.assert_array_equal(np.array(points(fast)[tag]), np.array(wanted))


BF16 = struct.unpack("<H", struct.pack("<f", 1.5)[2:])[0]
HALF = struct.unpack("<H", struct.pack("<e", 1.5))[0]


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (Tensor(dtype=1, float_val=[1.5]), 1.5),
        (Tensor(dtype=1, tensor_content=struct.pack("<f", 1.5)), 1.5),
        (Tensor(dtype=2, double_val=[0.1]), 0.1),
        (Tensor(dtype=2, tensor_content=struct.pack("<d", 0.1)), 0.1),
        (Tensor(dtype=3, int_val=[-7]), -7),
        (Tensor(dtype=3, tensor_content=struct.pack("<i", -7)), -7),
        (Tensor(dtype=9, int64_val=[2**40]), 2**40),
        (Tensor(dtype=9, tensor_content=struct.pack("<q", -(2**40))), -(2**40)),
        (Tensor(dtype=14, half_val=[BF16]), 1.5),
        (Tensor(dtype=14, tensor_content=struct.pack("<H", BF16)), 1.5),
        (Tensor(dtype=19, half_val=[HALF]), 1.5),
        (Tensor(dtype=19, tensor_content=struct.pack("<H", HALF)), 1.5),
        (Tensor(dtype=10, bool_val=[True]), 1),
        (Tensor(dtype=22, uint32_val=[2**32 - 1]), 2**32 - 1),
        (Tensor(dtype=1), None),
        (Tensor(dtype=1, float_val=[1.0, 2.0]), None),
        (Tensor(dtype=1, tensor_content=struct.pack("<2f", 1, 2)), None),
        (Tensor(dtype=7, string_val=[b"1.5"]), None),
        (Tensor(dtype=8, scomplex_val=[1.0, 0.0]), None),
        (Tensor(dtype=77, float_val=[1.5]), None),
    ],
)
@pytest.mark.parametrize("extents", [(), (1,), (1, 1), (2,)])
def test_tensors_of_one_number_are_scalars(read, tensor, expected, extents):
    """Any type of number, in either spelling; two numbers, or a text, are no scalar."""
    shaped = Tensor()
    shaped.CopyFrom(tensor)
    for extent in extents:
        shaped.tensor_shape.dim.add(size=extent)
    found = read(event(3, Value(tag="x", tensor=shaped)))

    if expected is None or extents == (2,):
        assert found.points == 0
        assert found.others == 1
    else:
        assert points(found) == {"x": [(3, 1.7e9 + 3, expected)]}
        assert found.others == 0


def test_unpacked_numbers_are_read(read):
    """A writer that does not pack repeated numbers (proto2) is understood."""
    content = b"\x08\x03" + b"\x38\x07"  # dtype int32, int_val 7 as a plain varint
    value = b"\x0a\x01x" + b"\x42" + bytes([len(content)]) + content
    payload = (
        b"\x10\x05" + b"\x2a" + bytes([len(value) + 2]) + b"\x0a" + bytes([len(value)]) + value
    )

    assert points(read(record(payload))) == {"x": [(5, 0.0, 7)]}


def test_tag_may_stand_in_the_name_of_the_node(read):
    """Old TensorFlow named the node only."""
    found = read(event(1, Value(node_name="loss", simple_value=2.0)))

    assert points(found) == {"loss": [(1, 1.7e9 + 1, 2.0)]}


def test_several_values_of_one_event_are_all_read(read):
    """merge_all of TensorFlow 1 puts all scalars, and histograms, into one event."""

    def merged(step):
        histogram = Value(tag="weights")
        histogram.histo.bucket.extend([float(step), 1.0])
        histogram.histo.bucket_limit.extend([0.5, float(step)])
        loss, rate = Value(tag="loss", simple_value=step), Value(tag="lr", simple_value=0.5)
        return event(step, loss, histogram, rate)

    found = read(b"".join(merged(n) for n in range(100)))

    assert points(found) == {
        "loss": [(n, 1.7e9 + n, n) for n in range(100)],
        "lr": [(n, 1.7e9 + n, 0.5) for n in range(100)],
    }
    assert found.others == 100


def test_what_belongs_to_another_plugin_is_no_scalar(read):
    """The zero that the hparams plugin stores with its metadata is not a measurement."""
    value = Value(tag="_hparams_/experiment", tensor=Tensor(dtype=1, float_val=[0.0]))
    value.metadata.plugin_data.plugin_name = "hparams"
    other = Value(tag="curve", tensor=Tensor(dtype=1, float_val=[0.5]))
    other.metadata.plugin_data.plugin_name = "pr_curves"
    again = Value(tag="curve", tensor=Tensor(dtype=1, float_val=[0.7]))
    found = read(event(0, value) + event(0, other) + event(1, again) + scalar("loss", 1, 2.0))

    assert list(found.scalars) == ["loss"]


def test_metadata_of_the_first_value_changes_nothing(read):
    """TensorFlow 2 sends the plugin's name with the first value of a tag only."""
    first = Value(tag="loss", tensor=Tensor(dtype=1, float_val=[3.0]))
    first.metadata.plugin_data.plugin_name = "scalars"
    rest = b"".join(
        event(n, Value(tag="loss", tensor=Tensor(dtype=1, float_val=[3.0]))) for n in range(1, 90)
    )

    assert found_steps(read(event(0, first) + rest)) == list(range(90))


def found_steps(found, tag="loss"):
    return found.scalars[tag].steps.tolist()


def test_texts_and_starts_of_sessions_are_found(read):
    """The first text of a tag, and the records of START; other statuses are none."""
    texts = b"".join(
        event(n, Value(tag="args/text_summary", tensor=Tensor(dtype=7, string_val=[text])))
        for n, text in enumerate([b'{"lr": 1}', b"later"])
    )
    stop = record(Event(step=9, session_log=SessionLog(status=SessionLog.STOP)))
    found = read(version() + texts + start(5) + stop + start(7))

    assert found.texts == {"args/text_summary": '{"lr": 1}'}
    assert found.starts == (4, 6)
    assert found.others == 2


def test_many_tags_of_one_length_are_told_apart(read):
    """Names such as layer_017, all equally long, do not run into one another."""
    tags = [f"layer_{n:03}" for n in range(200)]
    found = read(log_of([(s, dict.fromkeys(tags, s)) for s in range(4)]))

    assert list(found.scalars) == tags
    assert all(s.values.tolist() == [0, 1, 2, 3] for s in found.scalars.values())


def test_samples_equal_what_tensorboard_reads():
    """Every scalar of every sample is the one that TensorBoard's own loader gives."""
    from tensorboard.backend.event_processing import event_file_loader
    from tensorboard.util import tensor_util

    paths = sorted(p for p in (SAMPLES / "tensorboard").rglob("*tfevents*") if p.stat().st_size)
    whole = [p for p in paths if not (f := read_events(p)).damaged and not f.torn]
    assert whole
    for path in whole:
        expected = {}
        for found in event_file_loader.LegacyEventFileLoader(str(path)).Load():
            for value in found.summary.value:
                number = value.simple_value
                if value.HasField("tensor"):
                    if value.tensor.dtype == 7:
                        continue
                    number = tensor_util.make_ndarray(value.tensor).item()
                expected.setdefault(value.tag, []).append((found.step, found.wall_time, number))

        ours = points(read_events(path))
        assert list(ours) == list(expected)
        for tag, wanted in expected.items():
            np.testing.assert_array_equal(np.array(ours[tag]), np.array(wanted))


def test_real_files_hold_what_their_index_says(shared_data):
    """Scalars, first and last step and non-finite values of 39 real files."""
    lines = (shared_data / "INDEX.tsv").read_text().splitlines()
    names = lines[0].split("\t")
    rows = [dict(zip(names, line.split("\t"), strict=True)) for line in lines[1:]]
    files = [row for row in rows if row["format"] == "tensorboard"]
    assert len(files) > 30
    for row in files:
        found = read_events(shared_data / row["file"])
        steps = [s.steps for s in found.scalars.values()]
        bad = sum(int((~np.isfinite(s.values)).sum()) for s in found.scalars.values())

        assert found.points == int(row["rows"]), row["file"]
        assert bad == int(row["nonfinite"]), row["file"]
        if steps:
            assert min(s.min() for s in steps) == int(row["step_first"]), row["file"]
            assert max(s.max() for s in steps) == int(row["step_last"]), row["file"]
        assert found.damaged == (), row["file"]
