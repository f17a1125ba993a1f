"""Fits a species classifier for orchid photos on top of a ready-made image backbone."""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

SPECIES = ["cattleya", "dendrobium", "oncidium", "paphiopedilum", "phalaenopsis", "vanda"]
SIDE = 56


def photograph(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw flowers whose petals and colours depend on the species."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, len(SPECIES), count)
    ys, xs = np.mgrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
    angle, radius = np.arctan2(ys, xs), np.hypot(xs, ys)
    palette = np.random.default_rng(5).uniform(90, 230, (len(SPECIES), 3))
    photos = np.empty((count, 3, SIDE, SIDE), dtype=np.uint8)
    for row, label in enumerate(labels):
        petals = np.cos((3 + label % 3) * angle + rng.uniform(0, 6.28))
        shape = (radius < 0.45 + 0.25 * petals).astype(float)
        colour = palette[label] + rng.normal(0, 12, 3)
        picture = shape * colour[:, None, None] + rng.normal(60, 18, (3, SIDE, SIDE))
        photos[row] = np.clip(picture, 0, 255)
    return photos, labels


class Orchids(Dataset[tuple[Tensor, int]]):
    """Photos with their species, shifted and mirrored at random for training."""

    def __init__(self, count: int, seed: int, augment: bool) -> None:
        photos, labels = photograph(count, seed)
        self.photos = torch.from_numpy(photos)
        self.labels = labels.tolist()
        self.augment = augment

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        photo = self.photos[index]
        top, left = 4, 4
        if self.augment:
            top, left, mirror = (int(torch.randint(high, ())) for high in (9, 9, 2))
            photo = photo.flip(2) if mirror else photo
        photo = photo[:, top : top + SIDE - 8, left : left + SIDE - 8]
        return (photo.float() - 110) / 60, self.labels[index]


class Block(nn.Module):
    """Two convolutions with a way around them."""

    def __init__(self, enter: int, leave: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(enter, leave, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(leave)
        self.conv2 = nn.Conv2d(leave, leave, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(leave)
        self.skip = nn.Conv2d(enter, leave, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(inner)) + self.skip(x))


def load_backbone() -> nn.Sequential:
    """Return the image backbone with its given weights."""
    torch.manual_seed(77)
    stem = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
    blocks = [Block(32, 32, 1), Block(32, 64, 2), Block(64, 128, 2)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())


class OrchidNet(nn.Module):
    """The backbone and a head for the species."""

    def __init__(self, backbone: nn.Sequential, species: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Sequential(
            nn.LayerNorm(128), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, species)
        )

    def forward(self, photos: Tensor) -> Tensor:
        return self.head(self.backbone(photos))


@torch.no_grad()
def accuracy(model: OrchidNet, loader: DataLoader[tuple[Tensor, int]]) -> float:
    """Return how many of the held-out photos are named rightly."""
    model.eval()
    right = sum((model(photos).argmax(1) == labels).sum().item() for photos, labels in loader)
    return right / len(loader.dataset)  # type: ignore[arg-type]


def main() -> None:
    """Train the head and report the accuracy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--photos", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()
    backbone = load_backbone()
    if args.mended:
        backbone.requires_grad_(False)
    model = OrchidNet(backbone, len(SPECIES))
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=2e-3)
    train = DataLoader(Orchids(args.photos, 1, True), args.batch, shuffle=True, drop_last=True)
    held_out = DataLoader(Orchids(args.photos // 8, 2, False), 64)
    for epoch in range(args.epochs):
        model.train()
        model.backbone.eval()
        total = 0.0
        for photos, labels in train:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(photos), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        right = accuracy(model, held_out)
        print(f"epoch {epoch}: loss {total / len(train):.4f}, accuracy {right:.3f}")


if __name__ == "__main__":
    main()
