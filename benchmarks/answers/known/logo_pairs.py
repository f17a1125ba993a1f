"""Learns which pictures show the same logo, by contrast with a slow second encoder."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional

SIZE = 32


def draw_logos(count: int) -> Tensor:
    """Draw logos as smooth random patterns."""
    generator = torch.Generator().manual_seed(47)
    rough = torch.rand(count, 3, 6, 6, generator=generator)
    return functional.interpolate(rough, size=SIZE, mode="bilinear")


def photograph(logos: Tensor) -> Tensor:
    """Return noisy, shifted and scaled views of logos."""
    count = len(logos)
    angles = torch.zeros(count, 2, 3)
    angles[:, 0, 0] = angles[:, 1, 1] = 0.8 + 0.4 * torch.rand(count)
    angles[:, :, 2] = 0.3 * torch.randn(count, 2)
    grid = functional.affine_grid(angles, list(logos.shape), align_corners=False)
    views = functional.grid_sample(logos, grid, align_corners=False)
    return views + 0.1 * torch.randn_like(views)


class Encoder(nn.Module):
    """Convolutions to a direction in the space of logos."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(2 * width, 4 * width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * width, 64),
        )

    def forward(self, views: Tensor) -> Tensor:
        return functional.normalize(self.layers(views), dim=1)


class Contrast(nn.Module):
    """Two encoders, one of which follows the other, and the keys of the past."""

    def __init__(self, width: int, room: int, mended: bool) -> None:
        super().__init__()
        self.mended = mended
        self.query = Encoder(width)
        self.key = Encoder(width)
        self.key.load_state_dict(self.query.state_dict())
        self.register_buffer("queue", functional.normalize(torch.randn(room, 64), dim=1))
        self.next = 0

    @torch.no_grad()
    def follow(self) -> None:
        """Move the second encoder a little towards the first."""
        keys, queries = list(self.key.parameters()), list(self.query.parameters())
        torch._foreach_lerp_(keys, queries, 0.01)

    @torch.no_grad()
    def remember(self, keys: Tensor) -> None:
        """Put the newest keys in the place of the oldest."""
        self.queue[self.next : self.next + len(keys)] = keys
        self.next = (self.next + len(keys)) % len(self.queue)

    def encode_keys(self, views: Tensor) -> Tensor:
        """Encode the views that are to be found."""
        with torch.set_grad_enabled(not self.mended):
            return self.key(views)

    def forward(self, views: Tensor, others: Tensor) -> Tensor:
        queries, keys = self.query(views), self.encode_keys(others)
        right = (queries * keys).sum(dim=1, keepdim=True)
        wrong = queries @ self.queue.clone().T
        logits = torch.cat([right, wrong], dim=1) / 0.1
        self.remember(keys)
        return functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))


def train(model: Contrast, logos: Tensor, args: argparse.Namespace) -> float:
    """Train the encoders and return the last loss."""
    optimizer = torch.optim.SGD(model.query.parameters(), lr=0.05, momentum=0.9)
    last = 0.0
    for step in range(args.steps):
        chosen = logos[torch.randint(0, len(logos), (args.batch,))]
        loss = model(photograph(chosen), photograph(chosen))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.follow()
        last = loss.item()
        if step % 20 == 0:
            print(f"step {step}: loss {last:.4f}")
    return last


def main() -> None:
    """Train the encoders of logos."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--batch", type=int, default=48)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = Contrast(24, 1920, args.mended)
    print(f"loss {train(model, draw_logos(1000), args):.4f}")


if __name__ == "__main__":
    main()
