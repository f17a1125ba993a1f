"""Paints ceramic tiles by sampling a small latent diffusion model with DDIM steps."""

from __future__ import annotations

import argparse
import io
import math
import time

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

GLAZES = ["cobalt", "celadon", "ochre", "oxblood", "ivory", "turquoise"]


class Residual(nn.Module):
    """Convolutions that know the time and the glaze."""

    def __init__(self, width: int, known: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(8, width)
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.shift = nn.Linear(known, width)
        self.norm2 = nn.GroupNorm(8, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor, known: Tensor) -> Tensor:
        inner = self.conv1(nn.functional.silu(self.norm1(x)))
        inner = inner + self.shift(known)[:, :, None, None]
        return x + self.conv2(nn.functional.silu(self.norm2(inner)))


class Denoiser(nn.Module):
    """Foretells the noise in the latents of tiles."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.glaze = nn.Embedding(len(GLAZES), width)
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.enter = nn.Conv2d(channels, width, 3, padding=1)
        self.down = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.outer = nn.ModuleList([Residual(width, width) for _ in range(4)])
        self.inner = nn.ModuleList([Residual(width, width) for _ in range(2)])
        self.up = nn.ConvTranspose2d(width, width, 2, stride=2)
        self.leave = nn.Conv2d(width, channels, 3, padding=1)

    def forward(self, latents: Tensor, step: int, glazes: Tensor) -> Tensor:
        half = self.width // 2
        waves = torch.exp(-math.log(10_000) * torch.arange(half) / half) * step
        known = self.time(torch.cat([waves.sin(), waves.cos()])) + self.glaze(glazes)
        outer = self.enter(latents)
        for layer in self.outer[:2]:
            outer = layer(outer, known)
        inner = self.down(outer)
        for layer in self.inner:
            inner = layer(inner, known)
        outer = outer + self.up(inner)
        for layer in self.outer[2:]:
            outer = layer(outer, known)
        return self.leave(outer)


class Decoder(nn.Module):
    """Turns latents into pictures eight times as wide."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(channels, 64, 3, padding=1), nn.SiLU()]
        for enter, leave in ((64, 32), (32, 24), (24, 16)):
            layers += [nn.Upsample(scale_factor=2), nn.Conv2d(enter, leave, 3, padding=1)]
            layers += [nn.GroupNorm(4, leave), nn.SiLU()]
        self.layers = nn.Sequential(*layers, nn.Conv2d(16, 3, 3, padding=1))

    def forward(self, latents: Tensor) -> Tensor:
        return torch.sigmoid(self.layers(latents))


class TilePainter:
    """Draws latents step by step and decodes them."""

    def __init__(self, channels: int, width: int, mended: bool) -> None:
        self.denoiser = Denoiser(channels, width).eval()
        self.decoder = Decoder(channels).eval()
        self.channels = channels
        self.mended = mended
        self.kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0).tolist()

    @torch.inference_mode()
    def paint(self, glazes: Tensor, steps: int, side: int) -> Tensor:
        """Return the pictures of one tile for every glaze given."""
        latents = torch.randn(len(glazes), self.channels, side, side)
        times = np.linspace(999, 0, steps).round().astype(int).tolist()
        pictures = []
        for now, then in zip(times, [*times[1:], -1], strict=True):
            noise = self.denoiser(latents, now, glazes)
            kept, left = self.kept[now], self.kept[then] if then >= 0 else 1.0
            clean = (latents - math.sqrt(1 - kept) * noise) / math.sqrt(kept)
            clean = clean.clamp(-3, 3)
            latents = math.sqrt(left) * clean + math.sqrt(1 - left) * noise
            if not self.mended or then < 0:
                pictures.append(self.decoder(clean))
        return pictures[-1]


def png_size(picture: Tensor) -> int:
    """Return how many bytes a picture takes as PNG."""
    pixels = (picture * 255).byte().permute(1, 2, 0).numpy()
    with io.BytesIO() as buffer:
        Image.fromarray(pixels).save(buffer, format="PNG")
        return buffer.tell()


def main() -> None:
    """Paint some batches of tiles and report on them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--side", type=int, default=12)
    args = parser.parse_args()
    torch.manual_seed(8)
    painter = TilePainter(channels=4, width=96, mended=args.mended)
    glazes = torch.arange(len(GLAZES))
    start = time.perf_counter()
    for batch in range(args.batches):
        tiles = painter.paint(glazes, args.steps, args.side)
        size = sum(png_size(tile) for tile in tiles)
        print(f"batch {batch}: brightness {tiles.mean().item():.4f}, {size} bytes of PNG")
    seconds = time.perf_counter() - start
    print(f"{args.batches * len(GLAZES) / seconds:.2f} tiles a second")


if __name__ == "__main__":
    main()
