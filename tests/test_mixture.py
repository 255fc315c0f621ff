"""Mixture: the one source of the data whose loss leapt, and where none is to blame."""

import numpy as np
import pytest

from stabcli.diagnosis import diagnose
from stabcli.mixture import only_source
from tests.rules.runs import healthy, make_run

SPIKE = slice(2000, 2010)


def mixed(names, leap=(), factor=3.0, n=3000):
    """A run with a loss for each source, of which some leap; their mean is the loss."""
    columns = healthy(n)
    random = np.random.default_rng(1)
    parts = {
        m: columns["loss"] * random.uniform(0.7, 1.2) + random.normal(0, 0.02, n) for m in names
    }
    for name in leap:
        parts[name][SPIKE] *= factor
    return make_run(**columns | {"loss": np.mean(list(parts.values()), axis=0)}, **parts)


@pytest.mark.parametrize(
    "names",
    [
        ("loss/wiki", "loss/code", "loss/web"),
        ("train/wiki_loss", "train/code_loss"),
        ("cm4_loss", "oscar_loss"),
        ("train_loss_wiki", "train_loss_code"),
    ],
)
def test_the_only_source_that_leapt_is_named(names):
    run = mixed(names, leap=names[1:2])
    found = only_source(run, 0, 2001, 2010)
    assert (found.metric, found.of) == (names[1], len(names))
    assert 2001 <= found.step <= 2010
    assert found.value > 2 * found.before


@pytest.mark.parametrize(
    ("names", "leap"),
    [
        (("loss/wiki", "loss/code"), ("loss/wiki", "loss/code")),
        (("loss/wiki", "loss/code"), ()),
        (("loss/code",), ("loss/code",)),
        (("aux_loss", "code_loss"), ("code_loss",)),
        (("lm_loss_1", "z_loss", "ce_loss"), ("ce_loss",)),
        (("loss/0", "loss/1"), ("loss/1",)),
    ],
)
def test_all_none_or_a_part_of_the_loss_is_no_source(names, leap):
    """All leapt, none did, there is but one, or they are no sources of data."""
    assert only_source(mixed(names, leap), 0, 2001, 2010) is None


def test_it_supports_the_batch_and_names_the_column():
    names = ("loss/wiki", "loss/code", "loss/web")
    d = diagnose(mixed(names, leap=("loss/code",), factor=5.0))
    told = next(
        c for i, c in zip(d.incidents, d.causes, strict=True) if i.severity in ("error", "critical")
    )
    cause = next(c for c in told if c.name == "bad-batch")
    assert cause.standing == "supported"
    assert "of 3 sources only loss/code leapt" in cause.why
    assert [r.metric for r in cause.rows] == ["loss/code"]
