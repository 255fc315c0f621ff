"""The HTML report in a browser: it draws, it answers to mouse and keys, it asks nobody for more."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stabcli.rules import Finding
from tests.report.chromium import Chromium, find
from tests.report.diagnoses import at, diagnosis, finding, incident
from tests.report.pages import full, hostile, page, spiky
from tests.rules.runs import make_run

CONTROL, SHIFT = 2, 8
"""Modifiers of mouse and keys."""
LEFT, RIGHT, TOP, BOTTOM = 62, 10, 8, 20
"""Pixels around the drawing of a chart on a wide screen."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """A browser for all tests here."""
    program = find()
    if program is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    running = Chromium(program, tmp_path_factory.mktemp("profile"))
    yield running
    running.close()


Open = Callable[..., Chromium]


@pytest.fixture
def opened(browser: Chromium, tmp_path: Path) -> Open:
    """Write a page, open it, and return the browser."""

    def open_page(text: str, **screen: Any) -> Chromium:
        path = tmp_path / "page.html"
        path.write_text(text, encoding="utf-8")
        browser.open(path.as_uri(), **screen)
        return browser

    return open_page


def box(b: Chromium, chart: int = 0) -> tuple[float, float, float, float]:
    """Where a chart's drawing stands on the screen: left, top, width, height."""
    x, y, width, height = b.run(
        f"(() => {{ const plot = document.querySelectorAll('.plot')[{chart}];"
        " plot.scrollIntoView({block: 'center'}); const r = plot.getBoundingClientRect();"
        " return [r.x, r.y, r.width, r.height]; })()"
    )
    return x + LEFT, y + TOP, width - LEFT - RIGHT, height - TOP - BOTTOM


def across(b: Chromium, step: float, chart: int = 0, whole: tuple[int, int] = (1, 500)) -> float:
    """Where a step stands on the screen while the whole run is shown."""
    left, _, width, _ = box(b, chart)
    return left + (step - whole[0]) / (whole[1] - whole[0]) * width


def text(b: Chromium, selector: str) -> str:
    """What an element says, on one line."""
    said = b.run(f"document.querySelector({selector!r})?.innerText ?? ''")
    return " ".join(said.split())


SHOWN = "steps 1 to 500, the whole run"


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_page_draws_without_complaint(opened: Open, width: int, dark: bool):
    """Charts are drawn, nothing is logged, nothing requested but the page, nothing overflows."""
    b = opened(page(full()), width=width, dark=dark)

    assert b.run("document.querySelectorAll('.plot svg path.line').length") >= 3
    assert b.run("document.querySelectorAll('.plot .still').length") == 0
    assert b.complaints() == []
    assert [r.rpartition("/")[2] for r in b.requests()] == ["page.html"]
    assert b.run("document.documentElement.scrollWidth") <= width
    background = b.run("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(17, 21, 28)" if dark else "rgb(246, 247, 249)")


def test_hover_tells_step_value_and_line(opened: Open):
    """Over the spike stand its value, step, line and incident; the other charts read along."""
    b = opened(page(full()))
    _, top, _, height = box(b)
    b.mouse("mouseMoved", across(b, 301), top + height * 0.1)

    assert (
        text(b, ".tip:not([hidden])")
        == "loss 9.1 step 301 line 301 incident 1: critical loss-spike"
    )
    readings = b.run("[...document.querySelectorAll('.reading')].map(r => r.textContent)")
    assert readings[0] == "9.1 · step 301 · line 301"
    assert readings[1] == "50 · step 301 · line 301"
    b.mouse("mouseMoved", 5, 5)
    assert text(b, ".tip:not([hidden])") == ""


def test_hover_over_missing_values_says_so(opened: Open):
    """Where values are not finite stand marks, and hovering says how many rows and where."""
    b = opened(page(full()))
    _, top, _, height = box(b, 2)
    b.mouse("mouseMoved", across(b, 450, 2), top + height - 2)

    assert b.run("document.querySelectorAll('.plot')[2].querySelectorAll('.cross').length") == 1
    said = "learning_rate NaN in 100 rows steps 401 to 500 line 401"
    assert text(b, ".tip:not([hidden])") == said


