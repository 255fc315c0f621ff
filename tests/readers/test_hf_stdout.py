"""Reader ``hf-stdout``: dictionaries among progress bars, whose steps the bars tell."""

import math
from pathlib import Path

import pytest

from stabcli.errors import LogError
from stabcli.readers import read_runs
from tests.textlogs import column, read, sample, truth

TENTHS = range(505, 701, 5)


def bar(step: int, total: int = 100) -> str:
    """A progress bar."""
    return f"\r {step * 100 // total:3d}%|████      | {step}/{total} [00:05<00:05,  1.03it/s]"


def row(loss: object, epoch: object = 0.5, **more: object) -> str:
    """A dictionary as print shows it."""
    return str({"loss": loss, **more, "epoch": epoch}) + "\n"


def test_steps_come_from_the_bars():
    """Numbers may be text of four digits; an evaluation belongs to the step of its bar."""
    run = sample("hf-stdout/bars.log")

    assert column(run, "loss") == pytest.approx({s: truth("loss")[s] for s in TENTHS}, rel=6e-4)
    assert column(run, "grad_norm") == pytest.approx(
        {s: truth("grad_norm")[s] for s in TENTHS}, rel=6e-4
    )
    assert column(run, "val_loss") == pytest.approx(truth("val_loss"))
    assert any("no step" in note for note in run.notes)


def test_banner_is_facts():
    """GPUs are the total batch over that of a device and the accumulation."""
    facts = sample("hf-stdout/bars.log").facts

    assert (facts["gpus"].value, facts["batch_sequences"].value, facts["parameters"].value) == (
        1,
        32,
        120576,
    )
    assert "trainable" in facts["parameters"].source


def test_without_bars_rows_are_counted():
    """Standard output alone: the planned steps over the rows say how often it was logged."""
    run = sample("hf-stdout/no_bars.log")

    assert run.frame["step"].to_list() == list(range(5, 201, 5))
    assert any("counted" in note for note in run.notes)


def banner(examples: int, batch: int, epochs: int, steps: int) -> str:
    """What the Trainer prints before it trains."""
    return (
        f"***** Running training *****\n  Num examples = {examples:,}\n  Num Epochs = {epochs}\n"
        f"  Total train batch size (w. parallel, distributed & accumulation) = {batch}\n"
        f"  Total optimization steps = {steps:,}\n"
    )


@pytest.mark.parametrize("digits", [2, 4])
@pytest.mark.parametrize(
    ("every", "first", "last", "epochs", "steps"),
    [
        (10, 10, 6000, 3, 9000),  # killed
        (10, 10, 520, 3, 9000),  # soon after it began
        (25, 4525, 9000, 3, 9000),  # what a restart prints
        (50, 50, 2000, 2, 4000),  # ended by a limit of steps within an epoch
        (1, 1, 700, 3, 9000),
    ],
)
def test_without_bars_epochs_tell_the_steps(every, first, last, epochs, steps, digits, tmp_path):
    """Also where the log does not reach the planned end, to the step."""
    logged = range(first, last + 1, every)
    text = banner(96_000, 32, epochs, steps)
    text += "".join(row(2.0, round(s / 3000, digits)) for s in logged)
    run = read(tmp_path / "log", text)

    assert run.frame["step"].to_list() == list(logged)
    assert any("follow from their epochs" in note for note in run.notes)


def test_a_restart_goes_on_where_its_epochs_say(tmp_path: Path):
    """The steps that were done again are those of the rows that came twice."""
    text = banner(9600, 32, 3, 900)
    text += "".join(row(2.0, round(s / 300, 2)) for s in range(10, 521, 10))
    text += banner(9600, 32, 3, 900) + "  Continuing training from global step 500\n"
    text += "".join(row(2.0, round(s / 300, 2)) for s in range(510, 901, 10))
    run = read(tmp_path / "log", text)

    assert run.frame["step"].to_list() == [*range(10, 521, 10), *range(510, 901, 10)]
    assert int(run.frame["discarded"].sum()) == 2


