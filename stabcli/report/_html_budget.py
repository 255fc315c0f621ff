"""Budget: how many points the charts of a page may have, so that it can be mailed."""

from __future__ import annotations

from collections.abc import Sequence

PAGE_BYTES = 385_000
"""Bytes of the page of one run that its words and pictures share: a page is to be mailed."""
MORE_BYTES = 200_000
"""Bytes that each further run adds to that."""
MOST_BYTES = 4_000_000
"""Bytes of the page of many runs, unless their words alone are more."""
FIXED_BYTES = 45_000
"""Bytes of the style, the script and what stands in every page."""
STILL_BYTES = 45_000
"""Bytes of the still pictures of one run."""
POINT_BYTES = 12
"""Bytes of a point: its step, its value and now and then its line."""
RUN_POINTS = (1500, 24_000)
"""Fewest and most points of one run; its charts share them."""
FEWEST_RUNS = 8
"""Runs that are drawn however long a page is."""
CHART_POINTS = 3200
"""Most points of one chart: the first, smallest, largest and last of 800 columns."""
FEWEST_POINTS = 120
"""Fewest points of one chart; where there are not even those, no more charts are drawn."""


def room(words: int, runs: int) -> list[int]:
    """Return the points of each run that is drawn, the first first; of very many only some are.

    Args:
        words: Bytes of text that the page has beside its charts.
        runs: Runs in it, at least one.
    """
    page = min(PAGE_BYTES + MORE_BYTES * (runs - 1), MOST_BYTES)
    left = page - FIXED_BYTES - words
    drawn = min(runs, max(FEWEST_RUNS, left // (STILL_BYTES + RUN_POINTS[0] * POINT_BYTES)))
    points = (left - STILL_BYTES * drawn) // POINT_BYTES // drawn
    return [min(max(points, RUN_POINTS[0]), RUN_POINTS[1])] * drawn


def allotted(rows: Sequence[int], points: int) -> list[int]:
    """Share points among charts of so many rows each; what a short one leaves, longer ones get."""
    most = [0] * len(rows)
    shortest_first = sorted(range(len(rows)), key=lambda i: rows[i])
    for place, index in enumerate(shortest_first):
        share = points // (len(rows) - place)
        most[index] = max(FEWEST_POINTS, min(CHART_POINTS, share))
        points -= min(most[index], rows[index])
    return most
