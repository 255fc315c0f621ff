"""Hearsay: tells the line of what failed from a line that only talks of such failures.

What fails prints its own words at the beginning of a line, after what loggers, launchers and the
kernel put before every line: ``[rank3]: RuntimeError: CUDA error: ...``. Health checks, settings,
documentation and reports on earlier runs use the same words inside sentences of their own.
"""

from __future__ import annotations

import re
from typing import Literal

Telling = Literal["report", "doubtful", "hearsay"]

FAR = 400
"""Characters of a line before which what failed has begun to speak; lines may be of any length."""

_PREFIX = re.compile(
    r"""(?x)(?:\s+ | [-|:>*]+
    | \[[^\[\]]*\]:?                                  # [rank3]: [ 12.3] [Mon Jan 5 ...] [PG 0 Rank 3]
    | \([\w ]+\bpid=[^()]*\)                          # (Worker pid=12, ip=10.0.0.2)
    | (?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)\b,?
    | (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec|UTC|GMT|[A-Z]{2,3}T)\b:?
    | <std(?:err|out)>:
    | \S*\d\S*                                        # times, hosts, ranks, glog's E1129 and file:12]
    | (?:[Rr]ank|RANK|GPU|[Tt]ask|[Nn]ode|[Pp]rocess)[ :=]+\S*\d\S*
    | (?:Xid\ \d+\ )?on\ GPU\ \S+ | Xid\ \d+:?
    | (?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL|[IWEF]|(?i:error|fatal|critical))\b(?::[\w.]+)?:?
    | [\w.]+\ (?=[-|]\ (?:ERROR|CRITICAL|FATAL|WARNING)\b)                # logger - ERROR -
    | [\w.-]+\ kernel: | kernel: | [\w-]+:(?=\ error) | root | NVRM: | NCCL\ WARN\b | GPU\ has\b
    | \w+(?:\.\w+)+:?                                 # a logger or an exception, by its module
    | An?\b | an?\b | Some\b | Detected\b | Watchdog\ caught\b | what\(\):
    | (?:Process\ group\ |NCCL\ )watchdog\ thread\ terminated\ with\ exception:
    | terminate\ called\ after\ throwing\ an\ instance\ of\ '[^']*'
    | Original\ reason\ for\ failure\ was: | Fail(?:ed|ure)[,:]+ | First\ rerun:
    | (?:Caught|[Ff]ailed\ with|Exception\ in\ thread\ \S+?:)
    )"""
)
"""What stands before the words of what failed, piece by piece."""
_RAISED = re.compile(
    r"[\w.]*(?:Error|Exception|Interrupt|Exit|Failure)(?:\([^)]*\))?:|\.(?:cpp|cc|cu|h):\d+\]"
)
"""After an exception's name, or the place in C++ that logs it, come words of what failed."""
_NEGATED = re.compile(
    r"(?i)(?:\b(?:no|not|never|without|none|neither|nor|free of|zero|cannot find|did ?n't)\b"
    r"(?: [\w'/-]+){0,4}|[:=,(] ?0|\b(?:found|saw|had|has|with) 0) ?[\"'`(]?$"
)
"""No GPU has ..., without any ..., 0 ... right before the words."""
_DENIED = re.compile(
    r"(?i)^[^.;|]{0,60}?(?:\b(?:counts?|errors?|events?|matches|total|found|seen|occurrences)\b"
    r"[\"')\]]*\s*[:=]\s*(?:0|none|no|false)\b(?![.\w])|(?<![\w:=.])0 (?:matches|found|errors|events"
    r"|occurrences|times)\b|\b(?:not|never) (?:found|seen|detected|observed|encountered)\b"
    r"|^[\"']?\s*[=:]\s*0\b(?![.\w])|(?:->|=>) *(?:handled|ok|pass|retr|ignore|warn|page|ticket)\w*"
    r"|\b(?:handled|passed|ignored|disabled|simulated)\b|[:,-]\s*(?:OK|none)\s*$)"
)
"""... count: 0, ... not seen, ... -> handled right after them."""
_ABOUT = re.compile(
    r"(?i)^(?:s\b(?!:)|\s+(?:is|will|would|may|can|means?|handl\w*|retr\w+|polic\w+|checks?"
    r"|checker|guards?|monitor\w*|thresholds?|tests?|rates?|recovery|rules?|alerts?)\b)"
)
"""... is, ... handler, ... retries: a sentence about the words."""
_TALK = re.compile(
    r"(?i)https?://|\bdoc(?:s|ument\w*)?\b|\bsee\b|\bif\b|\bwhen(?:ever)?\b|\bin case\b|\bon_\w+"
    r"|\bre-?tr(?:y|ies|ying)\b|\bexamples?\b|\be\.g\.|\bsamples?\b|\bprompts?\b|\btexts?\b"
    r"|\btest\w*|\bsimulat\w+|\binject\w*|\bmock\w*|\bhandl\w+|\bwill\b|\bwould\b|\bmight\b"
    r"|\bconfig\w*|\bsettings?\b|\balerts?\b|\brules?\b|\bmonitor\w*|\bwatch(?:es|ing)?\b"
    r"|\bpolic(?:y|ies)\b|\bprevious\w*|\bearlier\b|\bformer\w*|\blast (?:run|job|time|attempt)\b"
    r"|\bhistory\b|\byesterday\b|\bago\b|\bexcluded\b|\bknown\b|\bpast\b|\bpassed\b|\bverif\w+"
    r"|\bcheck(?:s|ed|ing)?\b|\bhealthy?\b|\bprobab\w+|\bignor\w+|\benabl\w+|\bdisabl\w+"
    r"|\bavoid\w*|\bprevent\w*|\bsearch\w*|\bgrep\w*|\bdataset\w*"
    r"|\brunbooks?\b|\bassistant\b|\bmitigat\w+|\barmed\b|\breplaced\b"
)
"""Words of sentences about failures: conditions, checks, settings, lessons, what is past."""
_PLACE = re.compile(r"\[[^\[\]]*$")
"""A bracket that holds the place in C++."""
_OPEN = re.compile(r"(?:^|[\s(\[={,:])([\"'`])")


