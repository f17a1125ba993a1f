"""Train a small image classifier whose data arrive late: the commonest reason for a slow step.

Every picture is drawn and distorted in Python when it is asked for, in the process that trains:
the model waits for most of each step. `profstack run` says so, names the function, and says what
loading beside the training would save; `--workers 2` is the mend:

    python -m profstack run examples/slow_loader.py
    python -m profstack run examples/slow_loader.py --workers 2
"""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES = 4


class Shapes(Dataset):
    """Rings of four thicknesses, made when they are asked for, shifted, turned and noisy."""

    def __init__(self, count: int, size: int) -> None:
        self.count = count
        self.size = size

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        random = np.random.default_rng(index)
        label = index % CLASSES
        image = draw(self.size, label, random)
        image = blur(distort(image, random))
        image += 0.1 * random.standard_normal(image.shape)
        return torch.from_numpy(image.astype(np.float32)[None]), label


def draw(size: int, label: int, random: np.random.Generator) -> np.ndarray:
    """A ring somewhere on a dark picture, the thicker the larger its label."""
    rows, columns = np.mgrid[:size, :size] / size
    centre = random.uniform(0.4, 0.6, 2)
    distance = np.hypot(rows - centre[0], columns - centre[1])
    return (np.abs(distance - 0.25) < 0.02 * (label + 1)).astype(float)


def distort(image: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Shift every row a little, each by another amount."""
    waves = 2 * np.sin(np.linspace(0, 6, len(image)) + random.uniform(0, 6))
    return np.stack([np.roll(row, round(shift)) for row, shift in zip(image, waves, strict=True)])


def blur(image: np.ndarray) -> np.ndarray:
    """The mean over three by three pixels, three times over."""
    for _ in range(3):
        shifted = [np.roll(image, (a, b), (0, 1)) for a in (-1, 0, 1) for b in (-1, 0, 1)]
        image = np.mean(shifted, axis=0)
    return image


def make_model(width: int = 16) -> nn.Sequential:
    """Three convolutions and a classifier."""
    layers: list[nn.Module] = []
    for before, after in ((1, width), (width, 2 * width), (2 * width, 2 * width)):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.ReLU()]
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, CLASSES)
    )


def train(model: nn.Module, batches: DataLoader, epochs: int) -> int:
    """Ordinary epochs; returns the number of optimizer steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss_function = nn.CrossEntropyLoss()
    steps = 0
    for epoch in range(epochs):
        for images, labels in batches:
            optimizer.zero_grad()
            loss = loss_function(model(images), labels)
            loss.backward()
            optimizer.step()
            steps += 1
        print(f"epoch {epoch}: loss {loss.item():.4f}")
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(0)
    batches = DataLoader(
        Shapes(options.images, options.size),
        batch_size=32,
        shuffle=True,
        num_workers=options.workers,
        persistent_workers=options.workers > 0,
    )
    steps = train(make_model(), batches, options.epochs)
    print(f"steps: {steps}")


if __name__ == "__main__":
    main()
