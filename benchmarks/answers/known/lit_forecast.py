"""Load forecasting with a small GRU in Lightning."""
import argparse
import gc
import logging
import warnings

import lightning as L
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class LoadCurve(Dataset):
    """Hourly consumption windows: 96 hours in, 24 hours out."""

    def __init__(self, hours=6000, history=96, horizon=24, seed=0):
        rng = np.random.default_rng(seed)
        t = np.arange(hours)
        daily = np.sin(2 * np.pi * t / 24) + 0.3 * np.sin(4 * np.pi * t / 24)
        weekly = 0.5 * np.sin(2 * np.pi * t / 168)
        temp = np.cumsum(rng.normal(0, 0.05, hours))
        temp -= np.convolve(temp, np.ones(200) / 200, mode="same")
        load = daily + weekly - 0.4 * temp + 0.1 * rng.standard_normal(hours)
        self.x = torch.tensor(np.stack([load, temp, np.sin(2 * np.pi * t / 24)], 1), dtype=torch.float32)
        self.history, self.horizon = history, horizon

    def __len__(self):
        return len(self.x) - self.history - self.horizon

    def __getitem__(self, i):
        j = i + self.history
        return self.x[i:j], self.x[j:j + self.horizon, 0]


class Forecaster(L.LightningModule):
    def __init__(self, features=3, hidden=64, horizon=24, lr=2e-3):
        super().__init__()
        self.save_hyperparameters()
        self.rnn = nn.GRU(features, hidden, num_layers=1, batch_first=True)
        self.head = nn.Sequential(nn.Linear(hidden, 64), nn.ReLU(), nn.Linear(64, horizon))

    def forward(self, x):
        _, h = self.rnn(x)
        return self.head(h[-1])

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.smooth_l1_loss(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_mae", F.l1_loss(self(x), y))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)


class MemoryGuard(L.Callback):
    """Keeps the memory of long runs flat."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        gc.collect()


class Progress(L.Callback):
    def on_train_epoch_end(self, trainer, pl_module):
        metrics = {k: round(float(v), 4) for k, v in trainer.callback_metrics.items()}
        print(f"epoch {trainer.current_epoch}: {metrics}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    L.seed_everything(0, verbose=False)

    train = DataLoader(LoadCurve(), batch_size=args.batch_size, shuffle=True)
    val = DataLoader(LoadCurve(hours=700, seed=1), batch_size=128)
    callbacks = [Progress()]
    if not args.mended:
        callbacks.append(MemoryGuard())
    trainer = L.Trainer(max_epochs=args.epochs, limit_train_batches=args.batches, limit_val_batches=3,
                        accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False,
                        gradient_clip_val=1.0, callbacks=callbacks)
    trainer.fit(Forecaster(), train, val)


if __name__ == "__main__":
    main()
