"""Reader ``generic-text``: a step and a loss in a line, and nothing made up."""

import math
from pathlib import Path

import pytest

from stabcli.errors import UnknownFormat
from stabcli.readers import read_runs
from tests.textlogs import column, read, sample, truth

SPELLINGS = [
    "step {s}: loss {x}",
    "Step: {s}, Loss: {x}",
    "[{s}/900] step {s} | loss = {x} | lr = 0.1",
    "2026-01-02 03:04:05 INFO iteration={s} train_loss={x}",
    "Iter(train) [  {s}/900]  lr: 2.0000e-05  eta: 0:12:34  time: 1.23  loss: {x}",
    "(Actor pid=12) step {s}: {{'train/loss': {x}, 'train/lr-pg_0': 1e-06}}",
    'INFO metrics_tag: {{"step": {s}, "metrics": {{"actor/lm_loss": 1, "loss": {x}}}}}',
    "INFO train.py:412 in record -- step={s} loss={x} tgs (tokens/gpu/second)=4252.47",
    "global_step: {s} lr: 0.1 loss: {x}",
    "Iteration {s}/900, training loss {x}",
    "Step... ({s} | Loss: {x}, Learning Rate: 0.0004)",
]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spellings(spelling: str, tmp_path: Path):
    """Steps and losses as people print them, NaN included."""
    losses = {s: 3.0 - s / 100 for s in range(1, 30)} | {30: math.nan}
    run = read(
        tmp_path / "log", "".join(spelling.format(s=s, x=x) + "\n" for s, x in losses.items())
    )

    assert run.reader == "generic-text"
    assert column(run, "loss") == pytest.approx(losses, nan_ok=True)


def test_own_loop():
    """Named values beside the loss, times of the lines, flags that the log repeats."""
    run = sample("generic-text/own_loop.log")

    assert column(run, "loss") == pytest.approx(truth("loss"), abs=6e-5)
    assert column(run, "grad_norm") == pytest.approx(truth("grad_norm"), abs=6e-4)
    assert run.facts["seed"].value == 1234
    assert "wall_time" in run.frame.columns


def test_it_says_that_it_guesses():
    """A note says that no reader knows the format."""
    assert any("no reader knows" in note for note in sample("generic-text/own_loop.log").notes)


def test_two_columns():
    """Two columns of numbers and nothing else are step and loss."""
    run = sample("generic-text/two_columns.txt")

    assert column(run, "loss") == {s: truth("loss")[s] for s in range(581, 631)}


def test_nothing_is_made_up(tmp_path: Path):
    """Numbers without a name become no column."""
    run = read(tmp_path / "log", "step 1 loss 2.0 (17) 4.5\nstep 2 loss 1.9 (18) 4.4\n")

    assert run.measurements == ["loss"]


def test_names_of_source_files_are_no_metrics(tmp_path: Path):
    """The place in the code that a logger puts before a line is no measurement; units are."""
    line = "INFO train.py:412 in record -- step={} loss=2.5 tgs (tokens/gpu/second)=4252.47\n"
    run = read(tmp_path / "log", "".join(map(line.format, range(1, 30))))

    assert run.measurements == ["loss", "tokens_per_second_per_gpu"]


@pytest.mark.parametrize(
    ("line", "steps"),
    [
        ("saved checkpoint to /ckpt/step_{}", (10, 20)),
        ("INFO Saving model checkpoint to out/checkpoint-{}", (10, 20)),
        ("=> saving at iter {}: ckpt.pt", (10, 20)),
        ("saved 20 samples in {} s", None),
        ("saved checkpoint to out/ckpt.pt ({} MB)", None),
    ],
)
def test_saved_checkpoints(line: str, steps: tuple[int, ...] | None, tmp_path: Path):
    """A sentence that names the step of a checkpoint makes it known; other numbers do not."""
    text = ""
    for s in range(1, 31):
        text += f"step {s} loss 2.5\n" + (line.format(s) + "\n" if s in (10, 20) else "")
    saved = read(tmp_path / "log", text).facts.get("checkpoints")

    assert (saved.value if saved else None) == steps


@pytest.mark.parametrize(
    "text",
    [
        "step 1 of the recipe: heat the oven\n" * 30,
        "1 2\nsome text\n3 4\nmore text\n",
        "loss of data in step 5 was reported\n" * 10,
        "for step in range(100):\n    print('step', step, 'loss', loss)\n" * 10,
    ],
)
def test_prose_is_no_log(text: str, tmp_path: Path):
    """What only talks of steps and losses is claimed by nobody."""
    path = tmp_path / "log"
    path.write_text(text)

    with pytest.raises(UnknownFormat):
        read_runs([str(path)])


def test_real_log(shared_data: Path):
    """Losses of a test of torchtitan's: a hundred rows of step and loss."""
    (path,) = shared_data.glob("text/pytorch__torchtitan/**/llama3_cuda.txt")
    (run,), _ = read_runs([str(path)])

    assert run.frame["step"].to_list() == list(range(1, 101))
