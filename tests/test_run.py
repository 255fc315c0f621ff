"""A run: what it remembers of itself."""

from dataclasses import replace

from tests.rules.runs import healthy, make_run


def test_what_is_known_of_a_run_is_asked_once_and_not_carried_to_another():
    """A pass over all rows happens once; a changed copy looks for itself."""
    run = make_run(**healthy(100))
    asked = []
    for _ in range(3):
        assert run.once("answer", lambda: asked.append(1) or 42) == 42
    assert len(asked) == 1
    assert run.log_interval == 1
    sparse = replace(run, frame=run.frame.gather_every(10))
    assert sparse.log_interval == 10
    assert sparse.once("answer", lambda: 43) == 43
