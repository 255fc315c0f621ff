"""Verdicts as values, as JSON and in words."""

import json

import pytest

from stabcli.replay import words
from stabcli.replay.verdict import KINDS, MEANINGS, Culprit, Verdict


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_meaning_and_says_what_to_do(kind):
    """Only a batch without fault asks for nothing."""
    assert MEANINGS[kind]
    assert bool(words.actions(kind, "segments", ())) == (kind != "no-fault")


def test_json_is_plain_and_keeps_what_is_not_finite():
    """NaN and infinities are words, absent figures are null, nothing is lost but the maps."""
    verdict = Verdict(
        kind="data-ids",
        unit="ids",
        culprits=(
            Culprit(token_id=7, positions=((0, 3), (2, 5)), share=float("nan")),
            Culprit(token_id=9, positions=((0, 4),), share=0.25, role="context"),
        ),
        numbers={"loss": float("inf"), "grad_norm": float("-inf"), "explained": 0.9},
        forward_passes=2.5,
    )
    plain = json.loads(json.dumps(verdict.as_json(), allow_nan=False))

    assert plain["numbers"] == {"loss": "Infinity", "grad_norm": "-Infinity", "explained": 0.9}
    assert plain["culprits"][0]["share"] == "NaN"
    assert plain["culprits"][0]["loss"] is None
    assert plain["culprits"][1]["role"] == "context"
    assert plain["passes"] == {"forward": 2.5, "backward": 0.0}
    assert plain["meaning"] == MEANINGS["data-ids"]
    assert verdict.token_ids == (7, 9)
    assert verdict.positions == {(0, 3), (2, 5), (0, 4)}


def test_actions_name_the_culprits():
    """IDs where IDs did it, sequences where text did."""
    ids = words.actions("data-ids", "ids", (Culprit(token_id=7, positions=((0, 3),)),))
    text = words.actions("data-segments", "segments", (Culprit(sequence=5, positions=((5, 3),)),))

    assert "token IDs 7" in ids[0]
    assert "sequences 5" in text[0]
