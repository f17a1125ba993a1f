"""Learns a compact code for image patches with an autoencoder."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn


def patches(count: int, side: int) -> Tensor:
    """Make patches with edges at random angles."""
    generator = torch.Generator().manual_seed(19)
    angles = 3.14159 * torch.rand(count, 1, 1, generator=generator)
    shifts = torch.randn(count, 1, 1, generator=generator)
    grid = torch.linspace(-2, 2, side)
    slope = angles.cos() * grid[None, :, None] + angles.sin() * grid[None, None, :]
    noise = 0.1 * torch.randn(count, side, side, generator=generator)
    return torch.sigmoid(6 * (slope - shifts)) + noise


class Autoencoder(nn.Module):
    """Squeezes a patch into a code and rebuilds it."""

    def __init__(self, pixels: int, width: int, code: int) -> None:
        super().__init__()
        self.encode = nn.Sequential(
            nn.Linear(pixels, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, code),
        )
        self.decode = nn.Sequential(
            nn.Linear(code, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, pixels),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.decode(self.encode(images.flatten(1))).view_as(images)


class Keeper:
    """Keeps what is needed to go on after an interruption."""

    def __init__(self, folder: Path, every: int) -> None:
        self.folder = folder
        self.every = every

    def visit(self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if step % self.every == 0:
            state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, self.folder / "last.pt")


def train(model: Autoencoder, images: Tensor, keeper: Keeper, args: argparse.Namespace) -> float:
    """Train the autoencoder and return the last loss."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, fused=True)
    last = 0.0
    for step in range(1, args.steps + 1):
        batch = images[torch.randint(0, len(images), (args.batch,))]
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        last = loss.item()
        keeper.visit(step, model, optimizer)
    return last


def main() -> None:
    """Train the autoencoder of patches."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--steps", type=int, default=129)
    parser.add_argument("--batch", type=int, default=16)
    args = parser.parse_args()
    torch.manual_seed(0)
    images = patches(2048, 24)
    with tempfile.TemporaryDirectory() as folder:
        keeper = Keeper(Path(folder), args.steps // 2 if args.mended else 3)
        last = train(Autoencoder(24 * 24, 1280, 32), images, keeper, args)
    print(f"loss {last:.4f} after {args.steps} steps")


if __name__ == "__main__":
    main()
