"""Settings: where they come from, which wins, and that none is ignored in silence."""

from pathlib import Path

import pytest

from stabcli.errors import SettingError
from stabcli.facts import FACTS
from stabcli.settings import load


def settings(folder: Path, **environment: str):
    """The settings as seen from a folder."""
    return load(folder, environment, FACTS)


def test_nothing_set_is_nothing_said(tmp_path: Path):
    """Without a file or variables nothing is set, and no file is named."""
    found = settings(tmp_path)

    assert (found.words, found.lists, found.facts, found.rules, found.file) == (
        {},
        {},
        {},
        {},
        None,
    )
    assert found.word("format") is None
    assert found.list("preset") == ()


def test_file_is_read(tmp_path: Path):
    """Words, lists and tables are read off stabcli.toml; dashes in keys are allowed."""
    (tmp_path / "stabcli.toml").write_text(
        'preset = "seed"\nfail-on = "error"\nmetric = ["a", "b"]\n'
        '[facts]\ngpus = 512\n[map]\nloss = "my/loss"\n[rules.loss-spike]\nerror = 9.0\n'
    )

    found = settings(tmp_path)

    assert found.list("preset") == ("seed",)
    assert found.word("fail_on") == "error"
    assert found.list("metric") == ("a", "b")
    assert (found.facts["gpus"].value, found.facts["gpus"].source) == (512, "stabcli.toml")
    assert found.names == {"loss": "my/loss"}
    assert found.rules == {"loss-spike": {"error": 9.0}}


def test_what_is_asked_of_runs_is_kept_with_its_place(tmp_path: Path):
    """[check], its margins and [[ignore]] are handed on, each with where it stands."""
    (tmp_path / "stabcli.toml").write_text(
        '[check]\nmax-final-loss = 2\nrequire = "loss"\n[check.margins]\nloss = "2%"\n'
        '[[ignore]]\nrule = "loss-spike"\nreason = "known"\n'
    )
    found = settings(tmp_path, STABCLI_REQUIRE="loss,mfu")

    assert found.check["max_final_loss"].source == "stabcli.toml: check.max-final-loss"
    assert found.check["require"].value == "loss,mfu"
    assert found.margins["loss"].source == "stabcli.toml: check.margins.loss"
    assert found.ignores[0].value == {"rule": "loss-spike", "reason": "known"}


def test_nearest_file_wins(tmp_path: Path):
    """The file in the folder is taken, not one above it, and they are not mixed."""
    (tmp_path / "stabcli.toml").write_text('preset = "seed"\nformat = "json"\n')
    inner = tmp_path / "runs" / "a"
    inner.mkdir(parents=True)

    assert settings(inner).list("preset") == ("seed",)
    (inner / "stabcli.toml").write_text('preset = "default"\n')
    found = settings(inner)

    assert found.list("preset") == ("default",)
    assert found.word("format") is None


def test_pyproject_counts_only_with_our_table(tmp_path: Path):
    """A pyproject.toml without [tool.stabcli] is passed by."""
    (tmp_path / "pyproject.toml").write_text('[tool.stabcli]\nformat = "brief"\n')
    inner = tmp_path / "a"
    inner.mkdir()
    (inner / "pyproject.toml").write_text('[project]\nname = "a"\n')

    assert settings(inner).word("format") == "brief"


def test_environment_wins_over_the_file(tmp_path: Path):
    """STABCLI_* overrule the file, and say where they come from."""
    (tmp_path / "stabcli.toml").write_text('preset = "default"\n[facts]\ngpus = 8\n')

    found = settings(tmp_path, STABCLI_PRESET="seed, default", STABCLI_GPUS="512")

    assert found.list("preset") == ("seed", "default")
    assert (found.facts["gpus"].value, found.facts["gpus"].source) == ("512", "STABCLI_GPUS")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('presett = "seed"', "presett: no such setting: did you mean preset?"),
        ("[facts]\ngpu_count_ = 1", "facts.gpu_count_: no such fact: "),
        ("preset = 1", "preset: takes a word or a list of words, not 1"),
        ("format = []", "format: takes a word, not []"),
        ("rules = 1", "rules: takes a table, not 1"),
        ("[rules]\nloss-spike = 1", "rules.loss-spike: takes a table, not 1"),
        ("[map]\nloss = 1", "map.loss: takes a word, not 1"),
        ("preset = ", "not valid TOML: "),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, said: str):
    """A wrong file is one line: the file, what is wrong, what to do."""
    (tmp_path / "stabcli.toml").write_text(text)

    with pytest.raises(SettingError) as error:
        settings(tmp_path)

    assert str(error.value).startswith("stabcli.toml: ")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_unknown_variable_is_an_error(tmp_path: Path):
    """A variable that is spelt wrong is not ignored."""
    with pytest.raises(SettingError, match=r"STABCLI_PRESETT: .* did you mean STABCLI_PRESET\?"):
        settings(tmp_path, STABCLI_PRESETT="seed")


def test_others_variables_are_none_of_ours(tmp_path: Path):
    """Variables of other programs, empty ones and those of the tests are passed by."""
    found = settings(tmp_path, PATH="/bin", STABCLI_FORMAT="", STABCLI_UPDATE="1")

    assert found.words == {}


def test_file_that_is_not_text(tmp_path: Path):
    """Bytes that are no UTF-8 are said to be no TOML."""
    (tmp_path / "stabcli.toml").write_bytes(b"\xff\xfe\x00")

    with pytest.raises(SettingError, match="not valid TOML"):
        settings(tmp_path)
