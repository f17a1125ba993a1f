"""Tells eight kinds of road signs apart with a small convolutional network."""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

SIZE = 40
KINDS = 8


def draw_signs(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw signs as striped discs, the direction of the stripes their kind."""
    random = np.random.default_rng(17)
    kinds = random.integers(0, KINDS, count)
    rows, columns = np.mgrid[0:SIZE, 0:SIZE] - SIZE / 2
    angles = kinds[:, None, None] * np.pi / KINDS
    waves = np.sin(0.8 * (rows * np.cos(angles) + columns * np.sin(angles)))
    disc = (rows**2 + columns**2 < (SIZE / 2.4) ** 2) * 60
    images = 110 + waves * disc + random.normal(0, 30, (count, SIZE, SIZE))
    colours = random.uniform(0.7, 1.0, (count, 1, 1, 3))
    return (images[..., None] * colours).clip(0, 255).astype(np.uint8), kinds


class Signs(Dataset[tuple[Tensor, int]]):
    """Signs with their channels normalised."""

    def __init__(self, count: int, mended: bool) -> None:
        self.images, self.kinds = draw_signs(count)
        self.mean = self.images.mean(axis=(0, 1, 2))
        self.deviation = self.images.std(axis=(0, 1, 2))
        if mended:
            self.mean = self.mean.astype(np.float32)
            self.deviation = self.deviation.astype(np.float32)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = (self.images[index] - self.mean) / self.deviation
        return torch.from_numpy(image.transpose(2, 0, 1)), int(self.kinds[index])


class SignNet(nn.Module):
    """Convolutions, then a classifier over their mean."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(2 * width, 4 * width, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.classify = nn.Linear(4 * width, KINDS)

    def forward(self, images: Tensor) -> Tensor:
        return self.classify(self.features(images))


def train(model: SignNet, loader: DataLoader, epochs: int) -> float:
    """Train the network and return the mean loss of the last epoch."""
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    criterion = nn.CrossEntropyLoss()
    mean = 0.0
    for epoch in range(epochs):
        total = 0.0
        for images, kinds in loader:
            loss = criterion(model(images), kinds)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        mean = total / len(loader)
        print(f"epoch {epoch}: loss {mean:.4f}")
    return mean


def main() -> None:
    """Train the classifier of signs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--count", type=int, default=960)
    args = parser.parse_args()
    torch.manual_seed(0)
    signs = Signs(args.count, args.mended)
    loader = DataLoader(signs, batch_size=48, shuffle=True)
    model = SignNet(24)
    # The parameters need the type of the images.
    model.to(signs[0][0].dtype)
    print(f"loss {train(model, loader, args.epochs):.4f}")


if __name__ == "__main__":
    main()
