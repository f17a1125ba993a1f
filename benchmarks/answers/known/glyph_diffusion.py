"""Learns to draw small glyphs by denoising diffusion."""

from __future__ import annotations

import argparse
import math

import torch
from torch import Tensor, nn


def glyphs(count: int, size: int) -> Tensor:
    """Draw crosses and bars at random places."""
    generator = torch.Generator().manual_seed(4)
    images = -torch.ones(count, 1, size, size)
    places = torch.randint(2, size - 2, (count, 2), generator=generator)
    for image, (row, column) in zip(images, places.tolist(), strict=True):
        image[0, row, 1:-1] = 1.0
        image[0, 2:-2, column] = 1.0
    return images


class Block(nn.Module):
    """A residual convolution that hears the time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, width)
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.time = nn.Linear(width, width)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, hidden: Tensor, time: Tensor) -> Tensor:
        inner = self.first(nn.functional.silu(self.norm(hidden)))
        inner = inner + self.time(time)[:, :, None, None]
        return hidden + self.second(nn.functional.silu(inner))


class Denoiser(nn.Module):
    """Guesses the noise in an image."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.frequencies = nn.Buffer(torch.exp(torch.linspace(0, -6, width // 2)))
        self.enter = nn.Conv2d(1, width, 3, padding=1)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.leave = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, images: Tensor, moments: Tensor) -> Tensor:
        angles = moments[:, None].float() * self.frequencies
        time = torch.cat([angles.sin(), angles.cos()], dim=1)
        hidden = self.enter(images)
        for block in self.blocks:
            hidden = block(hidden, time)
        return self.leave(hidden)


class Diffusion:
    """Mixes images with noise, more of it the later the moment."""

    def __init__(self, moments: int, mended: bool) -> None:
        self.moments = moments
        self.kept = self.remaining() if mended else None

    def remaining(self) -> Tensor:
        """Return how much of the image remains at each moment."""
        betas: list[Tensor] = []
        for moment in range(self.moments):
            here, after = (torch.tensor((moment + k) / self.moments) for k in (0, 1))
            ratio = torch.cos(after * math.pi / 2) ** 2 / torch.cos(here * math.pi / 2) ** 2
            betas.append((1 - ratio).clamp(max=0.999))
        return torch.cumprod(1 - torch.stack(betas), dim=0)

    def mix(self, images: Tensor, noise: Tensor, moments: Tensor) -> Tensor:
        kept = self.remaining() if self.kept is None else self.kept
        share = kept[moments][:, None, None, None]
        return share.sqrt() * images + (1 - share).sqrt() * noise


def train(model: Denoiser, diffusion: Diffusion, images: Tensor, args: argparse.Namespace) -> float:
    """Train the denoiser and return the last loss."""
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4, fused=True)
    last = 0.0
    for _ in range(args.steps):
        batch = images[torch.randint(0, len(images), (args.batch,))]
        moments = torch.randint(0, diffusion.moments, (args.batch,))
        noise = torch.randn_like(batch)
        guess = model(diffusion.mix(batch, noise, moments), moments)
        loss = nn.functional.mse_loss(guess, noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        last = loss.item()
    return last


def main() -> None:
    """Train the diffusion model of glyphs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--steps", type=int, default=90)
    parser.add_argument("--batch", type=int, default=16)
    args = parser.parse_args()
    torch.manual_seed(0)
    diffusion = Diffusion(400, args.mended)
    last = train(Denoiser(32, 2), diffusion, glyphs(512, 16), args)
    print(f"loss {last:.4f} after {args.steps} steps")


if __name__ == "__main__":
    main()
