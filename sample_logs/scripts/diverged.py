# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.4", "numpy>=1.26", "lightning>=2.4"]
# ///
"""A learning rate that keeps rising until the loss is NaN, logged by Lightning's CSVLogger.

Plain SGD with momentum and no clipping; by mistake the warm-up never ends, so that the rate
goes on rising by 0.01 a step. Lightning trains on after the loss is NaN, as it does by
default. Writes csv/diverged_metrics.csv, which is version_0/metrics.csv as Lightning left it.
"""

import logging
import shutil
import tempfile
import warnings

import lightning
import torch
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from places import out_path
from tiny_gpt import SEED, Text, TinyGPT, determined

STEPS, RISE = 300, 0.01


class Lit(lightning.LightningModule):
    """The tiny model under Lightning."""

    def __init__(self):
        super().__init__()
        self.model = TinyGPT()

    def training_step(self, batch, _index):
        """Return the loss and log it."""
        loss = self.model(*batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, _index):
        """Log the loss on held-out text."""
        self.log("val_loss", self.model(*batch))

    def on_before_optimizer_step(self, _optimizer):
        """Log the gradient norm."""
        norms = [p.grad.norm() for p in self.parameters() if p.grad is not None]
        self.log("grad_norm", torch.stack(norms).norm())

    def configure_optimizers(self):
        """Return SGD whose rate rises for ever."""
        optimizer = torch.optim.SGD(self.parameters(), lr=RISE, momentum=0.9)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step + 1)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


if __name__ == "__main__":
    path = out_path("csv/diverged_metrics.csv", __doc__)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    determined()
    text = Text()
    train = [text.batch(step, seed=SEED) for step in range(STEPS)]
    held_out = [text.batch(step, seed=SEED, held_out=True) for step in range(4)]
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_steps=STEPS,
            val_check_interval=50,
            num_sanity_val_steps=0,
            log_every_n_steps=1,
            logger=CSVLogger(folder),
            callbacks=[LearningRateMonitor("step")],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        loaders = [torch.utils.data.DataLoader(d, batch_size=None) for d in (train, held_out)]
        trainer.fit(Lit(), *loaders)
        shutil.copy(f"{folder}/lightning_logs/version_0/metrics.csv", path)
