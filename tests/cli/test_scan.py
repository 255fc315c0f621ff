"""`scan` and `export`: what is read, what is said, and how it ends."""

import json
from pathlib import Path

import polars as pl
import pytest

from tests.cli.commands import Stabcli


def test_healthy_log(stabcli: Stabcli):
    """A healthy log ends with 0, even where findings are asked to fail."""
    result = stabcli("scan", stabcli.healthy(), "--fail-on", "notice", "--rule", "loss-spike")

    assert (result.status, result.err) == (0, "")
    assert "fine" in result.out


@pytest.mark.parametrize(
    ("fail_on", "status"), [(None, 0), ("notice", 1), ("error", 1), ("critical", 1)]
)
def test_findings_fail_only_where_asked(stabcli: Stabcli, fail_on: str | None, status: int):
    """Scan reports and ends with 0; --fail-on turns findings that bad into 1."""
    flags = ["--fail-on", fail_on] if fail_on else []
    result = stabcli("scan", stabcli.spiked(), *flags)

    assert result.status == status
    assert "loss-spike" in result.out


def test_fail_on_leaves_lesser_findings_alone(stabcli: Stabcli):
    """A finding below the severity given does not fail."""
    flags = ["--set", "loss-spike.critical_ratio=100", "--rule", "loss-spike"]

    assert stabcli("scan", stabcli.spiked(), *flags, "--fail-on", "critical").status == 0
    assert stabcli("scan", stabcli.spiked(), *flags, "--fail-on", "error").status == 1


def test_unreadable_log_beside_readable_ones(stabcli: Stabcli):
    """What can be read is reported; what cannot gets its line, and the end is 2."""
    result = stabcli("scan", stabcli.spiked(), "missing.jsonl", "--fail-on", "notice")

    assert result.status == 2
    assert "loss-spike" in result.out
    assert result.err == "stabcli: missing.jsonl: no such file: check the path\n"


def test_json_of_unreadable_logs_is_json(stabcli: Stabcli):
    """Programs get a document even where nothing could be read."""
    result = stabcli("scan", "missing.jsonl", "--format", "json")

    assert result.status == 2
    assert json.loads(result.out)["summary"] == {
        "runs": 0,
        "incidents": 0,
        "worst": None,
        "exit": 2,
    }


def test_no_rule_could_look_is_no_verdict(stabcli: Stabcli):
    """A log without what the chosen rules need cannot be judged: 2, and a line that says so."""
    result = stabcli("scan", stabcli.healthy(), "--rule", "mfu-low")

    assert result.status == 2
    assert "CANNOT JUDGE" in result.out
    assert "fine" not in result.out
    assert "no rule could look" in result.err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"\x00\x01\x02" * 100, "binary"),
        (b"hello\nworld\n" * 10, "no reader knows"),
        (b'{"loss": 1.0}\n' * 10, "step"),
    ],
)
def test_bad_input_is_one_line(stabcli: Stabcli, content: bytes, said: str):
    """A file that is no log: one line, 2, nothing on stdout."""
    (stabcli.folder / "bad.jsonl").write_bytes(content)
    result = stabcli("scan", "bad.jsonl")

    assert (result.status, result.out) == (2, "")
    assert result.err.count("\n") == 1
    assert result.err.startswith("stabcli: bad.jsonl: ")
    assert said in result.err


def test_folder_reports_what_it_left_out(stabcli: Stabcli):
    """In a folder files that are no logs are left out, said, and no failure."""
    (stabcli.folder / "runs").mkdir()
    stabcli.healthy("runs/a.jsonl")
    (stabcli.folder / "runs" / "notes.txt").write_text("hello\n")
    result = stabcli("scan", "runs")

    assert (result.status, result.err) == (0, "")
    assert "not logs, left out: notes.txt" in result.out


def test_folder_without_logs_is_no_verdict(stabcli: Stabcli):
    """A folder in which nothing is a log ends with 2."""
    (stabcli.folder / "runs").mkdir()
    (stabcli.folder / "runs" / "notes.txt").write_text("hello\n")
    result = stabcli("scan", "runs")

    assert (result.status, result.out) == (2, "")
    assert "no log in this folder" in result.err


