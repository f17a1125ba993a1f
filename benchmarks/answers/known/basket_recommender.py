"""Recommends products to shoppers from the products they clicked before."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn


def click_products(count: int, length: int, products: int) -> tuple[Tensor, Tensor]:
    """Make histories of clicks, and the product that each shopper took next."""
    generator = torch.Generator().manual_seed(41)
    tastes = torch.randint(0, products // 50, (count, 1), generator=generator)
    offsets = torch.randint(0, 50, (count, length + 1), generator=generator)
    clicks = (tastes * 50 + offsets).clamp(max=products - 1)
    return clicks[:, :-1], clicks[:, -1]


class TwoTowers(nn.Module):
    """A tower for shoppers and a table of products."""

    def __init__(self, products: int, width: int, mended: bool) -> None:
        super().__init__()
        self.clicked = nn.EmbeddingBag(products, width, mode="mean", sparse=mended)
        self.offered = nn.Embedding(products, width, sparse=mended)
        self.tower = nn.Sequential(
            nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, width)
        )

    def tables(self) -> list[nn.Parameter]:
        """Return the parameters of the tables."""
        return [self.clicked.weight, self.offered.weight]

    def forward(self, clicks: Tensor, offers: Tensor) -> Tensor:
        shoppers = self.tower(self.clicked(clicks))
        return shoppers @ self.offered(offers).T


def make_optimizers(model: TwoTowers, mended: bool) -> list[torch.optim.Optimizer]:
    """Return the optimizers of the whole model."""
    if not mended:
        return [torch.optim.Adam(model.parameters(), lr=2e-3)]
    return [
        torch.optim.SparseAdam(model.tables(), lr=2e-3),
        torch.optim.Adam(model.tower.parameters(), lr=2e-3),
    ]


def train_step(
    model: TwoTowers, optimizers: list[torch.optim.Optimizer], clicks: Tensor, taken: Tensor
) -> Tensor:
    """Let each shopper tell the own product from those of the others."""
    scores = model(clicks, taken)
    loss = nn.functional.cross_entropy(scores, torch.arange(len(taken)))
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    return loss.detach()


def main() -> None:
    """Train the recommender."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--steps", type=int, default=70)
    parser.add_argument("--products", type=int, default=250_000)
    parser.add_argument("--batch", type=int, default=1024)
    args = parser.parse_args()
    torch.manual_seed(0)
    clicks, taken = click_products(20_000, 20, args.products)
    model = TwoTowers(args.products, 32, args.mended)
    optimizers = make_optimizers(model, args.mended)
    for step in range(args.steps):
        picks = torch.randint(0, len(clicks), (args.batch,))
        loss = train_step(model, optimizers, clicks[picks], taken[picks])
        if step % 10 == 0 or step == args.steps - 1:
            print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
