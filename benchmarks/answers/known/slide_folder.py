"""Scores a folder of tissue slides, each a file with many small tiles."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

TILE = 48


def write_slides(folder: Path, slides: int, tiles: int) -> None:
    """Write the slides as compressed files."""
    random = np.random.default_rng(37)
    for slide in range(slides):
        small = random.integers(0, 255, (tiles, TILE // 4, TILE // 4, 3))
        pixels = small.repeat(4, axis=1).repeat(4, axis=2).astype(np.uint8)
        weights = random.random(tiles).astype(np.float32)
        np.savez_compressed(folder / f"slide{slide:03}.npz", tiles=pixels, weights=weights)


class Slide:
    """The tiles of a file."""

    def __init__(self, path: Path, mended: bool) -> None:
        self.file = np.load(path)
        self.columns = dict(self.file) if mended else self.file

    def tile(self, index: int) -> Tensor:
        """Return a tile as the network wants it."""
        pixels = torch.from_numpy(self.columns["tiles"][index])
        return pixels.permute(2, 0, 1).float() / 255

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the tiles and their weights in batches."""
        weights = torch.from_numpy(self.columns["weights"])
        for picks in torch.arange(len(weights)).split(size):
            yield torch.stack([self.tile(pick) for pick in picks.tolist()]), weights[picks]


class TileNet(nn.Module):
    """Convolutions to one score."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
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
            nn.Linear(4 * width, 1),
        )

    def forward(self, tiles: Tensor) -> Tensor:
        return self.layers(tiles)[:, 0].sigmoid()


@torch.inference_mode()
def score_slide(model: TileNet, slide: Slide, batch: int) -> float:
    """Return the weighted mean of the scores of a slide's tiles."""
    total, weight = torch.zeros(()), torch.zeros(())
    for tiles, weights in slide.batches(batch):
        total += (model(tiles) * weights).sum()
        weight += weights.sum()
    return (total / weight).item()


def main() -> None:
    """Write the slides, then score them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--slides", type=int, default=14)
    parser.add_argument("--tiles", type=int, default=256)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = TileNet(24).eval()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_slides(folder, args.slides, args.tiles)
        for path in sorted(folder.glob("*.npz")):
            score = score_slide(model, Slide(path, args.mended), batch=24)
            print(f"{path.name}: {score:.5f}")


if __name__ == "__main__":
    main()
