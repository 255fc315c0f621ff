"""Prints a real small run in the grammars of many frameworks, into the folders of their readers.

python sample_logs/generic-text/print_logs.py

The numbers are those of jsonl/bad_batch.jsonl (of jsonl/entropy_collapse.jsonl for verl), from
step 501 on; the lines are what each framework's own format strings make of them. Files named
``oddities`` show how such logs go wrong: their numbers are made up.
"""

import json
from datetime import UTC, datetime
from pathlib import Path

LOGS = Path(__file__).parents[1]
FIRST, LAST, TOTAL = 501, 700, 1000


def rows(name):
    with (LOGS / "jsonl" / name).open() as file:
        return [row for row in map(json.loads, file) if "step" in row]


RUN = [r for r in rows("bad_batch.jsonl") if FIRST <= r["step"] <= LAST]
STEPS = [r for r in RUN if "loss" in r]
EVALUATIONS = {r["step"]: r["val_loss"] for r in RUN if "val_loss" in r}
TOKENS, SEQUENCES = 2048, 32


def when(row, form="%Y-%m-%d %H:%M:%S.%f"):
    return datetime.fromtimestamp(row["timestamp"], UTC).strftime(form)


def write(path, text):
    path = LOGS / path
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="")


def dots(name, value, width=48):
    return "  " + (name + " ").ljust(width, ".") + f" {value}\n"


MEGATRON_ARGS = (
    "using world size: 1, data-parallel size: 1\n"
    "------------------------ arguments ------------------------\n"
    + dots("bf16", "False")
    + dots("clip_grad", 4.0)
    + dots("fp16", "False")
    + dots("global_batch_size", SEQUENCES)
    + dots("lr", 0.003)
    + dots("lr_warmup_iters", 100)
    + dots("save_interval", 100)
    + dots("seed", 1234)
    + dots("seq_length", 64)
    + dots("train_iters", TOTAL)
    + dots("weight_decay", 0.1)
    + "-------------------- end of arguments ---------------------\n"
    " > number of parameters on (tensor, pipeline) model parallel rank (0, 0): 120576\n"
)


def megatron_line(row, *, loss=True, skipped=0, scale="1.0"):
    norm = "" if skipped else f" grad norm: {row['grad_norm']:.3f} |"
    return (
        f" [{when(row)}] iteration {row['step']:8d}/{TOTAL:8d} | consumed samples:"
        f" {row['step'] * SEQUENCES:12d} | elapsed time per iteration (ms):"
        f" {row['step_time'] * 1000:.1f} | learning rate: {row['lr']:.6E} | global batch size:"
        f" {SEQUENCES:5d} |"
        + (f" lm loss: {row['loss']:.6E} |" if loss else "")
        + f" loss scale: {scale} |{norm} number of skipped"
        f" iterations: {skipped:3d} | number of nan iterations: {0:3d} |\n"
    )


def megatron():
    text = MEGATRON_ARGS
    for row in STEPS:
        text += megatron_line(row)
        if row["step"] in EVALUATIONS:
            loss = EVALUATIONS[row["step"]]
            text += "-" * 100 + "\n"
            text += (
                f" validation loss at iteration {row['step']} on validation set | lm loss value:"
                f" {loss:.6E} | lm loss PPL: {2.718281828459045**loss:.6E} | \n"
            )
            text += "-" * 100 + "\n"
    write("megatron/bad_batch.log", text)
    # skipped steps have no loss, and that is no harm; a NaN loss is left out, and that is
    odd = MEGATRON_ARGS
    for i, row in enumerate(STEPS[:60]):
        if i < 3:
            odd += megatron_line(row, loss=False, skipped=1, scale=f"{2.0 ** (32 - i):.1f}")
        elif i in (30, 31):
            odd += megatron_line(row, loss=False, scale="536870912.0")
        elif i == 40:
            odd += megatron_line(row, scale="536870912.0")[:-1]  # two processes in one line
        elif i == 50:
            odd += "[rank3]: " + megatron_line(row, scale="536870912.0")
        else:
            odd += megatron_line(row, scale="536870912.0")
    odd += (
        " validation loss at iteration 560 on validation set | lm loss value: NAN |"
        " lm loss PPL: 4.851652E+08 | \n"
    )
    odd += megatron_line(STEPS[60], scale="536870912.0")[:250]
    write("megatron/oddities.log", odd)