def test_log_that_two_readers_claim(stabcli: Stabcli, monkeypatch: pytest.MonkeyPatch):
    """In a folder too, a log with two claims is no file to be passed by: choose a reader."""
    from stabcli.readers import Reader, readers

    twin = Reader(lambda source: iter(()), lambda source: not source.is_folder, "a test")
    list(readers)
    monkeypatch.setitem(readers._entries, "twin", twin)
    (stabcli.folder / "runs").mkdir()
    stabcli.healthy("runs/a.jsonl")
    result = stabcli("scan", "runs")

    assert (result.status, result.out) == (2, "")
    assert "both claim it: choose one with --reader" in result.err


def test_pattern_that_matches_nothing(stabcli: Stabcli):
    """An empty pattern is an error, not an empty success."""
    result = stabcli("scan", "runs/*.jsonl")

    assert (result.status, result.out) == (2, "")
    assert "no file matches this pattern" in result.err


def test_settings_file_and_flags(stabcli: Stabcli):
    """A settings file is obeyed, a flag wins over it, and a wrong rule in it is an error."""
    log = stabcli.spiked()
    settings = stabcli.folder / "stabcli.toml"
    settings.write_text(
        'format = "brief"\n[rules.loss-spike]\nnotice = 1e9\nerror = 1e9\nwarning = 1e9\n'
    )

    assert "nothing found by 1 rule" in stabcli("scan", log, "--rule", "loss-spike").out
    flags = ["--set", "loss-spike.notice=5", "--set", "loss-spike.warning=6"]
    assert "step 300..302" in stabcli("scan", log, "--rule", "loss-spike", *flags).out
    settings.write_text("[rules.loss-spik]\nnotice = 1\n")
    assert "did you mean loss-spike?" in stabcli("scan", log).err


def test_facts_of_flags_win_over_the_file(stabcli: Stabcli):
    """Facts come from the settings file, a flag overrules them, and both are named."""
    log = stabcli.spiked()
    (stabcli.folder / "stabcli.toml").write_text("[facts]\ngpus = 8\nparameters = 7e9\n")
    document = json.loads(stabcli("scan", log, "--format", "json", "--gpus", "512").out)
    facts = document["runs"][0]["run"]["facts"]

    assert facts["gpus"] == {"value": 512, "source": "--gpus"}
    assert facts["parameters"]["source"] == "stabcli.toml"


def test_map_names_a_column(stabcli: Stabcli):
    """--map says which column is the loss."""
    log = stabcli.log("odd.jsonl", ({"step": i, "cost_fn": 2.0} for i in range(50)))
    result = stabcli("scan", log, "--map", "loss=cost_fn", "--format", "json")

    assert json.loads(result.out)["runs"][0]["run"]["columns"]["loss"] == "cost_fn"


def test_demo(stabcli: Stabcli):
    """The bundled log is found wherever one stands, and shows an incident and a plan."""
    result = stabcli("demo")

    assert (result.status, result.err) == (0, "")
    assert "loss-spike" in result.out


def test_demo_log_is_a_sample():
    """The bundled log is the sample log of that name."""
    from stabcli.cli.demo import LOG
    from tests.conftest import SAMPLES

    assert LOG.read_bytes() == (SAMPLES / "jsonl" / LOG.name).read_bytes()


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_export_writes_every_row(stabcli: Stabcli, ending: str):
    """A table has a row a step, and NaN is not the same as nothing logged."""
    rows = [{"step": i, "loss": float("nan") if i == 7 else 2.0} for i in range(20)]
    rows[3] = {"step": 3, "grad_norm": 1.0}
    log = stabcli.log("a.jsonl", rows)
    output = stabcli.folder / f"out.{ending}"
    result = stabcli("export", log, "-o", output)
    read = {"parquet": pl.read_parquet, "csv": pl.read_csv, "jsonl": pl.read_ndjson}[ending]
    table = read(output)

    assert (result.status, result.out, result.err) == (0, "", "")
    assert table["step"].to_list() == list(range(20))
    assert table["loss"].null_count() == 1
    assert str(table["loss"][7]).lower() == "nan"
    assert sorted(p.name for p in stabcli.folder.iterdir()) == ["a.jsonl", output.name]


def test_export_never_overwrites(stabcli: Stabcli):
    """An existing file is kept, unless --force is given."""
    log = stabcli.healthy()
    output = stabcli.folder / "out.csv"
    output.write_text("mine")

    refused = stabcli("export", log, "-o", "out.csv")
    assert (refused.status, output.read_text()) == (2, "mine")
    assert "--force" in refused.err
    assert stabcli("export", log, "-o", "out.csv", "--force").status == 0
    assert output.read_text() != "mine"


