"""Learns the shapes of short signals by denoising diffusion, with averaged weights."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn


def signals(count: int, length: int) -> Tensor:
    """Make sums of two waves."""
    generator = torch.Generator().manual_seed(41)
    times = torch.linspace(0, 6.28, length)
    speeds = torch.randint(1, 5, (count, 2, 1), generator=generator)
    shifts = 6.28 * torch.rand(count, 2, 1, generator=generator)
    return torch.sin(speeds * times + shifts).sum(dim=1) / 2


class Block(nn.Module):
    """A residual block that is scaled and shifted by the level of noise."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.first = nn.Linear(width, width)
        self.bend = nn.Linear(8, width)
        self.second = nn.Linear(width, width)

    def forward(self, hidden: Tensor, level: Tensor) -> Tensor:
        inner = torch.relu(self.first(self.norm(hidden)) + self.bend(level))
        return hidden + self.second(inner)


class Denoiser(nn.Module):
    """Many narrow blocks between an entry and an exit."""

    def __init__(self, length: int, width: int, blocks: int) -> None:
        super().__init__()
        self.speeds = nn.Buffer(torch.arange(1, 5) * 1.5)
        self.enter = nn.Linear(length, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.leave = nn.Linear(width, length)

    def forward(self, noisy: Tensor, level: Tensor) -> Tensor:
        angles = level * self.speeds
        seen = torch.cat([angles.sin(), angles.cos()], dim=1)
        hidden = self.enter(noisy)
        for block in self.blocks:
            hidden = block(hidden, seen)
        return self.leave(hidden)


class Averages:
    """Slow copies of the weights, one for each rate of forgetting."""

    def __init__(self, model: nn.Module, rates: list[float], mended: bool) -> None:
        self.rates = rates
        self.mended = mended
        self.copies = [
            {name: value.detach().clone() for name, value in model.named_parameters()}
            for _ in rates
        ]

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        for rate, copy in zip(self.rates, self.copies, strict=True):
            if self.mended:
                torch._foreach_lerp_(list(copy.values()), list(model.parameters()), 1 - rate)
                continue
            for name, value in model.named_parameters():
                copy[name] = rate * copy[name] + (1 - rate) * value.detach()


def train(model: Denoiser, averages: Averages, data: Tensor, args: argparse.Namespace) -> float:
    """Train the denoiser and return the last loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=True)
    last = 0.0
    for _ in range(args.steps):
        clean = data[torch.randint(0, len(data), (args.batch,))]
        level = torch.rand(args.batch, 1)
        noise = torch.randn_like(clean)
        noisy = (1 - level) * clean + level * noise
        loss = nn.functional.mse_loss(model(noisy, level), noise - clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        averages.update(model)
        last = loss.item()
    return last


def main() -> None:
    """Train the diffusion model of signals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--steps", type=int, default=140)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=40)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = Denoiser(64, 48, args.blocks)
    averages = Averages(model, [0.99, 0.999], args.mended)
    last = train(model, averages, signals(2048, 64), args)
    spread = sum(float(value.abs().mean()) for value in averages.copies[0].values())
    print(f"loss {last:.4f}, averages {spread:.4f} after {args.steps} steps")


if __name__ == "__main__":
    main()
