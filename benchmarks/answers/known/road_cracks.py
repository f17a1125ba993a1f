"""Finds cracks in photos of road surfaces with a small U-Net."""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


def lay_road(side: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw a road surface and the mask of its cracks."""
    surface = rng.normal(120, 18, (side, side))
    surface += 20 * np.sin(np.linspace(0, rng.uniform(2, 6), side))[None, :]
    mask = np.zeros((side, side), dtype=bool)
    for _ in range(rng.integers(1, 4)):
        row, column = rng.integers(0, side, 2).astype(float)
        heading = rng.uniform(0, 2 * np.pi)
        for _ in range(rng.integers(side // 2, 2 * side)):
            heading += rng.normal(0, 0.25)
            row = (row + np.sin(heading)) % side
            column = (column + np.cos(heading)) % side
            mask[int(row) % side, int(column) % side] = True
            mask[int(row + 1) % side, int(column) % side] = True
    surface[mask] -= rng.uniform(25, 55)
    return np.clip(surface, 0, 255).astype(np.uint8), mask


class RoadPhotos(Dataset[tuple[Tensor, Tensor]]):
    """Photos of roads with the masks of their cracks."""

    def __init__(self, count: int, side: int, seed: int, mended: bool) -> None:
        rng = np.random.default_rng(seed)
        self.roads = [lay_road(side, rng) for _ in range(count)]
        self.mended = mended

    def __len__(self) -> int:
        return len(self.roads)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        photo, mask = self.roads[index]
        pixels = (photo / 255.0 - 0.45) / 0.1
        if self.mended:
            pixels = pixels.astype(np.float32)
        target = mask.astype(pixels.dtype)
        return torch.from_numpy(pixels)[None], torch.from_numpy(target)[None]


def block(before: int, after: int) -> nn.Sequential:
    """Build two convolutions with their norms."""
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(),
        nn.Conv2d(after, after, 3, padding=1, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(),
    )


class CrackNet(nn.Module):
    """A U-Net of three levels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fine = block(1, width)
        self.middle = block(width, 2 * width)
        self.coarse = block(2 * width, 4 * width)
        self.pool = nn.MaxPool2d(2)
        self.rise = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.join = block(4 * width, 2 * width)
        self.rise_again = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.join_again = block(2 * width, width)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, photos: Tensor) -> Tensor:
        fine = self.fine(photos)
        middle = self.middle(self.pool(fine))
        coarse = self.coarse(self.pool(middle))
        middle = self.join(torch.cat([middle, self.rise(coarse)], dim=1))
        fine = self.join_again(torch.cat([fine, self.rise_again(middle)], dim=1))
        return self.head(fine)


def crack_loss(logits: Tensor, masks: Tensor) -> Tensor:
    """Return the cross entropy and the soft Dice loss together."""
    entropy = nn.functional.binary_cross_entropy_with_logits(logits, masks)
    shares = logits.sigmoid()
    overlap = 2 * (shares * masks).sum() + 1
    return entropy + 1 - overlap / (shares.sum() + masks.sum() + 1)


@torch.no_grad()
def evaluate(model: CrackNet, loader: DataLoader[tuple[Tensor, Tensor]]) -> float:
    """Return the intersection over union of the cracks."""
    model.eval()
    both = either = 0
    for photos, masks in loader:
        found, wanted = model(photos) > 0, masks > 0.5
        both += int((found & wanted).sum())
        either += int((found | wanted).sum())
    return both / max(either, 1)


def train(args: argparse.Namespace) -> None:
    """Train the network for some epochs."""
    torch.manual_seed(0)
    roads = RoadPhotos(args.photos, args.side, 13, args.mended)
    unseen = RoadPhotos(32, args.side, 14, args.mended)
    loader = DataLoader(roads, batch_size=args.batch, shuffle=True, drop_last=True)
    model = CrackNet(args.width).to(roads[0][0].dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(1, args.epochs + 1):
        model.train()
        total = 0.0
        for photos, masks in loader:
            loss = crack_loss(model(photos), masks)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        overlap = evaluate(model, DataLoader(unseen, batch_size=args.batch))
        print(f"epoch {epoch}: loss {total / len(loader):.4f}, overlap {overlap:.3f}")


def main() -> None:
    """Train on the command line's settings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--photos", type=int, default=128)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--width", type=int, default=12)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
