"""Sorts textures by their grain in many short rounds of training."""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

GRAINS = 4


class Textures(Dataset[tuple[Tensor, int]]):
    """Crops of textures, blurred as finely as their grain."""

    def __init__(self, count: int, size: int) -> None:
        self.count = count
        self.size = size
        self.coarse = np.random.default_rng(47).normal(size=(count, 64, 64)).astype(np.float32)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        grain = index % GRAINS
        field = self.coarse[index]
        for _ in range(grain):
            field = (field + np.roll(field, 1, axis=0) + np.roll(field, 1, axis=1)) / 3
        crop = field[: self.size, : self.size]
        return torch.from_numpy(np.ascontiguousarray(crop / crop.std()))[None], grain


class Sorter(nn.Module):
    """Convolutions, their energy, and a linear head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, width, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride=2, padding=1),
        )
        self.head = nn.Linear(width, GRAINS)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.layers(images).square().mean(dim=(2, 3)))


def round_of_training(
    model: Sorter, loader: DataLoader[tuple[Tensor, Tensor]], optimizer: torch.optim.Optimizer
) -> float:
    """Train once on every texture and return the mean loss."""
    total = 0.0
    for images, grains in loader:
        loss = nn.functional.cross_entropy(model(images), grains)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


def main() -> None:
    """Train the sorter of textures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--textures", type=int, default=72)
    parser.add_argument("--batch", type=int, default=24)
    args = parser.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(
        Textures(args.textures, 48),
        batch_size=args.batch,
        shuffle=True,
        num_workers=2,
        persistent_workers=args.mended,
    )
    model = Sorter(16)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    mean = 0.0
    for _ in range(args.rounds):
        mean = round_of_training(model, loader, optimizer)
    print(f"loss {mean:.4f} after {args.rounds * len(loader)} steps")


if __name__ == "__main__":
    main()