def test_dragging_zooms_all_charts(opened: Open):
    """A drag over steps shows those steps in every chart; the button brings the whole run back."""
    b = opened(page(full()))
    _, top, _, _ = box(b)
    assert text(b, ".range") == SHOWN
    before = b.run("document.querySelectorAll('.plot')[1].querySelector('.line').getAttribute('d')")
    b.mouse("mousePressed", across(b, 250), top + 60)
    b.mouse("mouseMoved", across(b, 350), top + 60, buttons=1)
    assert b.run("document.querySelectorAll('.selection').length") == 1
    b.mouse("mouseReleased", across(b, 350), top + 60)

    assert text(b, ".range") == "steps 250 to 350"
    after = b.run("document.querySelectorAll('.plot')[1].querySelector('.line').getAttribute('d')")
    assert before != after
    b.run("[...document.querySelectorAll('.tools button')].at(-1).click()")
    b.drawn()
    assert text(b, ".range") == SHOWN


def test_wheel_zooms_only_when_asked_to(opened: Open):
    """With Ctrl the wheel zooms, and a double click resets; without it the page scrolls on."""
    b = opened(page(full()))
    _, top, _, _ = box(b)
    x = across(b, 300)
    b.mouse("mouseWheel", x, top + 60, deltaX=0, deltaY=-200, modifiers=CONTROL)

    assert "whole" not in text(b, ".range")
    first, last = (int(w) for w in text(b, ".range").split() if w.isdigit())
    assert first < 300 < last
    assert last - first < 350
    b.run("document.querySelector('.plot').dispatchEvent(new MouseEvent('dblclick'))")
    b.drawn()
    assert text(b, ".range") == SHOWN
    before = b.run("scrollY")
    b.mouse("mouseWheel", x, top + 60, deltaX=0, deltaY=300)
    b.run(
        f"new Promise(r => {{ const t = setInterval(() => scrollY > {before} && r(clearInterval(t)), 20); }})"
    )
    assert text(b, ".range") == SHOWN


def test_keys_read_zoom_and_move(opened: Open):
    """All that a mouse does is done by keys, and what is read is announced."""
    b = opened(page(full()))
    b.run("document.querySelector('.plot').focus()")
    b.key("End")
    assert "step 500 line 500" in text(b, ".tip:not([hidden])")
    b.key("ArrowLeft")
    assert text(b, ".live").endswith("step 499, line 499")
    b.key("+")
    assert text(b, ".range") == "steps 250 to 500"
    b.key("ArrowLeft", SHIFT)
    assert text(b, ".range") == "steps 200 to 450"
    b.key("Home")
    assert text(b, ".live").endswith("step 1, line 1")
    b.key("0")

    assert text(b, ".range") == SHOWN


def test_incidents_and_charts_lead_to_one_another(opened: Open):
    """From a chart to the explanation by keys and by flag, and from there back to the place."""
    b = opened(page(full()))
    b.run("document.querySelector('.plot').focus()")
    b.key("n")
    assert "incident 1: critical loss-spike" in text(b, ".live")
    b.key("Enter")
    assert b.run("location.hash") == "#r1-i1"
    assert b.run("document.activeElement.id") == "r1-i1"
    b.run("document.querySelector('[data-show]').click()")
    b.drawn()
    assert text(b, ".range") == "steps 268 to 332"
    assert b.run("document.querySelector('.flag').getAttribute('href')") == "#r1-i1"

    assert b.run("document.querySelectorAll('.flag').length") == 1


def test_flag_of_a_notice_opens_what_is_folded(opened: Open):
    """A link into folded text unfolds it."""
    b = opened(page(full()))
    assert not b.run("document.getElementById('r1-notices').open")
    b.run("document.querySelector('.flag.notice').click()")
    b.drawn()

    assert b.run("document.getElementById('r1-notices').open")
    assert b.run("document.activeElement.id") == "r1-i2"


def test_logarithmic_scale_is_a_switch(opened: Open):
    """The switch says whether it is on, and redraws."""
    b = opened(page(full()))
    state = "document.querySelector('.chart button').getAttribute('aria-pressed')"
    line = "document.querySelector('.plot .line').getAttribute('d')"
    assert b.run(state) == "false"
    before = b.run(line)
    b.run("document.querySelector('.chart button').click()")
    b.drawn()

    assert b.run(state) == "true"
    assert b.run(line) != before