def neox():
    text = ""
    for row in STEPS[80:130]:
        text += (
            f"node-0:  samples/sec: {SEQUENCES / row['step_time']:.3f} | iteration"
            f" {row['step']:8d}/{TOTAL:8d} | elapsed time per iteration (ms):"
            f" {row['step_time'] * 1000:.1f} | learning rate: {row['lr']:.3E} | approx flops per"
            f" GPU: 1.2TFLOPS | MFU: 12.5% | lm_loss: {row['loss']:.6E} | number of skipped"
            f" iterations: {0:3d} | number of nan iterations: {0:3d} |\n"
        )
    write("megatron/neox.log", text)


def torchtitan():
    text = (
        "[rank0]:[titan] 2026-01-01 08:00:00,000 - root - INFO - Model tiny size: 120,576 total"
        " parameters\n[rank0]:[titan] 2026-01-01 08:00:00,100 - root - INFO - Training starts at"
        " step 501, with local batch size 32, global batch size 32, sequence length 64, total"
        " steps 1000 (warmup 100)\n"
    )
    for row in STEPS:
        text += (
            f"[rank0]:[titan] {when(row, '%Y-%m-%d %H:%M:%S,%f')[:-3]} - root - INFO -"
            f" \x1b[31mstep: {row['step']:2}  \x1b[32mloss: {row['loss']:8.5f}  \x1b[38;2;180;60;0m"
            f"grad_norm: {row['grad_norm']:7.4f}  \x1b[36mmemory:  0.50GiB(1.00%)  \x1b[34mtps:"
            f" {round(row['tokens_per_sec']):,}  \x1b[36mtflops: 1.25  \x1b[35mmfu: N/A\x1b[39m\n"
        )
        if row["step"] in EVALUATIONS:
            text += (
                f"[rank0]:[titan] {when(row, '%Y-%m-%d %H:%M:%S,%f')[:-3]} - root - INFO -"
                f" validate step: {row['step']}  loss: {EVALUATIONS[row['step']]:7.4f}  memory:"
                "  0.50GiB(1.00%)  tps: 61,000\n"
            )
    write("torchtitan/bad_batch.log", text)


def nanogpt():
    text = "tokens per iteration will be: 2,048\nnumber of parameters: 0.12M\n"
    for row in STEPS:
        if row["step"] in EVALUATIONS:
            loss = EVALUATIONS[row["step"]]
            text += f"step {row['step']}: train loss {row['loss']:.4f}, val loss {loss:.4f}\n"
        text += (
            f"iter {row['step']}: loss {row['loss']:.4f}, time {row['step_time'] * 1000:.2f}ms,"
            f" mfu {-100 if row['step'] < 506 else 12.5:.2f}%\n"
        )
    write("nanogpt/bad_batch.log", text)
    text = ""
    for row in STEPS[80:130]:
        if row["step"] in EVALUATIONS:
            text += f"validation loss: {EVALUATIONS[row['step']]:.4f}\n"
        text += (
            f"step {row['step']:5d} | loss: {row['loss']:.6f} | lr {row['lr']:.4e} | norm:"
            f" {row['grad_norm']:.4f} | dt: {row['step_time'] * 1000:.2f}ms | tok/sec:"
            f" {row['tokens_per_sec']:.2f}\n"
        )
    write("nanogpt/build_nanogpt.log", text)
    text = ""
    for row in STEPS[80:130]:
        if row["step"] in EVALUATIONS:
            text += f"{row['step']} val {EVALUATIONS[row['step']]:.4f}\n"
        text += f"{row['step']} train {row['loss']:.6f}\n"
    write("nanogpt/log.txt", text)


