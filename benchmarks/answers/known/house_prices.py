"""Estimates what houses sell for from a table of their features, with a residual network."""

from __future__ import annotations

import argparse

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

NUMBERS = ["living_area", "lot_area", "rooms", "baths", "age", "garage", "distance", "income"]
QUARTERS = ["harbour", "old town", "hillside", "station", "riverside", "meadows", "university"]


def make_sales(count: int) -> pd.DataFrame:
    """Make a table of houses and their prices."""
    rng = np.random.default_rng(13)
    table = pd.DataFrame(
        {
            "living_area": rng.gamma(9, 14, count),
            "lot_area": rng.gamma(4, 120, count),
            "rooms": rng.integers(1, 9, count),
            "baths": rng.integers(1, 4, count),
            "age": rng.integers(0, 120, count),
            "garage": rng.integers(0, 3, count),
            "distance": rng.exponential(6, count),
            "income": rng.normal(52, 11, count),
            "quarter": rng.choice(QUARTERS, count),
        }
    )
    worth = table["quarter"].map({name: 0.08 * rank for rank, name in enumerate(QUARTERS)})
    table["price"] = np.exp(
        11.2
        + 0.5 * np.log(table["living_area"])
        + 0.05 * np.sqrt(table["lot_area"] / 10)
        - 0.03 * np.abs(table["age"] - 60) / 10
        - 0.04 * table["distance"]
        + 0.01 * table["income"]
        + worth
        + rng.normal(0, 0.1, count)
    )
    return table


def prepare(table: pd.DataFrame, mended: bool) -> tuple[Tensor, ...]:
    """Return features and targets, first for training and then for testing."""
    columns = pd.get_dummies(table[[*NUMBERS, "quarter"]], columns=["quarter"], dtype=float)
    columns["log_price"] = np.log(table["price"])
    order = np.random.default_rng(0).permutation(len(columns))
    cut = len(columns) * 4 // 5
    seen, held = columns.iloc[order[:cut]], columns.iloc[order[cut:]]
    middle, spread = seen.mean(), seen.std()
    tensors = []
    for part in (seen, held):
        scaled = ((part - middle) / spread).to_numpy()
        if mended:
            scaled = scaled.astype(np.float32)
        tensors += [torch.from_numpy(scaled[:, :-1].copy()), torch.from_numpy(scaled[:, -1].copy())]
    return tuple(tensors)


class ResidualLayer(nn.Module):
    """A layer that adds to what it is given."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.enter = nn.Linear(width, 2 * width)
        self.leave = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.leave(torch.relu(self.enter(self.norm(x))))


class PriceNet(nn.Module):
    """Some residual layers between two linear ones."""

    def __init__(self, features: int, width: int, depth: int) -> None:
        super().__init__()
        self.enter = nn.Linear(features, width)
        self.layers = nn.Sequential(*(ResidualLayer(width) for _ in range(depth)))
        self.leave = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.layers(self.enter(x))).squeeze(1)


@torch.no_grad()
def score(model: PriceNet, features: Tensor, prices: Tensor) -> float:
    """Return the share of the variance explained."""
    model.eval()
    guesses = torch.cat([model(rows) for rows in features.split(1024)])
    return 1 - ((guesses - prices).square().mean() / prices.var(correction=0)).item()


def main() -> None:
    """Train on the command line's settings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--sales", type=int, default=16_000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--depth", type=int, default=3)
    args = parser.parse_args()
    torch.manual_seed(1)
    seen, seen_prices, held, held_prices = prepare(make_sales(args.sales), args.mended)
    data = TensorDataset(seen, seen_prices)
    sampler = BatchSampler(RandomSampler(data), args.batch, drop_last=True)
    loader = DataLoader(data, batch_size=None, sampler=sampler)
    model = PriceNet(seen.shape[1], args.width, args.depth).to(seen.dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for epoch in range(args.epochs):
        model.train()
        total = 0.0
        for rows, prices in loader:
            loss = nn.functional.mse_loss(model(rows), prices)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        fit = score(model, held, held_prices)
        print(f"epoch {epoch}: loss {total / len(loader):.4f}, R2 {fit:.4f}")


if __name__ == "__main__":
    main()
