"""The HTML report: everything is told, nothing of a log becomes markup, and it stays small."""

import base64
import dataclasses
import hashlib
import json
import re
from itertools import pairwise

import numpy as np
import polars as pl
import pytest

from stabcli.cost import Cost, CostReport
from stabcli.criteria import Criterion
from stabcli.report import Screen, _html_budget, _html_charts, reports
from stabcli.report._html_markup import Markup, el, embedded, prose
from stabcli.rules import Skipped
from stabcli.run import Attempt, Run
from stabcli.verdicts import Verdict
from tests.report.diagnoses import PLAN, at, diagnosis, finding, incident, outcome
from tests.report.pages import (
    HOSTILE,
    RECIPE,
    data,
    decoded,
    full,
    hostile,
    page,
    parsed,
    sample,
    spiky,
    words,
)
from tests.rules.runs import healthy, make_run

SAMPLE = ("jsonl/restart.jsonl", "hf-trainer/hidden_nan.json", "csv/csv_monitor", "parquet/restart.parquet")  # fmt: skip


def test_healthy_run_is_told_to_be_fine():
    """A run without findings is fine: no incident, nothing to do, no band in a chart."""
    text = page(diagnosis())
    said = words(text)

    assert "fine 2 rules looked and found nothing." in said
    assert "Nothing above notice was found." in said
    assert "To do" not in said
    assert data(text)["runs"][0]["marks"] == []
    assert "<article" not in text


def test_blind_run_is_not_fine():
    """A run that no rule could look at is never called fine, and says what was lacking."""
    skipped = [Skipped(rule="loss-spike", why="the log has no loss")]
    said = words(page(diagnosis(checked=(), skipped=skipped)))

    assert "cannot judge no rule could look" in said.replace("No rule", "no rule")
    assert "loss-spike the log has no loss" in said
    assert " fine " not in said


def test_every_part_is_told():
    """Verdict, incident, evidence, plans and recipe, cost, unchecked, facts, grounds, rules."""
    said = words(page(full()))
    for part in (
        "critical loss-spike at step 300, recovered by step 310. 2 rules looked; 1 could not look.",
        "To do: Roll back to the checkpoint at step 200 and skip the batches",
        "wasted 12 steps, 48M tokens, 808 GPU-hours, $1,616",
        "productive 97.5 %",
        "loss 9.1 (line 302), expected 2; grad_norm moved first, at step 298; recovered by step 310.",
        "grad-norm-spike error grad_norm steps 298..302 50 at 301 2 12.5 line 302",
        "To train again: 100 steps, 400M tokens.",
        "Why: PaLM skipped 200-500 batches.",
        " ".join(RECIPE),
        "1 notice: worth knowing",
        "recovering from the onset of an incident to its recovery 12 48M 808.3 1,616 2.4 %",
        "all 500 2B 33,000 66,000 100.0 %",
        "mfu-low the log has no mfu",
        "Checked by 2 rules (preset default): loss-spike, nonfinite.",
        "gpus 512 --gpus",
        "GPU-hours from wall clock x 512",
        "given that stalls hold every pause between rows",
        "loss-spike: Loss leaps far above its own recent level.",
        "100 rows not finite, first at step 401",
    ):
        assert part in said, part


def test_ignored_findings_and_what_was_asked_are_told():
    """What was asked stands with its status; an ignored finding says why it does not count."""
    criteria = (Criterion(name="max-final-loss", status="fail", text="loss 3, at most 2 allowed"),)
    d = full()
    ignore = dataclasses.make_dataclass("Known", [("why", str)], frozen=True)("known bad shard")
    verdict = Verdict(
        fail_on="error", criteria=criteria, ignored=dict.fromkeys(d.incidents[0].findings, ignore)
    )
    said = words(page(d, verdicts=(verdict,)))

    assert "check: fail: max-final-loss" in said
    assert "fail max-final-loss loss 3, at most 2 allowed" in said
    assert "Does not count: known bad shard." in said
    assert said.count("To do:") == 1  # beside the incident, not as the first thing to do


def test_warning_that_never_recovered_tells_what_is_at_stake():
    """Its price stands beside the incident, not in any total."""
    cost = CostReport(incidents=(Cost(),), at_stake=(Cost(steps=77),))
    said = words(page(diagnosis(at(300, "warning"), cost=cost)))

    assert "What followed it and never recovered: 77 steps." in said


