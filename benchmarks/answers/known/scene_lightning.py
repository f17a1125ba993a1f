"""Recognises scenes with a residual network trained by Lightning."""

from __future__ import annotations

import argparse
import csv
import tempfile
from pathlib import Path

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

SCENES = 6


class Residual(nn.Module):
    """Two convolutions around which the image may pass."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(images + self.layers(images))


class Scenes(lightning.LightningModule):
    """A small residual network and how it is trained."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, width, 4, stride=4),
            *(Residual(width) for _ in range(blocks)),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(width, SCENES),
        )

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.net(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


class Ledger(lightning.Callback):
    """Keeps a ledger of the network in a table on disk."""

    def __init__(self, path: Path, every: int) -> None:
        self.path = path
        self.every = every

    def on_train_batch_end(
        self,
        trainer: lightning.Trainer,
        pl_module: lightning.LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        if batch_idx % self.every:
            return
        with self.path.open("a", newline="") as file:
            writer = csv.writer(file)
            for name, weight in pl_module.named_parameters():
                flat = weight.detach().flatten()
                ordered = flat.sort().values
                numbers = [flat.mean(), flat.std(), flat.norm(), ordered[0], ordered[-1]]
                numbers.append(ordered[len(ordered) // 2])
                writer.writerow([batch_idx, name, *(round(x.item(), 6) for x in numbers)])


def scenes(count: int, size: int) -> TensorDataset:
    """Make scenes whose horizon tells what they are."""
    generator = torch.Generator().manual_seed(17)
    labels = torch.randint(0, SCENES, (count,), generator=generator)
    rows = torch.arange(size)[None, None, :, None]
    sky = (rows < (labels[:, None, None, None] + 1) * size / (SCENES + 1)).float()
    noise = torch.randn(count, 3, size, size, generator=generator)
    return TensorDataset(sky + 0.8 * noise, labels)


def main() -> None:
    """Train the recogniser of scenes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--steps", type=int, default=90)
    parser.add_argument("--batch", type=int, default=8)
    args = parser.parse_args()
    lightning.seed_everything(0, verbose=False)
    loader = DataLoader(scenes(args.steps * args.batch, 32), args.batch, shuffle=True)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[Ledger(Path(folder) / "ledger.csv", 50 if args.mended else 1)],
        )
        trainer.fit(Scenes(64, 4), loader)
    print(f"{trainer.global_step} steps")


if __name__ == "__main__":
    main()
