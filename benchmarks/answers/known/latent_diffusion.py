"""Train a denoising diffusion model on latent vectors.

The latents come from a mixture of curved clusters.  The denoiser is a residual
MLP with a sinusoidal time embedding; an averaged copy of it is used to sample.
"""
import argparse
import copy
import math
import time

import torch
import torch.nn.functional as F
from torch import nn


def make_latents(count, dim, clusters=12, seed=4):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(clusters, dim, generator=generator) * 2
    which = torch.randint(0, clusters, (count,), generator=generator)
    spread = torch.randn(count, dim, generator=generator) * 0.3
    return torch.tanh(centres[which] + spread)


class NoiseSchedule:
    def __init__(self, steps=400):
        beta = torch.linspace(1e-4, 0.03, steps)
        kept = torch.cumprod(1 - beta, dim=0)
        self.steps = steps
        self.signal, self.noise = kept.sqrt(), (1 - kept).sqrt()

    def add_noise(self, clean, noise, t):
        return self.signal[t, None] * clean + self.noise[t, None] * noise


class ResidualBlock(nn.Module):
    def __init__(self, dim, expansion=4):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, expansion * dim)
        self.down = nn.Linear(expansion * dim, dim)

    def forward(self, x, time_embedding):
        return x + self.down(F.silu(self.up(self.norm(x) + time_embedding)))


class Denoiser(nn.Module):
    def __init__(self, dim, blocks=6):
        super().__init__()
        half = dim // 2
        frequencies = torch.exp(-math.log(10_000) * torch.arange(half) / half)
        self.register_buffer("frequencies", frequencies)
        self.time_mlp = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.blocks = nn.ModuleList(ResidualBlock(dim) for _ in range(blocks))
        self.out = nn.Linear(dim, dim)

    def forward(self, x, t):
        angles = t[:, None].float() * self.frequencies
        embedding = self.time_mlp(torch.cat([angles.sin(), angles.cos()], dim=1))
        for block in self.blocks:
            x = block(x, embedding)
        return self.out(x)


class WeightAverage:
    """Exponential moving average of a model's weights."""

    def __init__(self, model, decay=0.995, in_place=False):
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay
        self.in_place = in_place

    @torch.no_grad()
    def update(self, model):
        if self.in_place:
            for averaged, current in zip(self.model.parameters(), model.parameters()):
                averaged.lerp_(current, 1 - self.decay)
            return
        current = copy.deepcopy(model).state_dict()
        averaged = copy.deepcopy(self.model.state_dict())
        for name, value in current.items():
            averaged[name] = self.decay * averaged[name] + (1 - self.decay) * value
        self.model.load_state_dict(averaged)


def train(model, average, latents, schedule, args):
    generator = torch.Generator().manual_seed(5)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    start = time.perf_counter()
    for step in range(1, args.steps + 1):
        rows = torch.randint(0, len(latents), (args.batch_size,), generator=generator)
        t = torch.randint(0, schedule.steps, (args.batch_size,), generator=generator)
        noise = torch.randn(args.batch_size, latents.shape[1], generator=generator)
        noisy = schedule.add_noise(latents[rows], noise, t)
        loss = F.mse_loss(model(noisy, t), noise)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        average.update(model)
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f} ({time.perf_counter() - start:.1f} s)")


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--steps", type=int, default=350)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--mended", action="store_true")
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(0)
    latents = make_latents(5000, args.dim)
    model = Denoiser(args.dim)
    average = WeightAverage(model, in_place=args.mended)
    train(model, average, latents, NoiseSchedule(), args)
    norm = sum(p.norm().item() for p in average.model.parameters())
    print(f"norm of the averaged weights {norm:.4f}")


if __name__ == "__main__":
    main()
