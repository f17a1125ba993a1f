"""Classifies synthetic photographs of leaves with a small convolutional network."""

from __future__ import annotations

import argparse

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

Image = npt.NDArray[np.float32]
CLASSES = 5


def photograph(label: int, rng: np.random.Generator, size: int) -> Image:
    """Draw one leaf: green stripes whose width tells the species."""
    columns = np.arange(size)[None, :, None]
    stripes = 0.5 + 0.4 * np.sin(columns * (label + 1) * 0.4 + rng.uniform(0, 6))
    image = np.broadcast_to(stripes, (size, size, 3)) * np.array([0.3, 0.9, 0.2])
    noisy = image + rng.normal(0, 0.1, image.shape)
    return np.clip(noisy, 0, 1).astype(np.float32)


class Leaves(Dataset[tuple[Tensor, int]]):
    """Photographs of leaves with their species, seen under changing light."""

    def __init__(self, count: int, size: int, mended: bool) -> None:
        self.rng = np.random.default_rng(3)
        self.labels = [index % CLASSES for index in range(count)]
        self.images = [photograph(label, self.rng, size) for label in self.labels]
        self.mended = mended

    def __len__(self) -> int:
        return len(self.images)

    def relight(self, image: Image, gain: float, offset: float, mirrored: bool) -> Image:
        if self.mended:
            turned = image[:, ::-1] if mirrored else image
            return np.clip(turned * np.float32(gain) + np.float32(offset), 0, 1)
        height, width, channels = image.shape
        result = np.empty_like(image)
        for row in range(height):
            for column in range(width):
                source = width - 1 - column if mirrored else column
                for channel in range(channels):
                    value = float(image[row, source, channel]) * gain + offset
                    result[row, column, channel] = min(max(value, 0.0), 1.0)
        return result

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        gain, offset = self.rng.uniform(0.8, 1.2), self.rng.uniform(-0.1, 0.1)
        image = self.relight(self.images[index], gain, offset, bool(self.rng.random() < 0.5))
        return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))), self.labels[index]


class LeafNet(nn.Module):
    """Three convolutions and a linear head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.head = nn.Linear(2 * width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images).mean(dim=(2, 3)))


def train(model: nn.Module, loader: DataLoader[tuple[Tensor, Tensor]], epochs: int) -> float:
    """Train for some epochs and return the last loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    last = 0.0
    for _ in range(epochs):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            last = loss.item()
    return last


def main() -> None:
    """Train the classifier of leaves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16)
    args = parser.parse_args()
    torch.manual_seed(0)
    leaves = Leaves(480, 28, args.mended)
    loader = DataLoader(leaves, batch_size=args.batch, shuffle=True, drop_last=True)
    last = train(LeafNet(24), loader, args.epochs)
    print(f"loss {last:.4f} after {args.epochs * len(loader)} steps")


if __name__ == "__main__":
    main()
