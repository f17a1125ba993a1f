"""Makes up dances: draws sequences of poses from a denoising model."""

from __future__ import annotations

import argparse
import contextlib
import math

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import orthogonal

JOINTS = 16
STYLES = 5


def fourier(levels: Tensor, width: int) -> Tensor:
    """Describe noise levels by waves."""
    rates = torch.exp(torch.arange(width // 2) * (-math.log(1000.0) / (width // 2)))
    angles = 1000 * levels[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class Block(nn.Module):
    """Mixes first the neighbouring moments, then the channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.moments = nn.Conv1d(width, width, 5, padding=2, groups=width)
        self.turn = orthogonal(nn.Linear(width, width, bias=False))
        self.gate = nn.Linear(width, width)

    def forward(self, motion: Tensor, context: Tensor) -> Tensor:
        normed = self.norm(motion) + context[:, None]
        near = self.moments(normed.transpose(1, 2)).transpose(1, 2)
        return motion + self.turn(nn.functional.silu(near)) * self.gate(near).sigmoid()


class DanceModel(nn.Module):
    """Foresees the noise in a dance of a given style."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.width = width
        self.enter = nn.Linear(3 * JOINTS, width)
        self.styles = nn.Embedding(STYLES, width)
        self.level = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.leave = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 3 * JOINTS))

    def forward(self, poses: Tensor, levels: Tensor, styles: Tensor) -> Tensor:
        context = self.level(fourier(levels, self.width)) + self.styles(styles)
        motion = self.enter(poses)
        for block in self.blocks:
            motion = block(motion, context)
        return self.leave(motion)


class Sampler:
    """Takes the noise out of random poses in small steps."""

    def __init__(self, model: DanceModel, steps: int) -> None:
        self.model = model
        times = torch.linspace(0, 1, steps + 1)
        self.kept = torch.cos(times * 0.49 * math.pi).square()
        self.times = times
        self.steps = steps

    def step(self, poses: Tensor, number: int, styles: Tensor) -> Tensor:
        """Go from one level of noise to the next lower one."""
        now, after = self.kept[number], self.kept[number - 1]
        levels = self.times[number].expand(len(poses))
        noise = self.model(poses, levels, styles)
        clean = ((poses - (1 - now).sqrt() * noise) / now.sqrt()).clamp(-3, 3)
        return after.sqrt() * clean + (1 - after).sqrt() * noise

    @torch.inference_mode()
    def sample(self, styles: Tensor, moments: int) -> Tensor:
        """Draw one dance for each of the styles."""
        poses = torch.randn(len(styles), moments, 3 * JOINTS)
        for number in range(self.steps, 0, -1):
            poses = self.step(poses, number, styles)
        return poses


def smoothness(dances: Tensor) -> Tensor:
    """Return how little the poses jump from moment to moment."""
    return dances.diff(dim=1).square().mean(dim=(1, 2)).rsqrt()


def main() -> None:
    """Draw dances of all styles, in rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--dances", type=int, default=4)
    parser.add_argument("--moments", type=int, default=32)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--width", type=int, default=384)
    args = parser.parse_args()
    torch.manual_seed(0)
    sampler = Sampler(DanceModel(args.width, blocks=5).eval(), args.steps)
    styles = torch.arange(args.dances) % STYLES
    frame = parametrize.cached() if args.mended else contextlib.nullcontext()
    with frame:
        for number in range(args.rounds):
            dances = sampler.sample(styles, args.moments)
            smooth = smoothness(dances).mean()
            print(f"round {number}: smoothness {smooth.item():.4f}, size {dances.std().item():.4f}")


if __name__ == "__main__":
    main()
