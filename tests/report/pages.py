"""HTML reports for the tests that read them and for those that open them in a browser."""

import html as library
import json
import re
from functools import cache
from typing import Any

import html5lib
import numpy as np

from stabcli.cost import Cost, CostReport
from stabcli.diagnosis import Diagnosis, diagnose
from stabcli.readers import read_runs
from stabcli.report import Screen
from stabcli.report.html import html as write
from stabcli.rules import Skipped
from stabcli.run import BadLines, Fact
from stabcli.ways import Plan
from tests.conftest import SAMPLES
from tests.report.diagnoses import PLAN, at, diagnosis, finding, incident, outcome
from tests.rules.runs import make_run

SOURCE = "{http://www.w3.org/2000/svg}"
COST = CostReport(
    incidents=(Cost(steps=12, tokens=4.8e7, gpu_hours=808.3, usd=1616.0),),
    total=Cost(steps=12, tokens=4.8e7, gpu_hours=808.3, usd=1616.0),
    all=Cost(steps=500, tokens=2e9, gpu_hours=33_000, usd=66_000),
    goodput=0.9755,
    classes=(
        ("recovering", Cost(steps=12, tokens=4.8e7, gpu_hours=808.3, usd=1616.0)),
        ("productive", Cost(steps=488, tokens=1.952e9, gpu_hours=32_191.7, usd=64_384.0)),
    ),
    assumptions=("stalls hold every pause between rows",),
    sources=(("tokens", "tokens_per_step: --tokens-per-step"), ("gpu_hours", "wall clock x 512")),
)
RECIPE = ("--load_step 200", "# skip 300 to 302")


def page(*diagnoses: Diagnosis, **changes: Any) -> str:
    """The report of these diagnoses."""
    from dataclasses import replace

    return write(replace(outcome(*diagnoses), **changes), Screen())


def parsed(text: str) -> Any:
    """The page as a tree; fails where the page is not valid."""
    return html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(text)


def words(text: str) -> str:
    """What the page says, without its style and scripts, on one line."""
    tree = parsed(text)
    for parent in tree.iter():
        for child in list(parent):
            if child.tag in ("script", "style", "head"):
                child.clear()
    return " ".join("".join(tree.itertext()).split())


def data(text: str) -> Any:
    """What the page's script draws."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found[1])


def spiky(n: int = 500) -> np.ndarray:
    """A falling loss with a leap to 9.1 at step 301."""
    loss = 2.0 + 2.0 / np.sqrt(np.arange(1, n + 1)) + np.sin(np.arange(n)) * 0.02
    loss[300] = 9.1
    return loss


def full(**changes: Any) -> Diagnosis:
    """A diagnosis with everything that a report can show."""
    norm = np.where(np.arange(500) == 300, 50.0, 0.5 + 0.01 * np.cos(np.arange(500)))
    rate = np.linspace(3e-4, 3e-5, 500)
    rate[400:] = np.nan
    run = make_run(
        name="run",
        loss=spiky(),
        grad_norm=norm,
        learning_rate=rate,
        facts={"gpus": Fact(value=512, source="--gpus"), "peak_lr": 3e-4},
    )
    import dataclasses

    recipe = dataclasses.replace(PLAN, recipe=RECIPE)
    given: dict[str, Any] = {
        "run": run,
        "cost": COST,
        "plans": [(recipe, PLAN), ()],
        "skipped": [Skipped(rule="mfu-low", why="the log has no mfu")],
        **changes,
    }
    first = finding("grad-norm-spike", metric="grad_norm", first=298, peak=301, value=50.0)
    worst = finding(severity="critical")
    return diagnosis(incident(first, worst), at(100, "notice"), **given)


HOSTILE = (
    "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=2>"
    '"\' onmouseover="window.hacked=3" <!--<script> & ]]> \u2028\u202e\x1b[31m\ud800 javascript:x'
)


def hostile() -> Diagnosis:
    """A diagnosis in which every text that may come from a log tries to become markup."""
    import dataclasses

    run = make_run(loss=spiky(), **{"evil" + HOSTILE[:60]: np.linspace(1, 2, 500)})
    frame = run.frame.with_columns(file=np.array([HOSTILE.replace("\ud800", "")] * 500))
    run = dataclasses.replace(
        run,
        frame=frame,
        name=HOSTILE,
        source=HOSTILE,
        reader=HOSTILE,
        notes=(HOSTILE,),
        columns={"loss": HOSTILE, "step": HOSTILE},
        bad=BadLines(count=1, first=((3, HOSTILE),)),
        facts={"gpu": Fact(value=HOSTILE, source=HOSTILE)},
    )
    plan: Plan = dataclasses.replace(PLAN, text=HOSTILE, why=HOSTILE, recipe=(HOSTILE, HOSTILE))
    cost = dataclasses.replace(COST, assumptions=(HOSTILE,), sources=(("tokens", HOSTILE),))
    return diagnosis(
        incident(finding(HOSTILE, metric=HOSTILE, file=HOSTILE), tags=(HOSTILE,)),
        run=run,
        cost=cost,
        plans=[(plan, plan)],
        checked=(HOSTILE,),
        skipped=[Skipped(rule=HOSTILE, why=HOSTILE)],
    )


def shown(text: str) -> str:
    """How hostile text is to be read on the page: as itself, with controls as escapes."""
    return " ".join(library.unescape(text).split())


@cache
def sample(name: str) -> Diagnosis:
    """The diagnosis of a sample log."""
    runs, unread = read_runs([SAMPLES / name])
    assert not unread
    return diagnose(runs[0])


def decoded(part: dict[str, Any], interval: int) -> list[tuple[int, float, int | None, str | None]]:
    """Step, value, line and file of every point of a part, by the encoding's description."""
    step, line, file = 0, None, None
    wrong = part.get("l", [])
    errors = dict(zip(wrong[1::2], wrong[2::2], strict=True))
    files = dict(part.get("f", []))
    points = []
    for k, (by, value) in enumerate(zip(part["s"], part["v"], strict=True)):
        step += by
        if wrong:
            line = wrong[0] if line is None else line + by // interval + errors.get(k, 0)
        file = files.get(k, file)
        points.append((step, value, line, file))
    return points