PAGES = {
    "nothing": page,
    "fine": lambda: page(diagnosis()),
    "full": lambda: page(full()),
    "hostile": lambda: page(hostile(), unread=(HOSTILE,), left_out=(HOSTILE,), remarks=(HOSTILE,)),
    "several": lambda: page(*[full(), diagnosis(), diagnosis(checked=())] * 3),
    "many": lambda: page(diagnosis(*[at(s, "warning") for s in range(1, 490)])),
    **{name: (lambda name=name: page(sample(name))) for name in SAMPLE},
}


@pytest.mark.parametrize("name", PAGES)
def test_page_is_valid_and_its_links_lead_somewhere(name: str):
    """A strict parser has no objection, names are unique, and every link has its target."""
    text = PAGES[name]()
    tree = parsed(text)
    names = [e.get("id") for e in tree.iter() if e.get("id")]
    links = [e.get("href") for e in tree.iter() if e.get("href")]

    assert len(names) == len(set(names))
    assert {link[1:] for link in links if link.startswith("#")} <= set(names)
    assert all(link.startswith("#") for link in links)
    assert tree.find("head/title").text
    assert tree.get("lang") == "en"
    assert not list(tree.iter("img"))
    for table in tree.iter("table"):
        assert table.find("caption") is not None
    levels = [int(e.tag[1]) for e in tree.iter() if re.fullmatch("h[1-6]", str(e.tag))]
    assert levels[0] == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))


def test_nothing_of_a_log_becomes_markup():
    """Hostile names, notes, plans, files and reasons are shown as text, everywhere."""
    text = page(hostile(), unread=(HOSTILE,), left_out=(HOSTILE,), remarks=(HOSTILE,))
    tree = parsed(text)
    quiet = parsed(page(full()))

    assert {str(e.tag) for e in tree.iter()} <= {str(e.tag) for e in quiet.iter()}
    assert [s.get("type") for s in tree.iter("script")] == ["application/json", None]
    assert not [a for e in tree.iter() for a in e.attrib if str(a).startswith("on")]
    said = words(text)
    assert said.count("<img src=x onerror=window.hacked=2>") >= 12
    assert not {"\x1b", "\u202e", "\u2028", "\ud800"} & set(text)
    text.encode("utf-8")


def test_data_of_the_page_cannot_end_its_script():
    """No end tag nor comment can begin in embedded data, and it is read back as it was."""
    given = {"name": HOSTILE, "values": [1.5, None]}
    written = embedded(given)

    assert not set("<>&") & set(written)
    assert written.isascii()
    assert json.loads(written) == given


def test_page_runs_its_own_script_only_and_loads_nothing():
    """The policy allows one script, by its hash; no element names an address."""
    text = page(full())
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)
    assert policy
    assert script
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()

    assert f"script-src 'sha256-{digest}'" in policy[1]
    assert policy[1].startswith("default-src 'none';")
    assert "unsafe-inline" not in policy[1].partition("script-src")[2]
    attributes = [v for e in parsed(text).iter() for v in e.attrib.values()]
    assert not [v for v in attributes if re.match(r"\w+://|//|data:", v)]
    assert "url(" not in text.partition("<style>")[2].partition("</style>")[0]
    assert "innerHTML" not in script[1]


def test_same_runs_make_the_same_page():
    """No time, no chance, no path of this machine is in a page."""
    assert page(full()) == page(full())


def test_elements_quote_text_and_keep_markup():
    """Text is quoted in content and attributes; markup is not quoted twice."""
    made = el("p", "a<b", Markup("<i>c</i>"), None, ["d", ["&"]], title='"x"', hidden=True, id=None)

    assert made == '<p title="&quot;x&quot;" hidden>a&lt;b<i>c</i>d&amp;</p>\n'
    assert prose("``a`` < `b`") == "<code>a</code> &lt; <code>b</code>"


def test_format_is_registered_with_a_mark_of_its_own():
    """``--format html`` works, and a page that exists is known to be one of ours."""
    text = reports["html"].write(outcome(diagnosis()), Screen())
    mark = reports["html"].mark

    assert mark
    assert mark in text[:200]


