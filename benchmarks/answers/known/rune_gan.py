"""Learns to draw runes with a generator and a discriminator that train in turns."""

from __future__ import annotations

import argparse
import gc

import torch
from torch import Tensor, nn
from torch.nn import functional

SIZE = 16


def carve_runes(count: int) -> Tensor:
    """Draw runes as a few straight strokes."""
    generator = torch.Generator().manual_seed(59)
    runes = torch.full((count, 1, SIZE, SIZE), -1.0)
    columns = torch.randint(2, SIZE - 2, (count, 2), generator=generator).tolist()
    for rune, (first, second) in zip(runes, columns, strict=True):
        rune[0, 2:-2, first] = 1.0
        rune[0, second, 2:-2] = 1.0
    return runes


def make_generator(noise: int, width: int) -> nn.Sequential:
    """Make a network from noise to runes."""
    return nn.Sequential(
        nn.Linear(noise, width * 16),
        nn.Unflatten(1, (width, 4, 4)),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.ConvTranspose2d(width, width, 4, stride=2, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.ConvTranspose2d(width, 1, 4, stride=2, padding=1),
        nn.Tanh(),
    )


def make_discriminator(width: int) -> nn.Sequential:
    """Make a network from runes to their credibility."""
    return nn.Sequential(
        nn.Conv2d(1, width, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(32 * width, 1),
    )


class Duel:
    """The two networks and their optimizers."""

    def __init__(self, noise: int, width: int, mended: bool) -> None:
        self.noise = noise
        self.mended = mended
        self.generator = make_generator(noise, 2 * width)
        self.discriminator = make_discriminator(width)
        self.makes = torch.optim.Adam(self.generator.parameters(), lr=2e-4, betas=(0.5, 0.99))
        self.judges = torch.optim.Adam(self.discriminator.parameters(), lr=2e-4, betas=(0.5, 0.99))

    def judge(self, runes: Tensor, truth: float) -> Tensor:
        """Return the loss of judging runes."""
        scores = self.discriminator(runes)[:, 0]
        return functional.binary_cross_entropy_with_logits(scores, torch.full_like(scores, truth))

    def discriminator_step(self, runes: Tensor) -> Tensor:
        """Teach the discriminator and return its loss."""
        with torch.no_grad():
            made = self.generator(torch.randn(len(runes), self.noise))
        loss = self.judge(runes, 0.9) + self.judge(made, 0.0)
        self.judges.zero_grad()
        loss.backward()
        self.judges.step()
        return loss.detach()

    def generator_step(self, count: int) -> Tensor:
        """Teach the generator and return its loss."""
        self.discriminator.requires_grad_(False)
        loss = self.judge(self.generator(torch.randn(count, self.noise)), 1.0)
        self.makes.zero_grad()
        loss.backward()
        self.makes.step()
        self.discriminator.requires_grad_(True)
        return loss.detach()

    def tidy(self) -> None:
        """Give back what is not in use."""
        if not self.mended:
            gc.collect()

    def step(self, runes: Tensor) -> tuple[Tensor, Tensor]:
        """Teach both and return their losses."""
        judged = self.discriminator_step(runes)
        made = self.generator_step(len(runes))
        self.tidy()
        return judged, made


def main() -> None:
    """Train the two networks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--steps", type=int, default=70)
    args = parser.parse_args()
    torch.manual_seed(0)
    runes = carve_runes(2000)
    duel = Duel(32, 32, args.mended)
    for step in range(args.steps):
        judged, made = duel.step(runes[torch.randint(0, len(runes), (48,))])
        if step % 10 == 0 or step == args.steps - 1:
            print(f"step {step}: judges {judged.item():.4f}, makes {made.item():.4f}")


if __name__ == "__main__":
    main()
