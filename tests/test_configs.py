"""Configs: JSON, TOML and plain keys and values; what is more than that is counted, not guessed at."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stabcli.configs import is_config, plain, read_config
from stabcli.errors import LogError

PLAIN = """\
# how it was trained
model:
  name: "tiny # not a comment"   # a comment
  hidden_size: 64
train:
  lr: 3e-4
  bf16: true
  warmup_steps: 0
  betas: [0.9, 0.95]
  checkpoints:
    - 100
    - 200
seed = 7
empty:
"""


def test_plain_keys_and_values():
    """Tables by indentation, comments, quotes, switches, numbers, lists; a value that is not there."""
    bad: list[tuple[int, str]] = []

    assert plain(PLAIN, bad) == {
        "model": {"name": "tiny # not a comment", "hidden_size": 64},
        "train": {
            "lr": 3e-4,
            "bf16": True,
            "warmup_steps": 0,
            "betas": [0.9, 0.95],
            "checkpoints": [100, 200],
        },
        "seed": 7,
        "empty": None,
    }
    assert bad == []


def test_what_is_more_than_that_is_counted():
    """Lists of tables, blocks of text and lines without a key are told with their numbers."""
    bad: list[tuple[int, str]] = []
    found = plain("a: 1\nlayers:\n  - name: x\ntext: |\n  b: 2\njust words\nc: 3\n", bad)

    assert {k: v for k, v in found.items() if v is not None} == {"a": 1, "c": 3}
    assert [line for line, _ in bad] == [3, 4, 6]


def test_sections_are_tables():
    """As in an ini file."""
    assert plain("[train]\nlr = 1\n[data]\nseed = 2\n", []) == {
        "train": {"lr": 1},
        "data": {"seed": 2},
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.json", json.dumps({"train": {"max_grad_norm": 1.0, "seed": 7}})),
        ("c.toml", "[train]\nmax_grad_norm = 1.0\nseed = 7\n"),
        ("c.yaml", "train:\n  max_grad_norm: 1.0\n  seed: 7\n"),
        ("c.txt", "max_grad_norm: 1.0\nseed: 7\n"),
    ],
)
def test_the_same_facts_from_every_kind_of_file(tmp_path, name, text):
    """With the file and the key as their source."""
    path = tmp_path / name
    path.write_text(text)
    config = read_config(str(path))

    assert {k: f.value for k, f in config.facts.items()} == {"grad_clip": 1.0, "seed": 7}
    assert config.facts["seed"].source == f"{name}, seed"
    assert config.keys == 2


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("c.json", '{"a": 1,\n "b" 2}', "c.json:2: not valid JSON"),
        ("c.json", "[" * 100_000, "no settings"),
        ("c.json", '{"a":' * 50_000, "not valid JSON"),
        ("c.toml", "a = ", "not valid TOML"),
        ("c.yaml", "just some words\n", "no settings"),
        ("c.yaml", "", "no settings"),
        ("c.json", "{}", "no settings"),
    ],
)
def test_what_is_no_configuration_is_one_line(tmp_path, name, text, said):
    """It names the file and says what to give."""
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(LogError, match=said) as caught:
        read_config(str(path))

    assert "\n" not in str(caught.value)


def test_unreadable_files(tmp_path):
    """Not there, and not text."""
    with pytest.raises(LogError, match="cannot be read"):
        read_config(str(tmp_path / "none.json"))
    (tmp_path / "c.yaml").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(LogError, match="not text"):
        read_config(str(tmp_path / "c.yaml"))


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("c.json", '{"seed": 1}', True),
        ("c.yaml", "seed: 1", True),
        ("c.toml", "seed = 1", True),
        ("trainer_state.json", '{"log_history": [], "max_steps": 1}', False),
        ("rows.json", '[{"step": 1}]', False),
        ("row.json", '{"step": 1, "loss": 2}', False),
        ("log.json", '{"step": 1}\n{"step": 2}', False),
        ("log.jsonl", '{"seed": 1}', False),
        ("log.csv", "seed\n1", False),
    ],
)
def test_logs_are_not_taken_for_configurations(tmp_path, name, text, expected):
    """Histories, rows and lines of rows are logs."""
    path = tmp_path / name
    path.write_text(text)

    assert is_config(str(path)) is expected


SCALARS = st.one_of(
    st.integers(-(10**9), 10**9),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.text(st.characters(codec="ascii", categories=("Lu", "Ll")), min_size=4, max_size=8).filter(
        lambda s: s.lower() not in ("true", "false", "none", "null", "infinity")
    ),
)


@given(st.dictionaries(st.from_regex(r"[a-z][a-z_]{0,9}", fullmatch=True), SCALARS))
def test_what_is_written_is_read(settings):
    """Flat settings come back as they were, and no line is bad."""
    bad: list[tuple[int, str]] = []
    text = "".join(
        f"{k}: {json.dumps(v) if not isinstance(v, str) else v}\n" for k, v in settings.items()
    )

    assert plain(text, bad) == settings
    assert bad == []


@given(st.text(max_size=300))
def test_no_text_makes_it_crash(text):
    """Whatever stands there, each line is a setting, nothing, or counted."""
    bad: list[tuple[int, str]] = []
    plain(text, bad)

    assert len(bad) <= len(text.splitlines())