SMI = """\
+-----------------------------------------+------------------------+----------------------+
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:04:00.0 Off |                    0 |
| N/A   32C    P0            110W /  700W |       1MiB /  81559MiB |      0%      Default |
|   1  NVIDIA H100 80GB HBM3          On  |   00000000:05:00.0 Off |                    0 |
| N/A   32C    P0            110W /  700W |       1MiB /  81559MiB |      0%      Default |
+-----------------------------------------+------------------------+----------------------+
"""


def modded():
    code = Path(__file__).read_text(encoding="utf-8")  # such logs begin with their own source
    text = code + "=" * 100 + "\nRunning python 3.11\n" + SMI + "=" * 100 + "\n"
    text += f"step:500/{LAST} val_loss:{1.8:.5f} train_time:0ms step_avg:nanms\n"
    for row in STEPS:
        spent = 1000 * (row["timestamp"] - STEPS[0]["timestamp"])
        average = spent / (row["step"] - FIRST + 1)
        text += (
            f"step:{row['step']}/{LAST} train_loss:{row['loss']:.4f} train_time:{spent:.0f}ms"
            f" step_avg:{average:.2f}ms\n"
        )
    text += "peak memory allocated: 512 MiB reserved: 600 MiB\n"
    write("modded-nanogpt/bad_batch.txt", text)


def llmc():
    text = "".join(
        f"| {name:<21} | {value:<50} |\n"
        for name, value in (
            ("sequence length T", 64),
            ("total batch size", TOKENS),
            ("learning rate (LR)", "3.000000e-03"),
            ("warmup iterations", 100),
            ("weight decay", "1.000000e-01"),
            ("num_processes", 1),
        )
    )
    main = ""
    for row in STEPS:
        value = f"{row['loss']:.6f} ({0.5:+.2f}z)"
        text += (
            f"step {row['step']:4d}/{TOTAL} | loss {value}| norm {row['grad_norm']:.4f}"
            f" (-0.25z)| lr {row['lr']:.2e} | {row['step_time'] * 1000:.2f} ms | -100.0% bf16 MFU"
            f" | {row['tokens_per_sec']:.0f} tok/s\n"
        )
        if row["step"] in EVALUATIONS:
            text += f"val loss {EVALUATIONS[row['step']]:f}\n"
            main += f"s:{row['step']} tel:{EVALUATIONS[row['step']]:.4f}\n"
        main += f"s:{row['step']} trl:{row['loss']:.4f} lr:{row['lr']:.6f} norm:{row['grad_norm']:.2f}\n"
    text += (
        f"step  701/{TOTAL} | loss -nan (+nanz)| norm nan (-nanz)| lr 9.93e-04 | 32.10 ms | -100.0%"
        " bf16 MFU | 61000 tok/s\n"
    )
    write("llmc/bad_batch_then_nan.log", text)
    write("llmc/main.log", main)


def nanochat():
    text = (
        SMI
        + "Distributed world size: 2\nTotal batch size 2,048 => gradient accumulation steps: 1\n"
    )
    average = STEPS[0]["loss"]
    for row in STEPS:
        average = 0.9 * average + 0.1 * row["loss"]
        spent = (row["timestamp"] - STEPS[0]["timestamp"]) / 60
        text += (
            f"step {row['step']:05d}/{TOTAL:05d} ({row['step'] / TOTAL:.2%}) | loss:"
            f" {average:.6f} | lrm: 1.00 | dt: {row['step_time'] * 1000:.2f}ms | tok/sec:"
            f" {int(row['tokens_per_sec']):,} | bf16_mfu: 12.50 | epoch: 1 | total time:"
            f" {spent:.2f}m\n"
        )
    text += "Step 00700 | Validation bpb: 1.234567\nMinimum validation bpb: 1.234567\n"
    text += (
        "step 00001 (4.00%) | loss: 1.461115 | lrm: 1.00 | dt: 66.38ms | tok/sec: 6,077 | mfu:"
        " 1.01 | epoch: 1 | total time: 0.00m\n"
    )
    write("nanochat/bad_batch_then_tuning.log", text)


