"""Reader ``megatron``: iteration lines, the loss that is left out, arguments, forks."""

import math
from pathlib import Path

import pytest

from stabcli.diagnosis import diagnose
from tests.textlogs import column, read, sample, truth

HEAD = " iteration {step:8d}/     100 | consumed samples: {step:12d} | elapsed time per iteration (ms): 2000.0 | learning rate: 1.000E-04 | global batch size:     4 |"
TAIL = " loss scale: {scale} |{norm} number of skipped iterations: {skipped:3d} | number of nan iterations:   0 |\n"


def line(
    step: int, loss: str | None = "2.0E+00", norm="1.000", skipped=0, scale="1.0", more=""
) -> str:
    """An iteration line."""
    middle = f" lm loss: {loss} |" if loss else ""
    said = f" grad norm: {norm} |" if norm else ""
    return (
        HEAD.format(step=step)
        + middle
        + more
        + TAIL.format(scale=scale, norm=said, skipped=skipped)
    )


def test_values_are_those_of_the_run():
    """Loss, gradient norm and learning rate as printed; times in seconds; validation beside them."""
    run = sample("megatron/bad_batch.log")

    assert column(run, "loss") == pytest.approx(truth("loss"), rel=1e-6)
    assert column(run, "grad_norm") == pytest.approx(truth("grad_norm"), abs=6e-4)
    assert column(run, "learning_rate") == pytest.approx(truth("lr"), rel=1e-6)
    assert column(run, "step_seconds") == pytest.approx(truth("step_time"), abs=6e-5)
    assert column(run, "wall_time") == pytest.approx(truth("timestamp"), abs=2e-6)
    assert column(run, "val_loss") == pytest.approx(truth("val_loss"), rel=1e-6)
    assert column(run, "val_perplexity") == pytest.approx(
        {step: math.exp(loss) for step, loss in truth("val_loss").items()}, rel=1e-5
    )
    assert run.columns["loss"] == "lm loss"


def test_arguments_are_facts():
    """What the dump of arguments says, each with its line."""
    facts = sample("megatron/bad_batch.log").facts
    wanted = {
        "gpus": 1,
        "parameters": 120576,
        "tokens_per_step": 2048,
        "sequence_length": 64,
        "peak_lr": 0.003,
        "warmup_steps": 100,
        "grad_clip": 4.0,
        "checkpoint_every": 100,
        "total_steps": 1000,
    }

    assert {name: facts[name].value for name in wanted} == wanted
    assert facts["grad_clip"].source.startswith("line 4")


def test_parameters_are_summed_over_ranks(tmp_path: Path):
    """A rank that is named twice counts once."""
    said = " > number of parameters on (tensor, pipeline) model parallel rank ({}, 0): {}\n"
    text = said.format(0, 100) + said.format(1, 50) + said.format(1, 50) + line(1)

    assert read(tmp_path / "log", text).facts["parameters"].value == 150


def test_ramp_up_has_no_one_batch_size(tmp_path: Path):
    """While the batch size ramps up, the batch of the arguments is not that of a step."""
    text = "  global_batch_size ....... 64\n  rampup_batch_size ....... ['16']\n  seq_length .......... 8\n"

    assert "tokens_per_step" not in read(tmp_path / "log", text + line(1)).facts


def test_healthy_run_hides_nothing(tmp_path: Path):
    """Where every line has a loss no row is said to hide one."""
    run = read(tmp_path / "log", "".join(line(s) for s in range(1, 60)))

    assert "hidden" not in run.frame.columns
    assert diagnose(run).incidents == ()


def test_loss_left_out_was_nan(tmp_path: Path):
    """A line without loss hides a NaN even beside a finite gradient norm."""
    run = read(
        tmp_path / "log",
        "".join(line(s, None if s in (30, 31) else "2.0E+00") for s in range(1, 60)),
    )

    assert [s for s, x in column(run, "loss").items() if math.isnan(x)] == [30, 31]
    assert run.frame.filter(run.frame["hidden"])["step"].to_list() == [30, 31]
    found = [f.rule for i in diagnose(run).incidents for f in i.findings]
    assert "hidden-nonfinite" in found


def test_loss_of_skipped_iterations_was_none(tmp_path: Path):
    """Iterations that were all skipped have no loss to print, and that is no NaN."""
    text = "".join(line(s, None, norm="", skipped=1) for s in (1, 2, 3))
    run = read(tmp_path / "log", text + "".join(line(s) for s in range(4, 40)))

    assert "hidden" not in run.frame.columns
    assert column(run, "loss").keys() == set(range(4, 40))
    assert sum(column(run, "skipped_steps").values()) == 3


def test_skipped_in_part_still_tells(tmp_path: Path):
    """Of ten iterations two were skipped: the other eight had a loss, and it was NaN."""
    text = "".join(
        line(s, None if s == 50 else "2.0E+00", skipped=2 * (s == 50)) for s in range(10, 100, 10)
    )
    run = read(tmp_path / "log", text)

    assert [s for s, x in column(run, "loss").items() if math.isnan(x)] == [50]


def test_nan_from_the_start_to_the_end(tmp_path: Path):
    """A run whose every loss was NaN prints none at all, and is not called clean."""
    run = read(tmp_path / "log", "".join(line(s, None) for s in range(1, 30)))

    assert all(math.isnan(x) for x in column(run, "loss").values())
    assert run.frame["hidden"].all()


def test_auxiliary_loss_is_not_the_loss(tmp_path: Path):
    """A mixture of experts that prints its balance but no loss hides a NaN."""
    more = " load_balancing_loss: 1.0E+00 |"
    run = read(tmp_path / "log", "".join(line(s, None, more=more) for s in range(1, 30)))

    assert all(math.isnan(x) for x in column(run, "loss").values())
    assert set(column(run, "aux_loss").values()) == {1.0}


