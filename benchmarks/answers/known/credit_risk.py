"""Estimates from a table of loans how likely each of them is to fail."""

from __future__ import annotations

import argparse

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

NUMBERS = ["amount", "income", "age", "months", "rate", "delays", "accounts", "savings"]


def loans(count: int) -> pd.DataFrame:
    """Make a table of loans."""
    rng = np.random.default_rng(13)
    table = pd.DataFrame({name: rng.normal(size=count) for name in NUMBERS})
    table["region"] = rng.integers(0, 12, count)
    table["purpose"] = rng.integers(0, 7, count)
    risk = table["amount"] - table["income"] + table["delays"] * table["rate"]
    table["failed"] = (risk + rng.normal(size=count) > 0.5).astype(np.int64)
    return table


class Loans(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """The loans of a table: numbers, categories and outcome."""

    def __init__(self, table: pd.DataFrame, mended: bool) -> None:
        self.table = table
        self.mended = mended
        if mended:
            self.numbers = torch.tensor(table[NUMBERS].to_numpy(), dtype=torch.float32)
            self.kinds = torch.tensor(table[["region", "purpose"]].to_numpy())
            self.failed = torch.tensor(table["failed"].to_numpy(), dtype=torch.float32)

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        if self.mended:
            return self.numbers[index], self.kinds[index], self.failed[index]
        row = self.table.iloc[index]
        numbers = torch.tensor([row[name] for name in NUMBERS], dtype=torch.float32)
        kinds = torch.tensor([int(row["region"]), int(row["purpose"])])
        return numbers, kinds, torch.tensor(float(row["failed"]))


class Assessor(nn.Module):
    """Embedded categories beside the numbers, then a deep network."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.region = nn.Embedding(12, 8)
        self.purpose = nn.Embedding(7, 8)
        self.enter = nn.Linear(len(NUMBERS) + 16, width)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 1)

    def forward(self, numbers: Tensor, kinds: Tensor) -> Tensor:
        parts = [numbers, self.region(kinds[:, 0]), self.purpose(kinds[:, 1])]
        hidden = self.enter(torch.cat(parts, dim=1))
        for layer in self.layers:
            hidden = hidden + layer(hidden)
        return self.head(hidden).squeeze(1)


def train(model: Assessor, loader: DataLoader[tuple[Tensor, Tensor, Tensor]]) -> float:
    """Train for one pass over the table and return the last loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    last = 0.0
    for numbers, kinds, failed in loader:
        scores = model(numbers, kinds)
        loss = nn.functional.binary_cross_entropy_with_logits(scores, failed)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        last = loss.item()
    return last


def main() -> None:
    """Train the assessor of loans."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--loans", type=int, default=19200)
    parser.add_argument("--batch", type=int, default=128)
    args = parser.parse_args()
    torch.manual_seed(0)
    data = Loans(loans(args.loans), args.mended)
    loader = DataLoader(data, batch_size=args.batch, shuffle=True)
    last = train(Assessor(384, 4), loader)
    print(f"loss {last:.4f} after {len(loader)} steps")


if __name__ == "__main__":
    main()
