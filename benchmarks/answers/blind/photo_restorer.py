"""Restores noisy photographs with a small convolutional network."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

WINDOW = 11
SPREAD = 1.5


def scenes(count: int, size: int) -> Tensor:
    """Make pictures of soft colour fields with sharp discs on them."""
    generator = torch.Generator().manual_seed(31)
    fields = torch.rand(count, 3, 6, 6, generator=generator)
    pictures = nn.functional.interpolate(
        fields, size=(size, size), mode="bicubic", align_corners=False
    )
    rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    for _ in range(4):
        middle = torch.randint(0, size, (2, count, 1, 1), generator=generator)
        radius = torch.randint(4, size // 5, (count, 1, 1), generator=generator)
        colour = torch.rand(count, 3, 1, 1, generator=generator)
        inside = (rows - middle[0]) ** 2 + (columns - middle[1]) ** 2 < radius**2
        pictures = torch.where(inside[:, None], colour, pictures)
    return pictures.clamp(0, 1)


class Photographs(Dataset[tuple[Tensor, Tensor]]):
    """Photographs, once with noise and once without."""

    def __init__(self, count: int, size: int, noise: float) -> None:
        self.clean = scenes(count, size)
        self.noise = noise

    def __len__(self) -> int:
        return len(self.clean)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        clean = self.clean[index]
        return clean + self.noise * torch.randn_like(clean), clean


class Restorer(nn.Module):
    """Convolutions at half the size that foresee the noise."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.PixelUnshuffle(2),
            nn.Conv2d(12, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 12, 3, padding=1),
            nn.PixelShuffle(2),
        )

    def forward(self, noisy: Tensor) -> Tensor:
        return noisy - self.layers(noisy)


class Similarity(nn.Module):
    """One minus the structural similarity of two batches of pictures."""

    def __init__(self, mended: bool) -> None:
        super().__init__()
        places = torch.arange(WINDOW) - WINDOW // 2
        bell = torch.exp(-places.square() / (2 * SPREAD**2))
        bell = bell / bell.sum()
        self.register_buffer("weights", bell[:, None] * bell)
        self.mended = mended

    def local_mean(self, pictures: Tensor) -> Tensor:
        """Return the weighted mean around every pixel."""
        count, colours, height, width = pictures.shape
        if self.mended:
            kernel = self.weights.expand(colours, 1, WINDOW, WINDOW)
            return nn.functional.conv2d(pictures, kernel, groups=colours)
        around = nn.functional.unfold(pictures, WINDOW)
        around = around.view(count, colours, WINDOW * WINDOW, -1)
        means = (around * self.weights.flatten()[:, None]).sum(dim=2)
        return means.view(count, colours, height - WINDOW + 1, width - WINDOW + 1)

    def forward(self, made: Tensor, wanted: Tensor) -> Tensor:
        mean_made, mean_wanted = self.local_mean(made), self.local_mean(wanted)
        both = mean_made * mean_wanted
        squares = mean_made.square() + mean_wanted.square()
        power = self.local_mean(made.square() + wanted.square()) - squares
        shared = self.local_mean(made * wanted) - both
        light = (2 * both + 1e-4) / (squares + 1e-4)
        detail = (2 * shared + 9e-4) / (power + 9e-4)
        return 1 - (light * detail).mean()


def train(model: Restorer, loader: DataLoader, epochs: int, mended: bool) -> None:
    """Train the network on both measures of likeness."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    similarity = Similarity(mended)
    for epoch in range(epochs):
        total = torch.zeros(())
        for noisy, clean in loader:
            restored = model(noisy)
            loss = 0.84 * similarity(restored, clean)
            loss = loss + 0.16 * nn.functional.l1_loss(restored, clean)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        print(f"epoch {epoch}: loss {total.item() / len(loader):.4f}")


def main() -> None:
    """Train the restorer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--count", type=int, default=96)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(0)
    data = Photographs(args.count, args.size, noise=0.15)
    loader = DataLoader(data, batch_size=args.batch, shuffle=True)
    train(Restorer(24), loader, args.epochs, args.mended)


if __name__ == "__main__":
    main()
