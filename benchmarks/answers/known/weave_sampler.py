"""Samples woven patterns of a wanted kind with a conditional denoising model."""

from __future__ import annotations

import argparse
import math

import torch
from torch import Tensor, nn

KINDS = 10
NOTHING = KINDS


class Residual(nn.Module):
    """Two convolutions that are shifted by the condition."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, width)
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.shift = nn.Linear(width, width)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, hidden: Tensor, condition: Tensor) -> Tensor:
        inner = self.first(nn.functional.silu(self.norm(hidden)))
        inner = inner + self.shift(condition)[:, :, None, None]
        return hidden + self.second(nn.functional.silu(inner))


class Denoiser(nn.Module):
    """Guesses the noise in a pattern from its time and its kind."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.width = width
        self.kinds = nn.Embedding(KINDS + 1, width)
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.enter = nn.Conv2d(1, width, 3, padding=1)
        self.blocks = nn.ModuleList([Residual(width) for _ in range(depth)])
        self.leave = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, patterns: Tensor, time: Tensor, kinds: Tensor) -> Tensor:
        rates = torch.exp(-math.log(1000) * torch.arange(self.width // 2) / (self.width // 2))
        angles = time[:, None] * rates
        condition = self.time(torch.cat([angles.sin(), angles.cos()], dim=1)) + self.kinds(kinds)
        hidden = self.enter(patterns)
        for block in self.blocks:
            hidden = block(hidden, condition)
        return self.leave(hidden)


class Sampler:
    """Takes the noise away in many small steps."""

    def __init__(self, model: Denoiser, steps: int, guidance: float, mended: bool) -> None:
        self.model = model
        self.guidance = guidance
        self.mended = mended
        self.kept = torch.linspace(0.9999, 0.98, steps).cumprod(0)

    def guess_noise(self, patterns: Tensor, time: Tensor, kinds: Tensor) -> Tensor:
        """Guess the noise, led towards the wanted kinds."""
        wanted = self.model(patterns, time, kinds)
        if self.mended and self.guidance == 1.0:
            return wanted
        anything = self.model(patterns, time, torch.full_like(kinds, NOTHING))
        return anything + self.guidance * (wanted - anything)

    def step(self, patterns: Tensor, index: int, kinds: Tensor) -> Tensor:
        """Go one step back in time (deterministically)."""
        now = self.kept[index]
        before = self.kept[index - 1] if index else torch.ones(())
        time = torch.full((len(patterns),), float(index))
        noise = self.guess_noise(patterns, time, kinds)
        clean = (patterns - (1 - now).sqrt() * noise) / now.sqrt()
        return before.sqrt() * clean.clamp(-3, 3) + (1 - before).sqrt() * noise

    @torch.inference_mode()
    def sample(self, kinds: Tensor, size: int) -> Tensor:
        """Return one pattern for each wanted kind."""
        patterns = torch.randn(len(kinds), 1, size, size)
        for index in reversed(range(len(self.kept))):
            patterns = self.step(patterns, index, kinds)
        return patterns


def main() -> None:
    """Sample patterns of all kinds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--steps", type=int, default=110)
    parser.add_argument("--guidance", type=float, default=1.0)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = Denoiser(width=32, depth=4).eval()
    sampler = Sampler(model, args.steps, args.guidance, args.mended)
    patterns = sampler.sample(torch.arange(KINDS), size=32)
    print(f"{len(patterns)} patterns, deviation {patterns.std().item():.4f}")


if __name__ == "__main__":
    main()
