"""Segments the cells of microscope pictures and counts them on held-out pictures."""

from __future__ import annotations

import argparse

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor, nn

SIZE = 96


def grow_cells(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Make noisy pictures of round cells, and the masks of the cells."""
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:SIZE, 0:SIZE]
    masks = np.zeros((count, 1, SIZE, SIZE), dtype=np.float32)
    for mask in masks:
        for _ in range(random.integers(10, 22)):
            row, column = random.uniform(0, SIZE, 2)
            radius = random.uniform(4, 9)
            mask[0] += (rows - row) ** 2 + (columns - column) ** 2 < radius**2
    masks = masks.clip(0, 1)
    noise = random.normal(0, 0.3, masks.shape).astype(np.float32)
    return torch.from_numpy(0.6 * masks + noise), torch.from_numpy(masks)


def block(inputs: int, outputs: int) -> nn.Sequential:
    """Make a convolution with its normalisation."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()
    )


class SmallUNet(nn.Module):
    """Two levels down and up again."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = block(1, width)
        self.second = block(width, 2 * width)
        self.bottom = block(2 * width, 2 * width)
        self.up_second = block(4 * width, width)
        self.up_first = block(2 * width, width)
        self.pool = nn.MaxPool2d(2)
        self.widen = nn.Upsample(scale_factor=2)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, pictures: Tensor) -> Tensor:
        first = self.first(pictures)
        second = self.second(self.pool(first))
        bottom = self.bottom(self.pool(second))
        wide = self.up_second(torch.cat([self.widen(bottom), second], dim=1))
        return self.head(self.up_first(torch.cat([self.widen(wide), first], dim=1)))


def train(model: SmallUNet, pictures: Tensor, masks: Tensor, steps: int) -> None:
    """Fit the network to the masks."""
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(steps):
        picks = torch.randint(0, len(pictures), (8,))
        logits = model(pictures[picks])
        loss = nn.functional.binary_cross_entropy_with_logits(logits, masks[picks])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.4f}")


def walk_cells(mask: Tensor) -> list[int]:
    """Return the areas of the connected cells of a mask."""
    areas = []
    seen = torch.zeros_like(mask)
    for row in range(SIZE):
        for column in range(SIZE):
            if not mask[row, column] or seen[row, column]:
                continue
            area, todo = 0, [(row, column)]
            seen[row, column] = True
            while todo:
                r, c = todo.pop()
                area += 1
                for i, j in ((r + 1, c), (r - 1, c), (r, c + 1), (r, c - 1)):
                    if 0 <= i < SIZE and 0 <= j < SIZE and mask[i, j] and not seen[i, j]:
                        seen[i, j] = True
                        todo.append((i, j))
            areas.append(area)
    return areas


def label_cells(mask: Tensor) -> list[int]:
    """Return the areas of the connected cells of a mask."""
    labels, _ = ndimage.label(mask.numpy())
    return np.bincount(labels.ravel())[1:].tolist()


@torch.inference_mode()
def report(model: SmallUNet, pictures: Tensor, masks: Tensor, mended: bool) -> None:
    """Print how many cells are found, and how many there are."""
    model.eval()
    found = torch.cat([model(part) for part in pictures.split(8)]) > 0
    measure = label_cells if mended else walk_cells
    sizes = [area for mask in found[:, 0] for area in measure(mask) if area > 20]
    truth = [area for mask in masks[:, 0] > 0 for area in measure(mask) if area > 20]
    print(f"found {len(sizes)} cells of {len(truth)}")
    print(f"mean area {np.mean(sizes):.1f}, in truth {np.mean(truth):.1f}")


def main() -> None:
    """Train the segmenter and count cells with it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--held-out", type=int, default=60)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = SmallUNet(12)
    train(model, *grow_cells(96, seed=1), args.steps)
    report(model, *grow_cells(args.held_out, seed=2), args.mended)


if __name__ == "__main__":
    main()
