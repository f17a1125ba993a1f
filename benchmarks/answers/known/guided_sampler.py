"""Sample small pictures from a class-conditional diffusion model.

A U-Net with random weights is run through a DDIM sampler with classifier-free
guidance.  Pictures are made in batches, one class after another.
"""
import argparse
import math
import time

import torch
import torch.nn.functional as F
from torch import nn


class ConvBlock(nn.Module):
    """Two convolutions modulated by the condition vector."""

    def __init__(self, inputs, outputs, condition):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.norm = nn.GroupNorm(4, outputs)
        self.modulate = nn.Linear(condition, 2 * outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x, condition):
        scale, shift = self.modulate(condition)[:, :, None, None].chunk(2, dim=1)
        h = F.silu(self.norm(self.first(x)) * (1 + scale) + shift)
        return self.skip(x) + self.second(h)


class UNet(nn.Module):
    def __init__(self, classes, width=32, condition=64):
        super().__init__()
        self.null_class = classes
        self.classes = nn.Embedding(classes + 1, condition)
        self.register_buffer("frequencies",
                             torch.exp(-math.log(1000) * torch.arange(condition // 2) / 32))
        self.enter = ConvBlock(3, width, condition)
        self.down = ConvBlock(width, 2 * width, condition)
        self.middle = ConvBlock(2 * width, 2 * width, condition)
        self.up = ConvBlock(3 * width, width, condition)
        self.leave = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x, t, labels):
        angles = t[:, None] * self.frequencies
        condition = torch.cat([angles.sin(), angles.cos()], dim=1) + self.classes(labels)
        high = self.enter(x, condition)
        low = self.middle(self.down(F.avg_pool2d(high, 2), condition), condition)
        joined = torch.cat([F.interpolate(low, scale_factor=2.0), high], dim=1)
        return self.leave(self.up(joined, condition))


class GuidedSampler:
    """Deterministic DDIM sampling."""

    def __init__(self, model, steps, guidance, skip_neutral=False, train_steps=1000):
        self.model, self.guidance, self.skip_neutral = model, guidance, skip_neutral
        beta = torch.linspace(1e-4, 0.02, train_steps)
        self.kept = torch.cumprod(1 - beta, dim=0)
        self.times = torch.linspace(train_steps - 1, 0, steps).long()

    def predict_noise(self, x, t, labels):
        conditional = self.model(x, t, labels)
        if self.skip_neutral and self.guidance == 1.0:
            return conditional
        nothing = torch.full_like(labels, self.model.null_class)
        unconditional = self.model(x, t, nothing)
        return unconditional + self.guidance * (conditional - unconditional)

    def step(self, x, index, labels):
        kept = self.kept[self.times[index]]
        following = self.times[index + 1: index + 2]
        kept_next = self.kept[following] if len(following) else torch.ones(1)
        noise = self.predict_noise(x, self.times[index].expand(len(x)), labels)
        clean = ((x - (1 - kept).sqrt() * noise) / kept.sqrt()).clamp(-1, 1)
        return kept_next.sqrt() * clean + (1 - kept_next).sqrt() * noise

    @torch.inference_mode()
    def sample(self, labels, size, generator):
        x = torch.randn(len(labels), 3, size, size, generator=generator)
        for index in range(len(self.times)):
            x = self.step(x, index, labels)
        return x


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--size", type=int, default=24)
    parser.add_argument("--guidance", type=float, default=1.0)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    model = UNet(args.classes).eval()
    sampler = GuidedSampler(model, args.steps, args.guidance, skip_neutral=args.mended)
    generator = torch.Generator().manual_seed(17)
    start = time.perf_counter()
    for batch in range(args.batches):
        labels = torch.full((args.batch_size,), batch % args.classes)
        pictures = sampler.sample(labels, args.size, generator)
        print(f"class {batch % args.classes}: mean {pictures.mean().item():.4f}, "
              f"spread {pictures.std().item():.4f} ({time.perf_counter() - start:.1f} s)")


if __name__ == "__main__":
    main()