def telling(text: str, first: int, last: int) -> Telling:
    """Say whether a line reports a failure or only talks of one.

    Args:
        text: The line.
        first: Where the words of the failure begin.
        last: Where they end.

    Returns:
        ``report``: what failed speaks itself; ``hearsay``: another speaks of it, who denies it,
        quotes it, sets something up for it or tells of the past; ``doubtful``: neither is sure.
    """
    if first > FAR:
        return "doubtful"
    text = text[: last + FAR]
    before, after = text[:first], text[last:]
    raised = _RAISED.search(text)
    if raised is not None and (
        raised.end() > first or not _prefixed(_PLACE.sub("", before[: raised.start()]))
    ):
        raised = None
    said = before if raised is None else before[raised.end() :]
    if _NEGATED.search(said) or _DENIED.search(after) or _ABOUT.search(after):
        return "hearsay"
    quoted = _quoted(said)
    if not quoted and (raised is not None or _prefixed(before)):
        return "report"
    if raised is not None:
        return "doubtful"
    record = text.lstrip().startswith("{")  # a logger's, all of whose values are quoted
    return "hearsay" if _TALK.search(text) or (quoted and not record) else "doubtful"


def _prefixed(text: str) -> bool:
    """Say whether a text is nothing but what stands before every line."""
    at = 0
    while at < len(text):
        piece = _PREFIX.match(text, at)
        if piece is None or piece.end() == at:
            return False
        at = piece.end()
    return True


def _quoted(before: str) -> bool:
    """Say whether a quotation is open where a text ends."""
    at = 0
    while (opened := _OPEN.search(before, at)) is not None:
        closed = before.find(opened[1], opened.end())
        if closed < 0:
            return True
        at = closed + 1
    return False
