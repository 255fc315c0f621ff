import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from stabcli.eventfile import EventFile, Scalars, Stream, build
from tests.event_writing import NAN


def file_of(events, starts=()):
    """An event file of (tag, step, value), a record each."""
    scalars = {}
    for tag in dict.fromkeys(tag for tag, _, _ in events):
        own = [(n, step, v) for n, (t, step, v) in enumerate(events, 1) if t == tag]
        records, steps, values = zip(*own, strict=True)
        scalars[tag] = Scalars(
            records=np.array(records),
            steps=np.array(steps),
            walls=np.array(records, float),
            values=np.array(values, np.float32),
        )
    return EventFile(
        scalars=scalars,
        starts=tuple(starts),
        texts={},
        records=len(events),
        others=0,
        damaged=(),
        torn=0,
        size=0,
    )


def table_of(events, **more):
    file = file_of(events, **more)
    return build([Stream(files=[file], columns={tag: tag for tag in file.scalars})])


def test_columns_that_fill_every_row_keep_their_type():
    """One file, one pass: values are taken as they are, NaN included."""
    table = table_of([("a", 5, 0.5), ("a", 6, NAN)])

    assert table.columns["a"].dtype == pl.Float32
    assert table.columns["a"].is_null().sum() == 0
    assert (table.steps.tolist(), table.records.tolist()) == ([5, 6], [1, 2])


EVENTS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 12), st.floats(width=32)), min_size=1
)


@given(EVENTS, st.lists(st.integers(1, 50), max_size=2))
@settings(max_examples=300, deadline=None)
def test_every_value_stands_once_in_a_row_of_its_step(events, starts):
    """Whatever the order of steps, no value is lost, doubled or moved to another step."""
    table = table_of(events, starts=starts)

    for tag in {tag for tag, _, _ in events}:
        column = table.columns[tag]
        where = np.flatnonzero(column.is_not_null().to_numpy())
        ours = [(int(table.steps[i]), str(column[int(i)])) for i in where]
        wanted = [(step, str(float(np.float32(v)))) for t, step, v in events if t == tag]
        assert sorted(ours) == sorted(wanted)
    order = list(zip(table.passes.tolist(), table.steps.tolist(), strict=True))
    assert order == sorted(order)
    assert all(events[record - 1][1] == step
               for record, step in zip(table.records.tolist(), table.steps.tolist(), strict=True))  # fmt: skip


@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_passes_are_the_stretches_between_restarts(lengths, tags):
    """Each time the counter starts over, a new pass of just those rows begins."""
    names = "abcd"[:tags]
    events = [(tag, step, 1.0) for n in lengths for step in range(n) for tag in names]
    repeats = [n for n in lengths if n > 1]
    table = table_of(events)

    if len(repeats) == len(lengths):
        assert np.bincount(table.passes).tolist() == lengths
    assert len(table.steps) == sum(lengths)
