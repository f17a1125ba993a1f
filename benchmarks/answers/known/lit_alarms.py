"""Marks the moments at which a machine runs badly in recordings of its vibration."""

from __future__ import annotations

import argparse

import lightning
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import BinaryAUROC, BinaryAveragePrecision

SENSORS = 4
HOP = 4


def record(count: int, moments: int) -> tuple[Tensor, Tensor]:
    """Make recordings, and tell of each moment whether the machine ran badly."""
    generator = torch.Generator().manual_seed(17)
    samples = moments * HOP
    times = torch.arange(samples) / 50
    speeds = 2 + torch.rand(count, 1, 1, generator=generator)
    waves = torch.sin(speeds * times).repeat(1, SENSORS, 1)
    waves = waves + 0.8 * torch.randn(count, SENSORS, samples, generator=generator)
    bad = torch.zeros(count, moments)
    starts = torch.randint(0, moments - 40, (count,), generator=generator).tolist()
    lengths = torch.randint(12, 40, (count,), generator=generator).tolist()
    for wave, marks, start, length in zip(waves, bad, starts, lengths, strict=True):
        marks[start : start + length] = 1
        part = slice(start * HOP, (start + length) * HOP)
        wave[:2, part] += 0.6 * torch.sin(25 * times[part])
    return waves, bad


class Marker(nn.Module):
    """Dilated convolutions over time that give each moment a score."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv1d(SENSORS, width, 2 * HOP, stride=HOP, padding=HOP // 2)]
        for dilation in (1, 2, 4):
            layers += [
                nn.BatchNorm1d(width),
                nn.ReLU(),
                nn.Conv1d(width, width, 3, padding=dilation, dilation=dilation),
            ]
        self.layers = nn.Sequential(*layers, nn.ReLU(), nn.Conv1d(width, 1, 1))

    def forward(self, waves: Tensor) -> Tensor:
        return self.layers(waves)[:, 0]


class AlarmModule(LightningModule):
    """Learns to mark the moments and follows how well it ranks them."""

    def __init__(self, width: int, rate: float, mended: bool) -> None:
        super().__init__()
        self.marker = Marker(width)
        self.rate = rate
        self.mended = mended
        self.ranking = BinaryAUROC()
        self.precision = BinaryAveragePrecision()
        self.register_buffer("weight", torch.tensor(4.0))

    def follow(self, scores: Tensor, bad: Tensor) -> None:
        """Take the scores of a batch into the figures of the epoch."""
        marks = bad.long()
        self.ranking.update(scores, marks)
        self.precision.update(scores, marks)
        if not self.mended:
            self.report()

    def report(self) -> None:
        """Log how well the moments are ranked."""
        self.log("train_auroc", self.ranking.compute())
        self.log("train_precision", self.precision.compute())

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        waves, bad = batch
        scores = self.marker(waves)
        loss = nn.functional.binary_cross_entropy_with_logits(scores, bad, pos_weight=self.weight)
        self.follow(scores.detach().sigmoid(), bad)
        self.log("train_loss", loss)
        return loss

    def on_train_epoch_end(self) -> None:
        if self.mended:
            self.report()
        figures = {name: float(value) for name, value in self.trainer.callback_metrics.items()}
        text = ", ".join(f"{name} {value:.4f}" for name, value in sorted(figures.items()))
        print(f"epoch {self.current_epoch}: {text}")
        self.ranking.reset()
        self.precision.reset()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.rate, fused=True)


def main() -> None:
    """Train the marker."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--recordings", type=int, default=2240)
    parser.add_argument("--moments", type=int, default=192)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--width", type=int, default=32)
    args = parser.parse_args()
    lightning.seed_everything(0, verbose=False)
    data = TensorDataset(*record(args.recordings, args.moments))
    loader = DataLoader(data, batch_size=args.batch, shuffle=True, drop_last=True)
    module = AlarmModule(args.width, rate=2e-3, mended=args.mended)
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=args.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader)


if __name__ == "__main__":
    main()
