"""Charts: what is drawn is true, and nothing in a log can bring the process down."""

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stabcli.report.chart import _lines, _thinned, overlay, picture


def draw(values, steps=None, **options):
    """The picture of values over steps 0, 1, 2, …"""
    values = np.array(values, float)
    steps = np.arange(len(values)) if steps is None else np.array(steps)
    return picture(steps, values, np.zeros(len(values), int), **options)


@pytest.mark.parametrize("values", [[], [1.0], [np.nan] * 5, [np.inf, 1.0], [np.nan, 2.0, np.nan]])
def test_nothing_to_draw_is_no_picture(values):
    """Fewer than two finite values make no picture."""
    assert draw(values) is None


def test_one_step_is_no_picture():
    """Values of a single step have no extent to be drawn over."""
    assert draw([1.0, 2.0], steps=[5, 5]) is None


def test_without_plotext_there_is_no_picture(monkeypatch: pytest.MonkeyPatch):
    """A machine for which plotext cannot be had gets a report all the same."""
    monkeypatch.setitem(sys.modules, "plotext", None)

    assert draw([1.0, 2.0, 3.0]) is None


def test_mark_stands_below_what_it_marks():
    """The arrow of an incident stands below its spike, and the step beside the arrow."""
    values = np.full(1001, 2.0)
    values[800:804] = 3.0
    found = draw(values, steps=100_000 + 25 * np.arange(1001), incidents=[120_000], width=79)
    top = found.lines[1]

    assert found.marks.index("▲") in (top.index(c) for c in top if 0x2800 < ord(c) < 0x2900)
    assert found.marks.endswith("▲ 120,000")
    assert found.remark == ""


def test_label_at_the_edge_stands_on_the_other_side():
    """The step of an incident at the right edge stands left of its arrow."""
    found = draw(np.arange(100.0), incidents=[99], width=40)

    assert found.marks.endswith("99 ▲")


def test_non_finite_values_are_gaps_with_a_cross():
    """NaN leaves a gap in the line, a cross below it, and a remark."""
    values = np.full(100, 2.0)
    values[50:70] = np.nan
    found = draw(values, width=60)

    assert "×" in found.marks
    assert found.remark == "× not finite (20 rows)"
    line = next(row for row in found.lines if "⠒" in row or "⠤" in row or "⠉" in row)
    assert " " in line.strip("│ ")


def test_outliers_are_cut_and_the_remark_says_so():
    """A value far above all others is drawn at the edge, and told."""
    values = np.full(100, 2.0)
    values[40] = 1e6
    found = draw(values)

    assert found.remark == "1 above 20 cut off, highest 1,000,000 at step 40"


def test_restart_is_no_line_across():
    """No line joins the end of one attempt with the start of the next."""
    steps = np.concatenate([np.arange(100), np.arange(50, 150)])
    values = np.concatenate([np.full(100, 5.0), np.full(100, 1.0)])
    found = picture(steps, values, np.repeat([0, 1], 100), width=60, height=10)

    middle = found.lines[len(found.lines) // 2 - 1]
    assert not any(0x2800 < ord(c) < 0x2900 for c in middle)


def test_ascii_is_ascii():
    """On a terminal without UTF-8 everything is ASCII."""
    values = np.sin(np.arange(200) / 9)
    values[50] = np.nan
    found = draw(values, ascii_only=True, incidents=[100])

    assert "".join([*found.lines, found.marks, found.remark]).isascii()
    assert "^" in found.marks


@pytest.mark.parametrize("width", [20, 40, 79, 200])
def test_width_is_kept(width: int):
    """No line is wider than asked for."""
    found = draw(np.random.default_rng(0).normal(2, 0.1, 5000), width=width, incidents=[4999])

    assert max(map(len, [*found.lines, found.marks])) <= width


def test_thinning_keeps_every_extreme():
    """Of every column the lowest and the highest value stay, so that no spike gets lost."""
    random = np.random.default_rng(1)
    values = random.normal(2, 0.1, 100_000)
    values[77_777] = 9.0
    steps = np.arange(100_000)
    x, y = _thinned(steps, values, 0, 99_999, 150)

    assert len(x) <= 4 * 150
    assert (x[y.argmax()], y.max(), y.min()) == (77_777, 9.0, values.min())
    assert (np.diff(x) > 0).all()


def test_a_thousand_gaps_are_drawn_as_one_line():
    """A NaN in every other row makes no thousand lines; the crosses still tell."""
    values = np.full(2001, 2.0)
    values[1::2] = np.nan
    every = np.arange(2001)

    assert len(_lines(np.isfinite(values), np.zeros(2001))) == 1
    assert len(_lines(np.isfinite(values), every // 100)) == 21
    assert draw(values).marks.count("×") > 50
    assert picture(every, values, every // 2) is not None


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=40))
def test_no_values_bring_it_down(values: list[float]):
    """Whatever floats a log holds, there is a picture or there is none."""
    found = draw(values, incidents=[0, 10])

    assert found is None or len(found.lines) > 3


def test_curves_over_one_another():
    """Each in its letter, the first on top where they meet; what is cut off or broken is said."""
    steps = np.arange(100)
    falling = np.linspace(3.0, 1.0, 100)
    broken = np.where(steps < 10, 2.0 + steps / 5, np.nan)
    leapt = falling.copy()
    leapt[50] = 500.0
    image = overlay([("A", steps, falling), ("B", steps, broken), ("C", steps, leapt)], width=60)

    assert image is not None
    drawn = "".join(image.lines)
    assert {"A", "B"} <= set(drawn)
    assert drawn.count("C") <= 2  # only its leap is not under A
    assert "rows not finite: B 90" in image.remark
    assert "cut off: C 1" in image.remark
    assert max(map(len, image.lines)) <= 60


@pytest.mark.parametrize(
    "curves",
    [
        [],
        [("A", np.arange(5), np.full(5, np.nan))],
        [("A", np.array([3]), np.array([1.0])), ("B", np.array([3]), np.array([2.0]))],
        [("A", np.empty(0, int), np.empty(0))],
    ],
)
def test_nothing_to_lay_over(curves):
    """No finite value, or all at one step."""
    assert overlay(curves) is None


def test_overlay_of_constants_and_one_point_is_drawn():
    """Neither has a spread."""
    image = overlay([("A", np.arange(5), np.ones(5)), ("B", np.array([2]), np.array([1.0]))])

    assert image is not None
    assert "A" in "".join(image.lines)


def test_overlay_in_ascii():
    """Frame and letters."""
    image = overlay([("A", np.arange(9), np.arange(9.0))], ascii_only=True)

    assert image is not None
    assert all(line.isascii() for line in image.lines)