def big_run(rows: int = 1_000_000) -> Run:
    """A run of eight metrics with a spike of one row and one NaN, made without a reader."""
    columns = healthy(rows)
    steps = columns.pop("step")
    random = np.random.default_rng(1)
    for name in ("mfu", "step_seconds", "aux_loss", "other/metric"):
        columns[name] = random.normal(1, 0.1, rows)
    columns["loss"][654_321] = 9.9
    columns["grad_norm"][123_456] = np.nan
    frame = pl.DataFrame(
        {"attempt": np.zeros(rows, np.int32), "step": steps, "line": steps + 3, **columns}
    )
    attempt = Attempt(attempt=0, first_step=1, last_step=rows, rows=rows)
    return Run(name="big", source="big.jsonl", reader="jsonl", frame=frame, attempts=(attempt,))


def test_a_million_rows_fit_a_mail_and_hide_nothing():
    """Under 400 KB with forty incidents; the spike, the NaN and the lines are there; it says so."""
    found = [
        incident(*[finding(first=s, last=s + 9, peak=s, severity="error")] * 4)
        for s in range(1000, 900_000, 20_000)
    ]
    text = page(diagnosis(*found, run=big_run(), plans=[(PLAN, PLAN)] * len(found)))
    drawn = data(text)["runs"][0]["charts"]
    loss = decoded(drawn[0]["parts"][0], 1)
    points = [len(p["v"]) for c in drawn for p in c["parts"]]

    assert len(text.encode()) < 400_000
    assert len(drawn) == 8
    assert (654_322, 9.9, 654_325, None) in loss
    assert drawn[1]["word"] == "grad_norm"
    assert drawn[1]["bad"] == [[0, 123_457, 123_457, 1, 123_460, "NaN"]]
    assert min(points) > 1000
    assert f"1,000,000 rows drawn as {points[0]:,} points: every minimum and maximum is" in text


def test_points_that_a_short_series_leaves_are_for_the_long_ones():
    """Shares are equal only among those that need them; nobody gets more than a chart can show."""
    assert _html_budget.allotted([9000, 10, 500], 1510) == [1000, 503, 750]
    assert _html_budget.allotted([10**6] * 3, 99_999) == [_html_budget.CHART_POINTS] * 3


def test_very_many_incidents_stay_small_and_are_all_counted():
    """Thirty are told, 150 listed, the rest counted by rule: none is dropped silently."""
    many = [finding(severity="warning", first=s, last=s, peak=s) for s in range(1, 500)]
    text = page(diagnosis(*[incident(*[f] * 20) for f in many * 10], plans=[(PLAN, PLAN)] * 4990))
    said = words(text)

    assert text.count("<article") == 30
    assert "4,990 warnings in all" in said
    assert "4,840 more, not listed here: --format json has all of them: warning 4,840 ×" in said
    assert said.count("Evidence, in the order things moved, the first 8 of 20;") == 30
    assert len(text.encode()) < 400_000


def test_many_runs_share_the_room():
    """Of a hundred runs every verdict is listed; the healthy ones are folded."""
    text = page(*[full(), diagnosis()] * 50)
    said = words(text)
    drawn = data(text)["runs"]

    assert "Post-mortem of 100 training runs" in said
    assert said.count("critical run: loss-spike at step 300") == 50
    assert text.count("Everything about this run") == 50
    assert sum(bool(r["charts"]) for r in drawn[::2]) == 50  # the ill ones come first
    assert len(text.encode()) < 4_100_000


@pytest.mark.parametrize(
    "columns",
    [
        {"loss": [2.0]},
        {"loss": [np.nan]},
        {"loss": np.full(50, np.nan), "grad_norm": np.full(50, np.inf)},
        {"loss": np.full(50, 2.0)},
        {"loss": [1e308, -1e308, 5e-324, 0.0]},
        {"loss": np.linspace(1, 2, 20), "step": 2**60 + np.arange(20) * 2**40},
        {"val_loss": [None, 2.0, None], "loss": [None, None, 1.0]},
        {"loss": np.tile([2.0, 3.0], 3000), "step": np.tile([1, 2], 3000)},
    ],
    ids=["row", "nan", "all-nan", "constant", "huge", "late", "sparse", "attempts"],
)
def test_odd_runs_have_a_page(columns):
    """One row, nothing finite, constants, extremes, late steps, thousands of attempts."""
    text = page(diagnosis(run=make_run(**columns)))
    parsed(text)
    drawn = data(text)["runs"][0]["charts"]

    assert drawn
    assert sum(len(p["v"]) for c in drawn for p in c["parts"]) <= 24_000
    assert len(text.encode()) < 600_000


