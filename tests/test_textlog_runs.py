"""The ground of the text readers: ranks, restarts, several trainings, and whose a file is."""

import math
import re
from pathlib import Path

import polars as pl
import pytest

from stabcli.readers import read_runs, readers
from stabcli.sources import open_source
from stabcli.textlog import reading
from tests.conftest import SAMPLES
from tests.samples import name
from tests.textlogs import grammars, read

TEXT = (SAMPLES / "megatron/bad_batch.log").read_bytes()
LINES = [line for line in TEXT.split(b"\n") if b"] iteration" in line]

# ---- ranks, restarts, several trainings ----


def iteration(step: int, loss: float | str, total: int = 9) -> str:
    return f"step:{step}/{total} train_loss:{loss} train_time:{step}ms\n"


def test_ranks_that_agree_are_one(tmp_path: Path):
    """Four processes that print the same lines, out of order, are one run and one attempt."""
    lines = [f"[rank{r}]: " + iteration(s, 2.0) for s in range(1, 8) for r in range(4)]
    lines[5], lines[8] = lines[8], lines[5]
    run = read(tmp_path / "log", "".join(lines))

    assert run.frame["step"].to_list() == list(range(1, 8))
    assert len(run.attempts) == 1


def test_ranks_that_differ_give_their_median(tmp_path: Path):
    """Of several processes the median is taken, the largest loss kept, and the first NaN named."""
    losses = {1: [1.0, 2.0, 9.0], 2: [1.0, "nan", 9.0], 3: [1.0, 2.0, 3.0]}
    lines = [
        f"[rank{r}]: step {s}, loss: {x}\n" for s, xs in losses.items() for r, x in enumerate(xs)
    ]
    run = read(tmp_path / "log", "".join(lines))

    assert run.frame["loss"].to_list()[0::2] == [2.0, 2.0]
    assert math.isnan(run.frame["loss"][1])
    assert run.frame["loss_max"][0] == 9.0
    assert any("rank 1 was the first" in note for note in run.notes)
    assert run.frame["line"].to_list() == [1, 5, 7]  # that of the NaN is its own


def test_restart_is_an_attempt(tmp_path: Path):
    """A log that goes back before its end was reached is one run in two attempts."""
    text = "".join(iteration(s, 2.0, 99) for s in (1, 2, 3, 4, 3, 4, 5))
    run = read(tmp_path / "log", text)

    assert [(a.first_step, a.last_step) for a in run.attempts] == [(1, 4), (3, 5)]


def test_training_that_was_done_is_a_run_of_its_own(tmp_path: Path):
    """What begins anew after the last planned step is another run, not a restart."""
    text = "".join(iteration(s, 2.0, 3) for s in (1, 2, 3, 1, 2, 3, 1))
    path = tmp_path / "log"
    path.write_text(text)
    runs, _ = read_runs([str(path)])

    assert [r.frame.height for r in runs] == [3, 3, 1]
    assert [r.name for r in runs] == ["log", "log (2)", "log (3)"]
    assert all(len(r.attempts) == 1 for r in runs)


