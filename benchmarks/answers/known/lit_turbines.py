"""Finds failing gearboxes of wind turbines from their vibration, with Lightning."""

from __future__ import annotations

import argparse
import logging
import warnings

import lightning
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

STATES = ["sound", "worn tooth", "bad bearing", "loose shaft"]
CHANNELS = 3
LENGTH = 512


class Vibration(Dataset[tuple[Tensor, int]]):
    """Windows of vibration with the state of the gearbox."""

    def __init__(self, count: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, len(STATES), count).tolist()
        clock = np.arange(LENGTH) / LENGTH
        speed = rng.uniform(14, 18, (count, 1, 1))
        harmonic = 1 + np.array(self.labels)[:, None, None]
        turn = np.sin(2 * np.pi * speed * clock + rng.uniform(0, 6.28, (count, CHANNELS, 1)))
        fault = 0.5 * np.sin(2 * np.pi * 2.4 * harmonic * speed * clock)
        noise = rng.normal(0, 0.6, (count, CHANNELS, LENGTH))
        self.windows = (turn + fault + noise).astype(np.float32)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        window = self.windows[index]
        scale = window.std(axis=1, keepdims=True) + 1e-6
        return torch.from_numpy((window - window.mean(axis=1, keepdims=True)) / scale), (
            self.labels[index]
        )


class VibrationData(lightning.LightningDataModule):
    """The loaders for training and validation."""

    def __init__(self, windows: int, batch: int, workers: int, mended: bool) -> None:
        super().__init__()
        self.train_set = Vibration(windows, 1)
        self.valid_set = Vibration(windows // 4, 2)
        self.settings = {
            "batch_size": batch,
            "num_workers": workers,
            "persistent_workers": mended,
        }

    def train_dataloader(self) -> DataLoader[tuple[Tensor, int]]:
        """Return the shuffled windows to learn from."""
        return DataLoader(self.train_set, shuffle=True, drop_last=True, **self.settings)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, int]]:
        """Return the windows to judge by."""
        return DataLoader(self.valid_set, **self.settings)


class GearboxModule(lightning.LightningModule):
    """A one-dimensional convolutional classifier."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for enter, leave in ((CHANNELS, width), (width, width), (width, 2 * width)):
            layers += [
                nn.Conv1d(enter, leave, 7, stride=2, padding=3),
                nn.BatchNorm1d(leave),
                nn.ReLU(),
            ]
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool1d(4), nn.Flatten())
        self.head = nn.Linear(8 * width, len(STATES))

    def forward(self, windows: Tensor) -> Tensor:
        return self.head(self.layers(windows))

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        """Return the loss of a batch."""
        windows, labels = batch
        loss = nn.functional.cross_entropy(self(windows), labels)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], _: int) -> None:
        """Log the accuracy of a batch."""
        windows, labels = batch
        right = (self(windows).argmax(1) == labels).float().mean()
        self.log("accuracy", right, on_epoch=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def main() -> None:
    """Train on the command line's settings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--windows", type=int, default=384)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=26)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    warnings.filterwarnings("ignore", module="lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    lightning.seed_everything(2, verbose=False)
    data = VibrationData(args.windows, args.batch, args.workers, args.mended)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=args.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(GearboxModule(32), datamodule=data)
    loss, accuracy = (trainer.callback_metrics[name].item() for name in ("loss", "accuracy"))
    print(f"{args.epochs} epochs: loss {loss:.4f}, accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