def test_restarts_are_drawn(opened: Open):
    """A restart has its line and its number; what it took back is drawn otherwise, and said."""
    step = np.concatenate([np.arange(1, 401), np.arange(301, 501)])
    b = opened(page(diagnosis(run=make_run(step=step, loss=np.linspace(3, 2, 600)))))
    _, top, _, _ = box(b)

    assert b.run("document.querySelectorAll('.plot .restart').length") == 1
    assert b.run("[...document.querySelectorAll('.plot text')].at(-1).textContent") == "attempt 1"
    assert b.run("document.querySelectorAll('.plot .line.old').length") == 1
    b.mouse("mouseMoved", across(b, 390), top + 75)
    assert "attempt 0, taken back later" in text(b, ".tip:not([hidden])")


def test_folded_charts_are_drawn_when_opened(opened: Open):
    """Charts beyond the sixth are folded, and drawn at their width once somebody opens them."""
    extra = {f"own/{i}": np.linspace(0, i + 1, 500) for i in range(8)}
    b = opened(page(diagnosis(run=make_run(loss=spiky(), **extra))))
    drawn = "[...document.querySelectorAll('.charts details .plot')].filter(p => p.querySelector('svg .axis')).length"
    assert b.run(drawn) == 0
    b.run("document.querySelector('.charts details').open = true")
    b.drawn()
    b.drawn()

    assert b.run(drawn) == 3


def test_crowded_flags_wait_for_a_zoom(opened: Open):
    """Flags that would lie on one another are counted, the gravest are shown."""
    found: list[Finding] = [
        finding(severity="critical" if s == 250 else "warning", first=s, last=s, peak=s)
        for s in range(200, 300, 2)
    ]
    b = opened(page(diagnosis(*[incident(f) for f in found])))

    assert b.run("document.querySelectorAll('.flag.critical').length") == 1
    shown = b.run("document.querySelectorAll('.flag').length")
    assert f"{50 - shown} more flags: zoom in" in text(b, ".range")


def test_hostile_text_stays_text(opened: Open):
    """What tries to become a script, an image or a handler is read and not obeyed."""
    b = opened(page(hostile()))
    _, top, _, height = box(b)
    b.mouse("mouseMoved", across(b, 301), top + height * 0.1)

    assert "hacked" in text(b, ".tip:not([hidden])")
    assert b.run("typeof window.hacked") == "undefined"
    assert b.run("document.images.length") == 0
    assert b.complaints() == []
    assert len(b.requests()) == 1


def test_scripts_that_are_not_its_own_do_not_run(opened: Open):
    """Even markup that got into the page would not run: the policy names one script."""
    evil = "<script>window.hacked=1</script><img src=x onerror='window.hacked=2'></main>"
    b = opened(page(full()).replace("</main>", evil))

    assert b.run("typeof window.hacked") == "undefined"
    assert b.complaints()  # the browser says what it refused
    assert b.run("document.querySelectorAll('.plot svg path.line').length") >= 3


def test_page_is_readable_without_scripts(opened: Open):
    """Without scripts stand still pictures, tables and plans, and a word on it."""
    b = opened(page(full()), scripts=False)
    drawn = b.run("[...document.querySelectorAll('.still')].map(s => s.clientWidth)")

    assert len(drawn) == 3
    assert min(drawn) > 900
    assert "Scripts are off" in text(b, "noscript")
    assert b.run("document.querySelectorAll('.tools, .chart button').length") == 0


def test_lines_can_be_copied(opened: Open):
    """The button beside a recipe copies it, or selects it where the browser does not let it."""
    b = opened(page(full()))
    b.run("document.querySelector('.recipe button').click()")
    b.run("new Promise(r => setTimeout(r, 100))")

    assert text(b, ".recipe button") in ("copied", "selected")


def test_print_shows_what_is_folded(opened: Open):
    """On paper there are no controls, and nothing is folded away."""
    b = opened(page(full()))
    b.run("dispatchEvent(new Event('beforeprint'))")
    b.send("Emulation.setEmulatedMedia", media="print")
    try:
        assert b.run("getComputedStyle(document.querySelector('.tools')).display") == "none"
        assert b.run("[...document.querySelectorAll('details')].every(d => d.open)")
    finally:
        b.send("Emulation.setEmulatedMedia", media="")


def test_several_runs_do_not_share_a_view(opened: Open):
    """Zooming into one run leaves the other where it was."""
    b = opened(page(full(), diagnosis(at(100), run=make_run(loss=spiky(), name="other"))))
    b.run("document.querySelector('.tools button').click()")
    b.drawn()
    ranges = b.run("[...document.querySelectorAll('.range')].map(r => r.textContent)")

    assert ranges == ["steps 126 to 375", SHOWN]
    assert b.complaints() == []
