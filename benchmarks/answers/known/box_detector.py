"""Finds the box around one bright object in each image."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn


def images_with_boxes(count: int, size: int) -> tuple[Tensor, Tensor]:
    """Make dim images with one bright rectangle each, and its corners."""
    generator = torch.Generator().manual_seed(31)
    images = 0.3 * torch.rand(count, 1, size, size, generator=generator)
    corners = torch.randint(0, size // 2, (count, 2), generator=generator)
    extents = torch.randint(6, size // 2, (count, 2), generator=generator)
    for image, (top, left), (height, width) in zip(
        images, corners.tolist(), extents.tolist(), strict=True
    ):
        image[0, top : top + height, left : left + width] += 0.7
    return images, torch.cat([corners, corners + extents], dim=1).float() / size


class Detector(nn.Module):
    """Convolutions and a head with four corners."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(16 * width, 4),
        )

    def forward(self, images: Tensor) -> Tensor:
        start, extent = self.layers(images).chunk(2, dim=1)
        start = start.sigmoid()
        return torch.cat([start, start + extent.exp().clamp(max=1.0)], dim=1)


def overlap(guess: Tensor, truth: Tensor) -> Tensor:
    """Return the generalised overlap of boxes, their corners last."""
    low = torch.maximum(guess[..., :2], truth[..., :2])
    high = torch.minimum(guess[..., 2:], truth[..., 2:])
    shared = (high - low).clamp(min=0).prod(dim=-1)
    either = (guess[..., 2:] - guess[..., :2]).prod(dim=-1)
    either = either + (truth[..., 2:] - truth[..., :2]).prod(dim=-1) - shared
    outer_low = torch.minimum(guess[..., :2], truth[..., :2])
    outer_high = torch.maximum(guess[..., 2:], truth[..., 2:])
    hull = (outer_high - outer_low).prod(dim=-1)
    return shared / either - (hull - either) / hull


class BoxLoss(nn.Module):
    """One minus the overlap, and the distance of the corners."""

    def __init__(self, mended: bool) -> None:
        super().__init__()
        self.mended = mended

    def forward(self, guesses: Tensor, truths: Tensor) -> Tensor:
        if self.mended:
            distance = nn.functional.smooth_l1_loss(guesses, truths)
            return (1 - overlap(guesses, truths)).mean() + distance
        total = torch.zeros(())
        for guess, truth in zip(guesses, truths, strict=True):
            distance = nn.functional.smooth_l1_loss(guess, truth)
            total = total + (1 - overlap(guess, truth)) + distance
        return total / len(guesses)


def train(model: Detector, criterion: BoxLoss, args: argparse.Namespace) -> float:
    """Train the detector and return the last loss."""
    images, boxes = images_with_boxes(1024, 48)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    last = 0.0
    for _ in range(args.steps):
        picks = torch.randint(0, len(images), (args.batch,))
        loss = criterion(model(images[picks]), boxes[picks])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        last = loss.item()
    return last


def main() -> None:
    """Train the detector of boxes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=48)
    args = parser.parse_args()
    torch.manual_seed(0)
    last = train(Detector(32), BoxLoss(args.mended), args)
    print(f"loss {last:.4f} after {args.steps} steps")


if __name__ == "__main__":
    main()