# ---- whose log it is ----


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*/*")), ids=name)
def test_text_readers_claim_no_other_sample(path: Path):
    """A log that is no text is claimed by none of them."""
    if (
        path.parent.name in grammars()
        or path.parent.name == "scripts"
        or path.suffix in {".py", ".md"}
    ):
        return
    source = open_source(path)

    assert not [g for g in grammars() if readers[g].matches(source)]


@pytest.mark.parametrize(
    "text",
    [
        "nothing to see here\n" * 50,
        'print(f"step:{step}/{total} train_loss:{loss}")\n' * 50,
        "step,loss\n1,2.0\n2,1.9\n3,1.8\n",
        '{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.9}\n',
        "the loss at step 5 was high\n" * 50,
    ],
)
def test_what_is_no_text_log_is_not_claimed(text: str, tmp_path: Path):
    """Prose, source code, tables and JSON are for others, or for nobody."""
    path = tmp_path / "log"
    path.write_text(text)
    source = open_source(path)

    assert not [g for g in grammars() if readers[g].matches(source)]


def test_source_code_before_the_log(tmp_path: Path):
    """A log that begins with 300 kB of source code is recognised all the same."""
    code = Path(reading.__file__).read_bytes()
    text = code * (300_000 // len(code)) + b"\n".join(LINES) + b"\n" + code * 30

    assert read(tmp_path / "log", text).reader == "megatron"


# ---- values that are not where they stand in all other lines ----


def missing(path: Path, text: bytes) -> list[str]:
    """Return what is told of missing values."""
    return [note for note in read(path, text).notes if note.startswith("values missing")]


@pytest.mark.parametrize(
    ("sound", "damaged"), [(b"| grad norm:", b"| grad norm;"), (b"| lm loss: ", b"| lm loss: x")]
)
def test_a_value_that_one_line_lacks_is_told(tmp_path: Path, sound: bytes, damaged: bytes):
    """A damaged separator or value leaves no trace in its line: that others have it tells."""
    lines = [*LINES[:60]]
    lines[30] = lines[30].replace(sound, damaged)
    column = sound.strip(b"|: ").decode()

    assert missing(tmp_path / "log", b"\n".join(LINES[:60]) + b"\n") == []
    (note,) = missing(tmp_path / "log", b"\n".join(lines) + b"\n")
    assert note == (f"values missing that lines like theirs hold, 1 in all: {column!r} in line 31")


def test_what_is_not_always_logged_is_not_missed(tmp_path: Path):
    """Validations between, a metric in every third line, and a few lines alone tell of nothing."""
    often = [
        line.replace(b"| grad norm:", b"| norm now:") if i % 3 else line
        for i, line in enumerate(LINES[:60])
    ]
    validation = b" validation loss at iteration 510 | lm loss value: 2.5E+00 | lm loss PPL: 12.1 |"

    assert missing(tmp_path / "log", b"\n".join(often) + b"\n") == []
    assert missing(tmp_path / "log", b"\n".join([*LINES[:30], validation, *LINES[30:60]])) == []
    few = [LINES[0], LINES[1].replace(b"| grad norm:", b"| norm of grad:"), LINES[2]]
    assert missing(tmp_path / "log", b"\n".join(few) + b"\n") == []


# ---- lines that look like others, of which less was read ----

STEPS = {
    "megatron": "[2026-01-01 08:00:16.442000] iteration {:8}/ 1000 | elapsed time per iteration (ms):"
    " 32.2 | lm loss: 2.0{}E+00 | grad norm: 1.{} |",
    "nanogpt": "iter {}: loss 2.0{}, time 1{}.20ms, mfu 3.10%",
    "modded-nanogpt": "step:{}/1000 train_loss:2.0{} train_time:1{}ms step_avg:15.52ms",
    "nanotron": "[INFO|DP=0]: iteration: {} / 1000 | consumed_tokens: 1.05M | tokens_per_sec: 6{}K |"
    " grad_norm: 1.{} | lm_loss: 2.5 | lr: 0.001",
    "litgpt": "Epoch 1 | iter {0} step {0} | loss train: 1.8{1}, val: n/a | iter time: 16.{2} ms (step)"
    " remaining time: 1:02:03",
    "hf-stdout": "{{'loss': 2.5{1}, 'grad_norm': 1.{2}, 'learning_rate': 0.001, 'epoch': 0.0{0}}}",
}
"""A line of a framework; step and two numbers are put in."""


def steps(reader: str, rows: int = 12) -> list[str]:
    return [STEPS[reader].format(i, 10 + i, 50 + i) for i in range(1, rows)]


def told_of(path: Path, lines: list[str], reader: str) -> list[int]:
    """Return the lines that are told of, as not usable or as lacking what others hold."""
    run = read(path, "\n".join(lines) + "\n", reader)
    notes = [note for note in run.notes if note.startswith("values missing")]
    missing = {int(n) for note in notes for n in re.findall(r"in line (\d+)", note)}
    return sorted(missing | {line for line, _ in run.bad.first})


@pytest.mark.parametrize("reader", STEPS)
@pytest.mark.parametrize("put", ["\r", "\x81", "x", "\x0b"])
def test_no_damaged_byte_takes_a_value_without_a_word(tmp_path: Path, reader: str, put: str):
    """Wherever a byte of a line is damaged, what it cost is told, with the line."""
    lines = steps(reader)
    whole = read(tmp_path / "log", "\n".join(lines) + "\n", reader).frame
    measured = whole.select(pl.exclude("attempt", "line", "discarded"))
    held = sum(measured.count().row(0))
    assert told_of(tmp_path / "log", lines, reader) == []
    lost = 0
    for at in range(ord(put) % 3, len(lines[5]), 3):  # another third for each byte
        hurt = [*lines]
        hurt[5] = f"{lines[5][:at]}{put}{lines[5][at + 1 :]}"
        path = tmp_path / "hurt"
        frame = read(path, "\n".join(hurt) + "\n", reader).frame
        if sum(frame.select(c for c in measured.columns if c in frame).count().row(0)) < held:
            lost += 1
            assert 6 in told_of(path, hurt, reader), hurt[5]
    assert lost


@pytest.mark.parametrize("reader", STEPS)
def test_two_lines_in_one_and_one_in_two_are_told(tmp_path: Path, reader: str):
    """A line end that was lost, or that stands where none was, is told with its line."""
    lines = steps(reader)
    held = read(tmp_path / "log", "\n".join(lines) + "\n", reader).frame.height
    one = [*lines[:5], f"{lines[5]}\x0b{lines[6]}", *lines[7:]]
    half = len(lines[5]) // 2
    two = [*lines[:5], lines[5][:half], lines[5][half + 1 :], *lines[6:]]

    found = read(tmp_path / "one", "\n".join(one) + "\n", reader).frame
    assert found.height == held or 6 in told_of(tmp_path / "one", one, reader)
    assert set(told_of(tmp_path / "two", two, reader)) & {6, 7}


def test_lines_that_hold_less_on_purpose_are_not_told_of(tmp_path: Path):
    """Fields that come and go as a whole, and other text between the lines, are no damage."""
    lines = steps("megatron", 40)
    for i in (3, 17):
        lines[i] = re.sub(r"lm loss: \S+ \| ", "", lines[i])
    lines[20] = lines[20] + " new field: 5 |"
    lines.insert(25, "WARNING: iteration 25 took long, see the log of rank 3")
    lines.insert(
        28, "validation loss at iteration 27 | lm loss value: 2.5E+00 | lm loss PPL: 12.1 |"
    )

    missing = told_of(tmp_path / "log", lines, "megatron")
    assert not set(missing) - {4, 18}  # what two lines lack was told of before
    few = [f"{i} train 1.{800 + i}" for i in range(1, 30)] + ["30 val 1.79"]
    assert told_of(tmp_path / "log", few, "nanogpt") == []


def test_a_text_where_others_have_a_number_is_told_of_once_it_is_known(tmp_path: Path):
    """A value that is garbled in the first line that has it is told of like any later one."""
    lines = steps("megatron")
    lines[0] = lines[0].replace("lm loss: 2", "lm loss: \x01")

    assert told_of(tmp_path / "log", lines, "megatron") == [1]


def test_decimal_commas_are_points_and_told(tmp_path: Path):
    """A comma that parts no thousands is a decimal point, read at once or line by line."""
    lines = [
        f"[2026-01-01 08:00:16.442000] iteration {i:8}/ 9000 | consumed samples: {i},000 |"
        f" lm loss: 2,{1000 + i} | grad norm: 1.5 |"
        for i in range(1, 3000)
    ]
    run = read(tmp_path / "log", "\n".join(lines) + "\n", "megatron")

    assert run.frame["loss"].to_list() == [float(f"2.{1000 + i}") for i in range(1, 3000)]
    assert (
        run.frame["consumed samples" if "consumed samples" in run.frame else "samples_seen"][4]
        == 5000
    )
    assert [n for n in run.notes if "commas in 'lm loss'" in n and "'2,1001' is 2.1001" in n]


def test_bad_lines_are_told_of_where_the_last_rows_are_no_steps(tmp_path: Path):
    """What a format leaves out at the end of a log takes no bad lines with it."""
    text = "".join(f"{{'loss': {3 - s / 100}, 'epoch': {s / 100}}}\n" for s in range(1, 50))
    text += (
        "{'loss': 2.4x1, 'epoch': 0.5}\n{'train_runtime': 12.5, 'train_loss': 2.7, 'epoch': 0.5}\n"
    )
    run = read(tmp_path / "log", text)

    assert run.reader == "hf-stdout"
    assert run.bad.count == 1