def hf():
    text = (
        "[INFO|trainer.py:2414] 2026-01-01 08:00:00,000 >>   Instantaneous batch size per device = 8\n"
        "[INFO|trainer.py:2415] 2026-01-01 08:00:00,000 >>   Total train batch size (w. parallel,"
        " distributed & accumulation) = 32\n"
        "[INFO|trainer.py:2416] 2026-01-01 08:00:00,000 >>   Gradient Accumulation steps = 4\n"
        "[INFO|trainer.py:2417] 2026-01-01 08:00:00,000 >>   Total optimization steps = 1,000\n"
        "[INFO|trainer.py:2418] 2026-01-01 08:00:00,000 >>   Number of trainable parameters = 120,576\n"
    )

    def bar(step):
        done = "█" * (step // 100)
        return f"\r {step / 10:3.0f}%|{done:10}| {step}/1000 [00:{step % 60:02d}<00:10, 30.10it/s]"

    new = old = text
    for row in STEPS:
        new += bar(row["step"])
        if row["step"] % 5:
            continue
        epoch = row["step"] / 250
        new += (
            "\r"
            + " " * 70
            + "\r"
            + str(
                {
                    "loss": f"{row['loss']:.4g}",
                    "grad_norm": f"{row['grad_norm']:.4g}",
                    "learning_rate": f"{row['lr']:.4g}",
                    "epoch": f"{epoch:.4g}",
                }
            )
        )
        new += "\n"
        old += str(
            {
                "loss": round(row["loss"], 4),
                "grad_norm": row["grad_norm"],
                "learning_rate": row["lr"],
                "epoch": round(epoch, 2),
            }
        )
        old += "\n"
        if row["step"] in EVALUATIONS:
            found = {"eval_loss": EVALUATIONS[row["step"]], "eval_runtime": 0.5, "epoch": epoch}
            new += bar(row["step"]) + str(found) + "\n"
    end = {
        "train_runtime": 22.5,
        "train_samples_per_second": 990.1,
        "train_loss": 1.9,
        "epoch": 2.8,
    }
    write("hf-stdout/bars.log", new + bar(700) + str(end) + "\n")
    write("hf-stdout/no_bars.log", old.replace("1,000", "200") + str(end) + "\n")


def verl():
    text = "\x1b[36m(TaskRunner pid=4242)\x1b[0m step:0 - val-core/toy/acc/mean@1:0.03125\n"
    for row in rows("entropy_collapse.jsonl")[:120]:
        grad = "nan" if row["step"] == 100 else f"{row['grad_norm']!r}"
        text += (
            f"\x1b[36m(TaskRunner pid=4242)\x1b[0m step:{row['step']} - actor/entropy:{row['entropy']!r}"
            f" - actor/pg_loss:np.float64({row['loss']!r}) - actor/grad_norm:{grad} - actor/lr:"
            f"{row['lr']!r} - training/global_step:{row['step']} - critic/rewards/mean:{row['reward']!r}"
            f" - response_length/mean:{row['response_length/mean']!r} - perf/mfu/actor:0.0\n"
        )
        if row["step"] % 40 == 0:
            text += "(RewardWorker pid=77) the model said: step: one, loss: none\n"
    write("verl/entropy.log", text)


def deepspeed():
    text, skipped, scale = "", 0, 65536
    for row in STEPS[:100]:
        stamp = when(row, "%Y-%m-%d %H:%M:%S,%f")[:-3]
        if row["step"] % 40 == 0:
            skipped += 1
            text += (
                f"[{stamp}] [INFO] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank 0"
                f" Skipping step. Attempted loss scale: {scale}, reducing to {scale // 2}\n"
            )
            scale //= 2
        if row["step"] % 10 == 0:
            text += (
                f"[{stamp}] [INFO] [logging.py:96:log_dist] [Rank 0] step={row['step']},"
                f" skipped={skipped}, lr=[{row['lr']}, {row['lr']}], mom=[(0.9, 0.95)]\n"
                f"[{stamp}] [INFO] [timer.py:199:stop] epoch=0/micro_step={row['step']}/global_step="
                f"{row['step']}, RunningAvgSamplesPerSec=950.1, CurrSamplesPerSec="
                f"{SEQUENCES / row['step_time']}, MemAllocated=0.5GB, MaxMemAllocated=0.6GB\n"
            )
    write("deepspeed/engine.log", text)


def own_loop():
    text = "torchrun train.py --seed 1234 --global_batch_size 32 --seq_len 64\n"
    for row in STEPS:
        text += (
            f"{when(row, '%Y-%m-%d %H:%M:%S')} INFO train: step {row['step']}/{TOTAL},"
            f" loss={row['loss']:.4f}, grad norm {row['grad_norm']:.3f}, lr {row['lr']:.2e}\n"
        )
    write("generic-text/own_loop.log", text)
    table = "".join(f"{r['step']} {r['loss']}\n" for r in STEPS[80:130])
    write("generic-text/two_columns.txt", table)


def per_epoch():
    text = "".join(
        f"Epoch [{(row['step'] - 1) // 100 + 1}/10], Step [{(row['step'] - 1) % 100 + 1}/100],"
        f" Loss: {row['loss']:.4f}, grad_norm: {row['grad_norm']:.3f}, lr: {row['lr']:.2e}\n"
        for row in STEPS
    )
    write("per-epoch/lines.log", text)
    text = ""
    for row in STEPS:
        epoch, at = (row["step"] - 1) // 100, (row["step"] - 1) % 100 + 1
        bar = f"Epoch {epoch}: {at:3d}%|{'#' * (at // 10):10}| {at}/100 [00:01<00:01, 99.10it/s"
        text += f"\r{bar}, v_num=3]\r{bar}, v_num=3, train_loss={row['loss']:.4f}]"
        if at == 100:
            text += "\rValidation DataLoader 0: 100%|##########| 5/5 [00:00<00:00, 500.00it/s]"
            text += f"\r{bar}, v_num=3, train_loss={row['loss']:.4f}, val_loss="
            text += f"{EVALUATIONS[row['step']]:.4f}]\n"
    write("per-epoch/bars.log", text)


def llama2c():
    text = "tokens per iteration will be: 2,048\n"
    for row in STEPS[80:130]:
        text += (
            f"{row['step']} | loss {row['loss']:.4f} | lr {row['lr']:e}"
            f" | {row['step_time'] * 1000:.2f}ms | mfu 12.34%\n"
        )
    write("nanogpt/llama2c.log", text)


def swift():
    text = "".join(
        str(
            {
                "loss": f"{row['loss']:.8f}",
                "grad_norm": f"{row['grad_norm']:.8f}",
                "learning_rate": f"{row['lr']:.8e}",
                "global_step/max_steps": f"{row['step']}/{TOTAL}",
                "percentage": f"{100 * row['step'] / TOTAL:.2f}%",
                "elapsed_time": f"{row['step'] // 60}m {row['step'] % 60}s",
            }
        )
        + "\n"
        for row in STEPS[80:130]
    )
    write("hf-stdout/swift.log", text)


for each in (
    megatron,
    neox,
    torchtitan,
    nanogpt,
    modded,
    llmc,
    nanochat,
    hf,
    verl,
    deepspeed,
    own_loop,
    per_epoch,
    llama2c,
    swift,
):
    each()
