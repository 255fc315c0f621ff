"""Writes the tables beside it that show how such files really look; their numbers are made up.

python sample_logs/csv/oddities.py
"""

import math
import random
from pathlib import Path

HERE = Path(__file__).parent
draw = random.Random(7)


def loss(step: int) -> float:
    return 2.0 + 6.0 * math.exp(-step / 40) + draw.gauss(0, 0.01)


def restarted() -> str:
    """A loop that appends, header and all, after each restart; the second line break is torn."""
    lines = ["step,loss,grad_norm,lr"]
    for first, last in ((0, 60), (40, 90)):
        if first:
            lines += ["60,2.9", lines[0]]
        lines += [
            f"{s},{loss(s):.4f},{draw.uniform(0.5, 0.7):.3f},0.0003" for s in range(first, last)
        ]
    return "\n".join(lines) + "\n"


def chart() -> str:
    """A chart of two runs, downloaded from W&B; the longer one is thinned out."""
    runs = ("base - lr 3e-4", "wide")
    ends = ("", "__MIN", "__MAX")
    lines = [",".join(['"Step"', *(f'"{r} - train/loss{e}"' for r in runs for e in ends)])]
    for step in range(0, 120):
        short = f"{loss(step):.6f}" if step < 80 else ""
        middle = loss(step)
        cells = [str(step), short, short, short]
        cells += [f"{middle:.6f}", f"{middle - 0.02:.6f}", f"{middle + 0.03:.6f}"]
        lines.append(",".join(f'"{c}"' for c in cells))
    return "\n".join(lines)


def lightning() -> str:
    """Lightning's CSVLogger: training and validation of one step stand in different rows."""
    lines = ["epoch,lr-AdamW,step,train_loss_epoch,train_loss_step,val_loss"]
    for step in range(0, 100, 2):
        epoch = step // 50
        lines.append(f"{epoch},0.001,{step},,{loss(step):.6f},")
        if step % 50 == 48:
            lines.append(f"{epoch},,{step},,,{loss(step) + 0.1:.6f}")
            lines.append(f"{epoch},,{step},{loss(step):.6f},,")
    return "\n".join(lines) + "\n"


def semicolons() -> str:
    """A spreadsheet's: byte order mark, CRLF, semicolons, decimal commas."""
    lines = ["Step;Train Loss;Grad Norm"]
    lines += [
        f"{s};{loss(s):.4f};{draw.uniform(0.5, 0.7):.3f}".replace(".", ",") for s in range(60)
    ]
    return "\ufeff" + "\r\n".join(lines) + "\r\n"


def tensorboard() -> str:
    lines = ["Wall time,Step,Value"]
    lines += [f"{1767322800 + 2.5 * s},{s},{loss(s)!r}" for s in range(0, 80)]
    return "\r\n".join(lines) + "\r\n"


def monitor(metric: str) -> str:
    """DeepSpeed's csv_monitor: x counts samples, a restart writes the header again."""
    lines = []
    for first, last in ((1, 60), (50, 80)):
        lines.append(f"step,{metric}")
        for step in range(first, last):
            value = {"train_loss": loss(step), "lr": 3e-4, "loss_scale": 65536.0}[metric]
            lines.append(f"{32 * step},{value}")
    return "\r\n".join(lines) + "\r\n"


if __name__ == "__main__":
    folder = HERE / "csv_monitor"
    folder.mkdir(exist_ok=True)
    made = {
        HERE / "restarted.csv": restarted(),
        HERE / "wandb_chart.csv": chart(),
        HERE / "lightning_metrics.csv": lightning(),
        HERE / "semicolons.csv": semicolons(),
        HERE / "run-tiny-tag-train_grad_norm.csv": tensorboard(),
    }
    for metric in ("train_loss", "lr", "loss_scale"):
        made[folder / f"Train_Samples_{metric}.csv"] = monitor(metric)
    for path, text in made.items():
        path.write_bytes(text.encode())
