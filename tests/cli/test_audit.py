"""Command audit: logs and configurations, in every format."""

import json

import pytest

from stabcli.cli import run
from stabcli.techniques import techniques
from tests.cli.commands import Stabcli
from tests.conftest import ROOT
from tests.golden import golden

STATUSES = {"missing", "unknown", "in_place"}


@pytest.mark.parametrize(
    "sample", ["hf-trainer/lora_nan", "jsonl/entropy_collapse.jsonl", "jsonl/moe_collapse.jsonl"]
)
def test_samples_on_the_screen(
    sample: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """What is missing first, with the findings it bears on, why it matters, and its source."""
    monkeypatch.chdir(ROOT)
    assert run(["audit", f"sample_logs/{sample}"]) == 0
    out = capsys.readouterr().out

    golden(f"audit/{sample}.txt", out)
    assert max(map(len, out.splitlines())) <= 80


def config(stabcli: Stabcli, name: str = "c.json", **settings: object) -> str:
    (stabcli.folder / name).write_text(json.dumps(settings))
    return name


def told(stabcli: Stabcli, *arguments: object) -> list[dict[str, dict]]:
    """The audits, a technique by its name."""
    result = stabcli("audit", *map(str, arguments), "--format", "json")
    assert (result.status, result.err) == (0, "")
    audits = json.loads(result.out)["audits"]
    return [{t["technique"]: t for t in a["techniques"]} for a in audits]


def test_json_has_every_technique_of_the_kind(stabcli: Stabcli):
    """With status, evidence, why, sources and findings; counts add up."""
    result = stabcli("audit", stabcli.spiked(), "--format", "json", "--kind", "sft")
    (audit,) = json.loads(result.out)["audits"]
    named = {t["technique"] for t in audit["techniques"]}

    assert audit["kind"] == "sft"
    assert named == {t.name for t in techniques if "sft" in t.kinds} - {"load-balancing"}
    assert {t["status"] for t in audit["techniques"]} <= STATUSES
    assert sum(audit["counts"].values()) == len(named)
    assert all(t["evidence"] and t["why"] and t["sources"] for t in audit["techniques"])
    clipping = next(t for t in audit["techniques"] if t["technique"] == "grad-clipping")
    assert [(f["rule"], f["first"]) for f in clipping["findings"]] == [("loss-spike", 300)]


def test_a_configuration_alone_and_beside_a_log(stabcli: Stabcli):
    """A log alone does not tell its clipping; the configuration does; a flag overrules both."""
    log = stabcli.healthy()
    c = config(stabcli, max_grad_norm=0.0, bf16=True)

    assert told(stabcli, log)[0]["grad-clipping"]["status"] == "unknown"
    assert told(stabcli, c)[0]["grad-clipping"]["status"] == "missing"
    beside = told(stabcli, log, "--config", c)[0]
    assert beside["grad-clipping"]["status"] == "missing"
    assert "c.json, max_grad_norm" in beside["grad-clipping"]["evidence"]
    given = told(stabcli, log, "--config", c, "--fact", "grad_clip=1")[0]
    assert given["grad-clipping"]["status"] == "in_place"
    assert given["number-format"]["status"] == "in_place"


def test_logs_and_configurations_side_by_side(stabcli: Stabcli):
    """In the order given."""
    stabcli.healthy("a.jsonl")
    (stabcli.folder / "b.yaml").write_text("weight_decay: 0\n")
    result = stabcli("audit", "b.yaml", "a.jsonl")

    assert result.status == 0
    assert result.out.index("b.yaml") < result.out.index("a.jsonl")


@pytest.mark.parametrize("form", ["console", "json", "markdown"])
def test_text_of_logs_is_shown_not_obeyed(stabcli: Stabcli, form: str):
    """A setting cannot speak to the terminal nor break a table."""
    c = config(stabcli, precision="\x1b]0;x\x07|`<b>", weight_decay=0.1)
    result = stabcli("audit", c, "--format", form)

    assert result.status == 0
    assert "\x1b" not in result.out
    if form == "markdown":
        rows = [line for line in result.out.splitlines() if line.startswith("| ")]
        assert {line.replace("\\|", "").count("|") for line in rows} == {4}


def test_lines_that_could_not_be_read_are_told(stabcli: Stabcli):
    """With their number."""
    (stabcli.folder / "c.yaml").write_text("seed: 1\nlayers:\n  - name: x\n")

    assert "line 3: a list of tables" in stabcli("audit", "c.yaml").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["none.jsonl"], "none.jsonl: no such file"),
        (["a.jsonl", "--kind", "grpo"], "--kind grpo: no such choice"),
        (["a.jsonl", "--config", "none.json"], "none.json: cannot be read"),
        (["a.jsonl", "--format", "csv"], "no such choice"),
        (["words.yaml"], "no settings in it"),
    ],
)
def test_wrong_usage_is_one_line_and_2(stabcli: Stabcli, arguments: list[str], said: str):
    """What is wrong is named."""
    stabcli.healthy("a.jsonl")
    (stabcli.folder / "words.yaml").write_text("only words\n")
    result = stabcli("audit", *arguments)

    assert (result.status, result.out) == (2, "")
    assert result.err.count("\n") == 1
    assert said in result.err


def test_a_technique_explains_itself(stabcli: Stabcli):
    """As rules do."""
    result = stabcli("explain", "grad-clipping")

    assert result.status == 0
    assert "## Why it matters" in result.out
