"""Compares what readers of trackers read with what was written."""

import math

from stabcli.readers import read_runs, readers
from stabcli.sources import open_source
from tests.tracker_writing import ROWS, wanted


def runs_of(path, **options):
    runs, unread = read_runs([str(path)], **options)
    assert unread == []
    return runs


def the_run(path, **options):
    (run,) = runs_of(path, **options)
    return run


def claimed(path):
    return [r.name for r in readers if r.matches(open_source(path))]


def column(run, name):
    """Step -> value of a metric by the log's own name, of the last attempt that has it."""
    own = {o: c for c, o in run.columns.items()}
    logged = run.frame.select("step", value=own.get(name, name)).drop_nulls("value")
    return dict(logged.rows())


def same(found, expected):
    return found.keys() == expected.keys() and all(
        found[s] == v or (math.isnan(found[s]) and math.isnan(v)) for s, v in expected.items()
    )


def assert_written(run, rows=ROWS, *, names=None, zeros=False):
    """Every value stands where it was logged, and no other does.

    Args:
        run: What was read.
        rows: What was written.
        names: Written name -> name in the log, where they differ.
        zeros: Whether the log says 0.0 for what was not finite.
    """
    for name, logged in wanted(rows).items():
        stored = {s: v if math.isfinite(v) else 0.0 for s, v in logged.items()}
        expected = stored if zeros else logged
        shown = (names or {}).get(name, name)
        found = column(run, shown)
        assert same(found, expected), (shown, found, expected)
