"""The Markdown report, read by a parser that others use: tables are whole, text stays text."""

import pytest
from markdown_it import MarkdownIt

from stabcli.report import Outcome, Screen
from stabcli.report._escaping import code, prose
from stabcli.report.markdown import markdown, shortened
from tests.report.decided import NASTY, decided, many
from tests.report.diagnoses import diagnosis, outcome

PARSER = MarkdownIt("commonmark").enable("table")
OURS = {"<!-- stabcli markdown -->", "</details>"}


def tokens(text: str):
    """All tokens of a page, those inside lines as well; no HTML in it but our own."""
    flat = []
    for token in PARSER.parse(text):
        flat.append(token)
        flat += token.children or []
    html = [t.content.strip() for t in flat if t.type in ("html_block", "html_inline")]
    assert all(h in OURS or h.startswith("<details><summary>") for h in html), html
    assert sum("<details>" in h for h in html) == sum("</details>" in h for h in html)
    return flat


def cells(text: str) -> list[int]:
    """Cells of every row of every table."""
    rows: list[int] = []
    for token in tokens(text):
        if token.type == "tr_open":
            rows.append(0)
        if token.type in ("td_open", "th_open"):
            rows[-1] += 1
    return rows


def written(told: Outcome) -> str:
    """The report of an outcome."""
    return markdown(told, Screen())


def test_names_of_logs_neither_link_nor_format(tmp_path):
    """There is no link, image or HTML in the page, whatever a log calls its columns."""
    found = tokens(written(decided(tmp_path)))

    assert not [t for t in found if t.type in ("link_open", "image")]
    assert any(
        NASTY.replace("\x1b", "\\x1b") == t.content for t in found if t.type == "code_inline"
    )


def test_tables_are_whole(tmp_path):
    """A bar in a name does not break its row: every row has the cells of its head."""
    rows = cells(written(decided(tmp_path)))

    assert rows == [3] * 5 + [6] * 3


def test_everything_is_there(tmp_path):
    """Verdict, criteria, incidents with their lines, the plan, the ignored, the unchecked."""
    text = written(decided(tmp_path, unknown=True, unread=("b.jsonl: no such file",)))

    for said in ("CANNOT JUDGE", "max-final-loss", "run.jsonl:302", "step 200", "ignored: known"):
        assert said in text, said
    assert "rules could not look" in text
    assert "b.jsonl: no such file" in text


def test_many_incidents_are_counted(tmp_path):
    """Twenty are shown, the gravest first; the rest is a number."""
    text = written(many(tmp_path, 50))

    assert cells(text) == [6] * 21
    assert text.index("| error |") < text.index("| warning |")
    assert "and 31 more" in text


def test_several_runs_have_an_overview():
    """With more than one run there is a table of them."""
    assert cells(written(outcome(diagnosis(), diagnosis(checked=())))) == [4, 4, 4]


def test_nothing_read_is_not_fine():
    """Without a run the page says that it cannot judge."""
    assert "Cannot judge" in written(Outcome(diagnoses=(), exit_status=2, unread=("a: no",)))


@pytest.mark.parametrize("text", ["`", "``a`", "a`", " ", "", "a|b", "\\", "a\nb", "<b>"])
def test_code_is_code(text):
    """Whatever it holds, it is one piece of code, in a paragraph and in a table."""
    inline = [t for t in tokens(code(text)) if t.type == "code_inline"]
    table = f"| a | b |\n| --- | --- |\n| {code(text, cell=True)} | x |\n"

    assert len(inline) == 1
    assert cells(table) == [2, 2]


@pytest.mark.parametrize(
    "text", ["*a* _b_ **c**", "[a](b)", "<b>", "# a", "a|b", "&lt;", "![x](y)"]
)
def test_prose_is_shown_as_it_is(text):
    """Escaped text comes back letter by letter."""
    inline = PARSER.parse("x " + prose(text))[1].children

    assert "".join(t.content for t in inline) == "x " + text


@pytest.mark.parametrize("limit", [0, 10, 100, 400, 900, 2000, 10**6])
def test_shortened_is_never_longer_and_still_whole(tmp_path, limit):
    """Whatever the limit in bytes, no tag is left open and the cut is said."""
    full = written(decided(tmp_path))
    text = shortened(full, limit)
    tokens(text)

    assert len(text.encode()) <= limit
    assert text == full or not text or "Cut here" in text