def test_oddities():
    """Two lines in one, another rank, a hidden NaN, a capped perplexity, a cut last line."""
    run = sample("megatron/oddities.log")
    loss = column(run, "loss")

    assert run.frame["step"].to_list() == list(range(501, 562))
    assert [s for s, x in loss.items() if math.isnan(x)] == [531, 532]
    assert loss.keys() == set(range(504, 562))
    assert math.isnan(column(run, "val_perplexity")[560])
    assert column(run, "loss")[541] == pytest.approx(truth("loss")[541])
    assert any("no end" in note for note in run.notes)


def test_perplexity_alone(tmp_path: Path):
    """A validation line of which only the perplexity is left is read as it is."""
    text = line(1) + " validation loss at iteration 1 | lm loss PPL: 4.851652E+08 | \n" + line(2)

    assert column(read(tmp_path / "log", text), "val_perplexity") == {1: 485165200.0}


def test_neox():
    """NeoX puts samples/sec first, has no gradient norm, and its MFU is a percentage."""
    run = sample("megatron/neox.log")

    assert run.frame["step"].to_list() == list(range(581, 631))
    assert set(column(run, "mfu").values()) == {0.125}
    assert "grad_norm" not in run.columns
    assert "samples/sec" in run.frame.columns


def test_nan_in_capitals(tmp_path: Path):
    """NeoX prints a NaN as NAN, and does not leave it out."""
    text = "".join(line(s, "NAN" if s == 7 else "2.0E+00") for s in range(1, 20))
    run = read(tmp_path / "log", text)

    assert [s for s, x in column(run, "loss").items() if math.isnan(x)] == [7]
    assert "hidden" not in run.frame.columns


def test_check_that_ends_the_training(tmp_path: Path):
    """The line with which the check for NaN stops a run is a NaN at its iteration."""
    text = "".join(line(s) for s in range(1, 12))
    text += "Rank 3, node n1, device 3, iteration 12: Unexpected result nan (message='found NaN in local forward loss calculation')\n"
    text += "Rank 3, node n1, device 3, iteration 12: Unexpected result inf (message='found Inf in local grad norm for bucket #2')\n"
    run = read(tmp_path / "log", text)

    assert math.isnan(column(run, "loss")[12])
    assert math.isinf(column(run, "grad_norm")[12])


def test_deepspeed_placeholders(tmp_path: Path):
    """A gradient norm of 0 beside a loss scale of -1 in all lines is known to DeepSpeed alone."""
    run = read(tmp_path / "log", "".join(line(s, norm="0.000", scale="-1.0") for s in range(1, 30)))

    assert "grad_norm" not in run.frame.columns
    assert "loss_scale" not in run.frame.columns
    assert any("left out" in note for note in run.notes)


def test_second_dump_of_arguments_is_a_restart(tmp_path: Path):
    """A run that is started again where it was is two attempts."""
    dump = "-------------------- end of arguments ---------------------\n"
    text = dump + dump + line(1) + line(2) + dump + line(3) + line(4)
    run = read(tmp_path / "log", text)

    assert [(a.first_step, a.last_step) for a in run.attempts] == [(1, 2), (3, 4)]


def test_value_that_is_no_number_is_counted(tmp_path: Path):
    """A garbled loss is a bad line; the rest of its row is kept."""
    text = line(1) + line(2, "2.3x4") + line(3)
    run = read(tmp_path / "log", text)

    assert run.bad.count == 1
    assert run.bad.first[0][0] == 2
    assert "'2.3x4'" in run.bad.first[0][1]
    assert column(run, "grad_norm").keys() == {1, 2, 3}


def test_step_lines_of_others_are_not_megatron(tmp_path: Path):
    """NeMo's progress lines hold the word iteration, too."""
    text = (
        "Training epoch 0, iteration 9/999 | lr: 0.0003 | global_step: 9 | reduced_train_loss: 6.012\n"
        * 5
    )
    run = read(tmp_path / "log", text)

    assert run.reader != "megatron"


def test_checkpoints_are_facts(tmp_path: Path):
    """Each line that tells of a saved checkpoint gives its step, once."""
    saved = "  successfully saved checkpoint from iteration      {} to /ckpt [ t 1/1, p 1/1 ]\n"
    text = line(1) + saved.format(10) + saved.format(10) + line(2) + saved.format(20) + line(3)

    assert read(tmp_path / "log", text).facts["checkpoints"].value == (10, 20)


def test_real_log(shared_data: Path):
    """A run of BigScience's on 64 GPUs: 62 iterations, 52.4 billion parameters."""
    from stabcli.readers import read_runs

    (path,) = shared_data.glob("text/bigscience*/**/*ds-off.out")
    (run,), _ = read_runs([str(path)])

    assert (run.frame.height, run.attempts[0].first_step, run.attempts[0].last_step) == (62, 1, 62)
    assert run.facts["gpus"].value == 64
    assert run.facts["parameters"].value == 52_419_952_640
    assert run.facts["precision"].value == "fp16"


@pytest.mark.parametrize("total", ["100", "infinity"])
@pytest.mark.parametrize(("unit", "took"), [("ms", "500.0"), ("s", "0.5")])
def test_forks_print_no_end_and_seconds(total: str, unit: str, took: str, tmp_path: Path):
    """A loop without end and times in seconds are read like others."""
    line = (
        f" iteration {{}}/{total} | elapsed time per iteration ({unit}): {took} | lm loss: 2.5 |\n"
    )
    run = read(tmp_path / "log", "".join(map(line.format, range(1, 31))))

    assert run.reader == "megatron"
    assert set(run.frame["step_seconds"].to_list()) == {0.5}