def test_points_are_the_rows_of_the_log():
    """Every point decodes to a row: step, value, line and file, across restarts and odd lines."""
    step = np.concatenate([np.arange(0, 3000, 10), np.arange(1500, 4500, 10)])
    loss = np.random.default_rng(0).normal(2, 0.1, len(step))
    run = make_run(loss=loss, step=step)
    line = np.arange(1, len(step) + 1) + np.arange(len(step)) // 7
    file = np.where(np.arange(len(step)) < 450, "a.jsonl", "b.jsonl")
    run = dataclasses.replace(
        run, frame=run.frame.with_columns(line=pl.Series(line), file=pl.Series(file))
    )
    told = data(page(diagnosis(run=run)))["runs"][0]
    parts = told["charts"][0]["parts"]
    seen = [(p["a"], *point) for p in parts for point in decoded(p, told["interval"])]
    rows = run.frame.select("attempt", "step", "loss", "line", "file").rows()

    assert [p["a"] for p in parts] == [0, 1]
    assert parts[0]["d"] == 150  # the first row that attempt 1 took back
    assert "d" not in parts[1]
    assert seen == [(a, s, float(f"{v:.5g}"), n, f) for a, s, v, n, f in rows]


def test_line_breaks_where_a_value_is_not_finite():
    """No line is drawn across a NaN, and what is missing is no gap."""
    loss = [1.0, 2.0, np.nan, 3.0, None, 4.0, np.inf]
    chart = data(page(diagnosis(run=make_run(loss=loss))))["runs"][0]["charts"][0]

    assert chart["parts"][0]["v"] == [1.0, 2.0, 3.0, 4.0]
    assert chart["parts"][0]["g"] == [2]
    assert [(b[1], b[5]) for b in chart["bad"]] == [(3, "NaN"), (7, "Inf")]


def test_what_is_not_drawn_is_named():
    """Counters and what is beyond the twelfth chart are named; a metric with a finding is drawn."""
    extra = {f"own/{i}": np.linspace(0, i + 1, 500) for i in range(20)}
    run = make_run(loss=spiky(), epoch=np.linspace(0, 1, 500), **extra)
    text = page(diagnosis(incident(finding(metric="own/19")), run=run))
    drawn = [c["word"] for c in data(text)["runs"][0]["charts"]]
    said = words(text).partition("Logged but not drawn: ")[2]

    assert len(drawn) == _html_charts.MOST
    assert drawn[:2] == ["loss", "own/19"]
    assert said.startswith("epoch, own/")
    assert all(name in drawn or name in said for name in extra)


def test_statistics_of_the_whole_run_are_no_marks():
    """A finding that describes the run as a whole is told, and marks no place in the charts."""
    found = incident(finding("grad-norm-high", severity="notice"), tags=("statistic", "share-78%"))
    text = page(diagnosis(found))

    assert data(text)["runs"][0]["marks"] == []
    assert "grad-norm-high 78% of the rows" in words(text)


def test_steep_series_open_on_a_logarithmic_scale():
    """A spike of a hundred times the level would flatten all else; a series with zeros stays linear."""
    steep = np.where(np.arange(500) == 250, 100.0, 1.0)
    charts = data(page(diagnosis(run=make_run(loss=steep, grad_norm=steep - 1))))["runs"][0][
        "charts"
    ]

    assert [c["log"] for c in charts] == [True, False]


def luminance(colour: str) -> float:
    """Relative luminance of ``#rrggbb`` by WCAG 2."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_can_be_told_apart(scheme: int):
    """Text has a contrast of 4.5 on all it stands on, lines and marks one of 3 (WCAG AA)."""
    style = page().partition("<style>")[2]
    block = re.findall(r":root \{(.*?)\}", style, re.DOTALL)[scheme]
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))

    def contrast(a: str, b: str) -> float:
        low, high = sorted((luminance(colours[a]), luminance(colours[b])))
        return (high + 0.05) / (low + 0.05)

    for ground in ("page", "card", "code"):
        for ink in ("text", "soft", "link"):
            assert contrast(ink, ground) >= 4.5, (ink, ground)
    for severity in ("critical", "error", "warning", "notice", "fine", "link"):
        assert contrast("ink", severity) >= 4.5, severity
        assert contrast(severity, "card") >= 3, severity
    for mark in ("line", "old", "critical", "focus"):
        assert contrast(mark, "card") >= 3, mark
