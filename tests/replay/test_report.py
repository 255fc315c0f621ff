"""Reports of a replay say the same, and nothing that a token says acts on whoever reads them."""

import json
import re
from html.parser import HTMLParser

import pytest

from stabcli.cli import run
from tests.replay.command import SAMPLE, replayed

FORMATS = ("console", "json", "markdown", "html")


def shown(capsys, monkeypatch, account: dict, format_: str) -> str:
    """What the command prints of an account, without replaying again."""
    monkeypatch.setattr("stabcli.cli.replay_batch._run", lambda _: account)
    capsys.readouterr()

    assert run([*SAMPLE, "--format", format_]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("format_", FORMATS)
def test_every_format_tells_the_same(account, capsys, monkeypatch, format_):
    """All of them name the IDs, their text, how sure it is, and what to leave out."""
    text = shown(capsys, monkeypatch, account, format_)

    for word in ("436", "Dikujiv", "385", "Zuweve", "high", "1264"):
        assert word in text
    assert "data-ids" in text.lower()


def test_no_text_shows_no_text(capsys, monkeypatch):
    """--no-text leaves the data's own words out of every format."""
    account = replayed(capsys, *SAMPLE[1:], "--no-text")

    for format_ in FORMATS:
        out = shown(capsys, monkeypatch, account, format_)
        assert "Dikujiv" not in out
        assert "436" in out


class Tags(HTMLParser):
    """Collects elements and attributes that could load or run something."""

    def __init__(self) -> None:
        super().__init__()
        self.tags, self.loads = set(), []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.loads += [
            value for name, value in attrs if name in ("src", "href") or name.startswith("on")
        ]


def test_html_is_one_file_and_escapes_what_tokens_say(account):
    """Nothing is loaded, nothing runs, and a token that is a tag is shown as text."""
    from stabcli.report.replay_html import replay_html

    evil = json.loads(json.dumps(account))
    verdict = evil["verdicts"][0]
    verdict["texts"]["385"] = "<script>alert(1)</script>"
    verdict["source"] = "<img src=x onerror=y>"
    for picture in verdict["pictures"]:
        picture["texts"][10] = "<script>"
        picture["sample_id"] = '"><b onclick=x>'
    page, tags = replay_html(evil), Tags()
    tags.feed(page)

    assert "script" not in tags.tags
    assert not tags.tags & {"img", "b", "link", "iframe"}
    assert tags.loads == []
    assert "http" not in re.sub("http-equiv", "", page)
    assert "&lt;script&gt;" in page


def test_console_and_markdown_escape_what_tokens_say(account):
    """No token moves the cursor, opens a tag, or breaks a table."""
    from stabcli.report import Screen
    from stabcli.report.replay_console import replay_console
    from stabcli.report.replay_markdown import replay_markdown

    evil = json.loads(json.dumps(account))
    evil["verdicts"][0]["texts"]["385"] = "\x1b[31m|<b>\n\u202e"
    console, page = replay_console(evil, Screen()), replay_markdown(evil)

    assert "\x1b" not in console + page
    assert "\u202e" not in console + page
    assert "\\|\\<b\\>" in page
    assert all(len(line) <= 80 for line in console.splitlines())
    assert replay_console(evil, Screen(ascii_only=True)).isascii()


def test_reports_take_an_account_with_nothing_in_it(account):
    """A verdict without passes, controls or culprits, and one with NaN in it, can be written."""
    from stabcli.report import Screen
    from stabcli.report.replay_console import replay_console
    from stabcli.report.replay_html import replay_html
    from stabcli.report.replay_json import replay_json
    from stabcli.report.replay_markdown import replay_markdown

    bare = json.loads(json.dumps(account))
    bare["controls"] |= {"loss": None, "grad_norm": None}
    bare["load"] = dict.fromkeys(bare["load"])
    bare["mapping"] |= {"recorded": False}
    bare["skip"] = {"steps": [], "sample_ids": [], "token_ids": [], "recipe": []}
    verdict = bare["verdicts"][0]
    verdict |= {"culprits": [], "listed": [], "numbers": {}, "step": None, "kind": "inconclusive"}
    verdict["pictures"][0] |= {"loss": ["NaN"] * 128, "share": None, "texts": None}
    verdict["pictures"][1]["share"][5] = "Infinity"
    for text in (
        replay_console(bare, Screen()),
        replay_html(bare),
        replay_json(bare),
        replay_markdown(bare),
    ):
        assert "inconclusive" in text.lower()