def test_nothing_tells_the_steps(tmp_path: Path):
    """Without bars and banner each row is a step, and a note says so."""
    run = read(tmp_path / "log", "".join(row(2.0, i / 10) for i in range(5)))

    assert run.frame["step"].to_list() == [1, 2, 3, 4, 5]
    assert any("each as one step" in note for note in run.notes)


def test_bar_that_lags(tmp_path: Path):
    """Bars are drawn ten times a second: one that lags by a step is taken for the row's."""
    text = "".join(bar(s - (s == 30)) + row(2.0, s / 100) for s in range(10, 101, 10))
    run = read(tmp_path / "log", text)

    assert run.frame["step"].to_list() == list(range(10, 101, 10))


def test_other_bars_do_not_count(tmp_path: Path):
    """The bar of an evaluation or of loading data has another total than the planned steps."""
    text = "  Total optimization steps = 100\n"
    for s in range(10, 101, 10):
        text += bar(s) + bar(7, 8) + row(2.0, s / 100)
    run = read(tmp_path / "log", text)

    assert run.frame["step"].to_list() == list(range(10, 101, 10))


def test_hidden_nan(tmp_path: Path):
    """A loss of exactly 0 beside a gradient norm of NaN is what the Trainer makes of NaN."""
    text = "".join(
        bar(s) + row(0.0 if s > 50 else 2.0, s / 100, grad_norm="@") for s in range(10, 101, 10)
    )
    text = text.replace("'@'", "1.0", 5).replace("'@'", "nan")
    run = read(tmp_path / "log", text)

    assert [s for s, x in column(run, "loss").items() if math.isnan(x)] == [60, 70, 80, 90, 100]


def test_tensor_as_gradient_norm(tmp_path: Path):
    """transformers 4.38.0 printed the gradient norm as a tensor."""
    text = "{'loss': 2.0, 'grad_norm': tensor(0.52, device='cuda:0'), 'epoch': 0.1}\n"
    run = read(tmp_path / "log", text * 2)

    assert set(column(run, "grad_norm").values()) == {0.52}


def test_end_alone_is_no_log(tmp_path: Path):
    """A training that logged nothing but its end has no step to look at."""
    with pytest.raises(LogError, match="no logged step"):
        read(
            tmp_path / "log",
            "{'train_runtime': 871.8, 'train_samples_per_second': 1.1, 'epoch': 1.0}\n",
        )


def test_policy_optimisation(tmp_path: Path):
    """A loss that sits at 0 beside a reward is an objective, not a loss."""
    text = "".join(bar(s) + row(0.0, s / 100, reward=0.5, kl=0.01) for s in range(10, 101, 10))
    run = read(tmp_path / "log", text)

    assert "objective_loss" in run.columns
    assert "hidden" not in run.frame.columns


def test_real_log(shared_data: Path):
    """48 dictionaries, five steps apart; their bars stand elsewhere in the file."""
    (path,) = shared_data.glob("text/agosalvez*/**/training_v3.log")
    (run,), _ = read_runs([str(path)])

    assert run.frame["step"].to_list() == list(range(5, 241, 5))
    assert run.facts["parameters"].value == 4_020_571_136


def test_a_step_that_is_named_is_taken():
    """ms-swift names the step in its dictionaries, as text, and needs no bars."""
    run = sample("hf-stdout/swift.log")

    assert column(run, "loss") == pytest.approx({s: truth("loss")[s] for s in range(581, 631)})
    assert run.facts["total_steps"].value == 1000
    assert run.bad.count == 0
    assert run.frame["elapsed_seconds"].to_list() == list(range(581, 631))


def test_speeds_are_times(tmp_path: Path):
    """ms-swift logs steps a second."""
    line = "{{'loss': 2.5, 'global_step/max_steps': '{}/90', 'train_speed(iter/s)': 0.5}}\n"
    run = read(tmp_path / "log", "".join(map(line.format, range(1, 31))))

    assert set(run.frame["step_seconds"].to_list()) == {2.0}