def test_export_never_overwrites_the_log_itself(stabcli: Stabcli):
    """Not even with --force: what was not understood of it would be lost."""
    log = stabcli.healthy()
    before = (stabcli.folder / log).read_bytes()

    refused = stabcli("export", log, "-o", log, "--force")
    assert refused.status == 2
    assert "the log itself: give another file" in refused.err
    assert (stabcli.folder / log).read_bytes() == before


@pytest.mark.parametrize("output", ["nowhere/out.csv", "folder.csv"])
def test_export_to_where_it_cannot(stabcli: Stabcli, output: str):
    """A missing folder, or a folder in the file's place, is one line."""
    (stabcli.folder / "folder.csv").mkdir()
    result = stabcli("export", stabcli.healthy(), "-o", output)

    assert result.status == 2
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("name", ["loss-spike", "jsonl", "grad_norm"])
def test_explain(stabcli: Stabcli, name: str):
    """Rules, formats and metrics can be explained."""
    result = stabcli("explain", name)

    assert result.status == 0
    assert result.out.startswith(f"{name}\n\n")


@pytest.mark.parametrize(("name", "metric"), [("lr", "learning_rate"), ("gnorm", "grad_norm")])
def test_explain_knows_a_metric_by_its_other_names(stabcli: Stabcli, name: str, metric: str):
    """What logs call it is what people look for."""
    result = stabcli("explain", name)

    assert result.status == 0
    assert result.out.startswith(f"{name}: a name of {metric}\n\n")
    assert stabcli("explain", metric).out.split("\n\n")[1] in result.out


@pytest.mark.parametrize("command", ["scan", "check", "cost-report"])
def test_a_gpu_that_nobody_knows_is_said(stabcli: Stabcli, command: str):
    """One line says what is not known of it, and what would help; the rest is told all the same."""
    log = stabcli.healthy()
    odd = stabcli(command, log, "--gpu", "FOO99")
    known, given = (
        stabcli(command, log, *flags)
        for flags in (("--gpu", "H100"), ("--gpu", "FOO99", "--fact", "peak_tflops=500"))
    )

    assert odd.err.startswith("stabcli: --gpu FOO99: no peak FLOP/s is known of such a GPU")
    assert "--fact peak_tflops=X" in odd.err
    assert "h100" in odd.err
    assert odd.err.count("\n") == 1
    assert odd.status == known.status
    assert (known.err, given.err) == ("", "")


def test_a_column_to_keep_may_be_in_one_of_several_logs(stabcli: Stabcli):
    """Asked for is a column of any log; by the log's name or by the canonical one."""
    rows = [{"step": i, "train/loss": 2.0, "x": 1.0} for i in range(100)]
    logs = stabcli.healthy(), stabcli.log("other.jsonl", rows)

    assert stabcli("scan", *logs, "--metric", "x").status == 0
    for name in ("loss", "train/loss"):
        assert stabcli("scan", logs[1], "--metric", name).status == 0
    assert stabcli("scan", *logs, "--metric", "y").status == 2


@pytest.mark.parametrize("command", ["rules", "formats"])
def test_lists_name_everything(stabcli: Stabcli, command: str):
    """The lists name every entry of the registry."""
    from stabcli.readers import readers
    from stabcli.rules import rules

    known = {"rules": rules, "formats": readers}[command]
    out = stabcli(command).out

    assert [line.split()[0] for line in out.splitlines()] == [entry.name for entry in known]


def test_schema_is_the_one_that_ships(stabcli: Stabcli):
    """The schema printed is JSON and is the packaged file."""
    from stabcli.cli.schema import SCHEMA

    assert json.loads(stabcli("schema").out) == json.loads(Path(SCHEMA).read_text())


@pytest.mark.parametrize("form", ["console", "brief"])
def test_a_loss_that_is_no_longer_logged_is_not_called_nan(stabcli: Stabcli, form: str):
    """What the log does not say is not made up."""
    rows = [
        {"step": i, "grad_norm": 0.5 + i % 7 / 70, "loss": 2.0 + i % 9 / 90} for i in range(300)
    ]
    for row in rows[200:]:
        del row["loss"]
    out = stabcli("scan", stabcli.log("gone.jsonl", rows), "--format", form).out

    assert "loss no longer logged" in out
    assert "loss NaN" not in out
