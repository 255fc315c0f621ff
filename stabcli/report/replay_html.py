"""A replay as one HTML file: no scripts, nothing from elsewhere, everything escaped."""

from __future__ import annotations

import math
from html import escape
from typing import Any

from stabcli.report import _replay
from stabcli.report._replay import Account
from stabcli.units import printable

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem;
  color: #1b1b1b; background: #fff }
h1 { font-size: 1.3rem } h2 { font-size: 1.1rem; margin-top: 2rem }
.grave { color: #b00020 } .fine { color: #1b6e3c } .other { color: #8a5a00 }
dl { display: grid; grid-template-columns: 8rem 1fr; gap: .2rem 1rem } dt { color: #666 } dd { margin: 0 }
table { border-collapse: collapse } td, th { padding: .3rem .8rem .3rem 0; text-align: left;
  border-bottom: 1px solid #ddd; vertical-align: top }
.tokens { font: 13px/1.9 ui-monospace, monospace; overflow-wrap: anywhere }
.tokens span { padding: 1px 2px; border-radius: 2px } .tokens .culprit { outline: 2px solid #b00020 }
svg { width: 100%; height: 90px; background: #fafafa; border: 1px solid #ddd }
@media (prefers-color-scheme: dark) { body { background: #16181c; color: #e6e6e6 }
  svg { background: #1d2026; border-color: #444 } td, th { border-color: #444 } dt { color: #aaa } }
"""


def replay_html(account: Account) -> str:
    """Write the whole replay as a page of its own."""
    title = f"Replay on {printable(account['checkpoint']['path'])}"
    out = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        (
            '<meta http-equiv="Content-Security-Policy" content="default-src \'none\';'
            " style-src 'unsafe-inline'\">"
        ),
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        _rows(_replay.header(account)),
    ]
    for verdict in account["verdicts"]:
        out += _verdict(verdict)
    rows = _replay.skip(account)
    if rows:
        out += ["<h2>Leave out</h2>", _rows(rows)]
    out.append("</body></html>")
    return "\n".join(out) + "\n"


def _verdict(verdict: Account) -> list[str]:
    grave = verdict["kind"] in _replay.GRAVE
    style = "grave" if grave else "fine" if verdict["kind"] == "no-fault" else "other"
    out = [
        (
            f'<h2><span class="{style}">{escape(verdict["kind"])}</span>'
            f" {escape(_replay.title(verdict))}</h2>"
        ),
        _rows([("batch", _replay.batch(verdict)), ("confidence", verdict["confidence"])]),
    ]
    if verdict["culprits"]:
        out.append("<table><tr><th>culprit</th><th>what it did</th></tr>")
        for culprit in verdict["culprits"][: _replay.CULPRITS]:
            named, told = _replay.name(culprit, verdict), _replay.told(culprit)
            out.append(f"<tr><td>{escape(named)}</td><td>{escape(told)}</td></tr>")
        out.append("</table>")
    out += [_picture(picture) for picture in verdict["pictures"]]
    out.append(_rows([*_replay.why(verdict), ("spent", _replay.cost(verdict))]))
    return out


def _rows(rows: list[tuple[str, str]]) -> str:
    inner = "".join(f"<dt>{escape(a)}</dt><dd>{escape(printable(b))}</dd>" for a, b in rows)
    return f"<dl>{inner}</dl>"


def _picture(picture: Account) -> str:
    """One sequence: loss and share as bars, and its tokens shaded by their share."""
    sample = picture["sample_id"]
    which = "" if sample is None else f", sample {printable(sample)}"
    heading = f"sequence {picture['sequence']}{which}"
    out = [f"<h3>{escape(heading)}</h3>"]
    marked = set(picture["marked"])
    for label, values, colour in (
        ("loss, nats", picture["loss"], "#4c78a8"),
        ("share of the squared gradient norm", picture["share"], "#e45756"),
    ):
        if values is not None:
            out.append(f"<div>{label}</div>" + _bars(values, marked, colour))
    if picture["texts"] is not None:
        out.append(_tokens(picture, marked))
    return "\n".join(out)


def _bars(values: list[Any], marked: set[int], colour: str) -> str:
    known = [_replay.real(v) for v in values]
    finite = [v for v in known if v is not None and math.isfinite(v)]
    top = max([*finite, 0.0]) or 1.0
    out = [f'<svg viewBox="0 0 {len(known)} 100" preserveAspectRatio="none" role="img">']
    for t, value in enumerate(known):
        if value is None:
            continue
        high = 100.0 if not math.isfinite(value) else max(0.0, value) / top * 92
        fill = "#b00020" if t in marked else colour
        out.append(
            f'<rect x="{t}" y="{100 - high:.1f}" width="1" height="{high:.1f}" fill="{fill}"/>'
        )
    out.append("</svg>")
    return "".join(out)


def _tokens(picture: Account, marked: set[int]) -> str:
    shares = [_replay.real(v) or 0.0 for v in picture["share"] or picture["loss"]]
    finite = [v for v in shares if math.isfinite(v)]
    top = max([*finite, 0.0]) or 1.0
    out = ['<div class="tokens">']
    for t, text in enumerate(picture["texts"]):
        value = shares[t] if math.isfinite(shares[t]) else top
        shade = max(0.0, min(1.0, value / top))
        kind = ' class="culprit"' if t in marked else ""
        said = printable(text or "").replace("\n", "⏎") if text is not None else "·"
        hint = f"{t}: ID {picture['tokens'][t]}"
        out.append(
            f'<span{kind} title="{hint}" style="background:rgba(228,87,86,{shade:.2f})">'
            f"{escape(said)}</span>"
        )
    out.append("</div>")
    return "".join(out)
